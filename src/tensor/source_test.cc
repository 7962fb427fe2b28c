#include "tensor/source.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"

namespace halftone {
namespace {

class MemorySource final : public TensorSource {
 public:
  void add(const std::string& name, DType dtype, Shape shape, std::vector<std::byte> bytes,
           std::optional<GgmlType> ggml = {}) {
    TensorInfo info;
    info.name = name;
    info.dtype = dtype;
    info.ggml = ggml;
    info.shape = std::move(shape);
    info.bytes = bytes.size();
    info.file = "memory.bin";
    infos_.push_back(info);
    data_.push_back(std::move(bytes));
  }
  const std::vector<TensorInfo>& tensors() const override { return infos_; }
  std::span<const std::byte> rows(const TensorInfo& info, std::int64_t first, std::int64_t count,
                                  std::vector<std::byte>&) const override {
    for (std::size_t i = 0; i < infos_.size(); ++i) {
      if (infos_[i].name != info.name) continue;
      return std::span(data_[i]).subspan(static_cast<std::size_t>(first) * info.row_bytes(),
                                         static_cast<std::size_t>(count) * info.row_bytes());
    }
    return {};
  }

 private:
  std::vector<TensorInfo> infos_;
  std::vector<std::vector<std::byte>> data_;
};

template <class T>
std::vector<std::byte> bytes_of(std::initializer_list<T> values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::size_t at = 0;
  for (const T& value : values) {
    std::memcpy(bytes.data() + at, &value, sizeof(T));
    at += sizeof(T);
  }
  return bytes;
}

TEST(DType, NamesAndBits) {
  for (int i = 0; i < static_cast<int>(DType::ggml_block); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(find_dtype(dtype_name(dtype)), dtype);
    EXPECT_GT(dtype_bits(dtype), 0);
    if (const auto format = dtype_format(dtype)) {
      EXPECT_EQ(format->bits, dtype_bits(dtype));
    }
  }
  EXPECT_EQ(dtype_name(DType::f8_e4m3), "F8_E4M3");
  EXPECT_EQ(dtype_name(DType::u64), "U64");
  EXPECT_EQ(dtype_bits(DType::f6_e2m3), 6);
  EXPECT_EQ(dtype_bits(DType::ggml_block), 0);
  EXPECT_EQ(dtype_format(DType::f8_e4m3), fp8_e4m3_format());
  EXPECT_EQ(dtype_format(DType::f8_e5m2), fp8_e5m2_format());
  EXPECT_EQ(dtype_format(DType::f4), fp4_e2m1_format());
  EXPECT_EQ(dtype_format(DType::i8), int_format(8));
  EXPECT_FALSE(dtype_format(DType::u8));
  EXPECT_FALSE(dtype_format(DType::f64));
  EXPECT_FALSE(find_dtype("F7"));
  EXPECT_FALSE(find_dtype("GGML"));
  EXPECT_FALSE(find_dtype("f32"));
}

TEST(Source, Shapes) {
  TensorInfo info;
  info.shape = {2, 3, 4};
  info.bytes = 96;
  EXPECT_EQ(info.elements(), 24);
  EXPECT_EQ(info.rows(), 6);
  EXPECT_EQ(info.cols(), 4);
  EXPECT_EQ(info.row_bytes(), 16U);
  EXPECT_EQ(shape_string(info.shape), "[2, 3, 4]");
  info.shape = {};
  EXPECT_EQ(info.elements(), 1);
  EXPECT_EQ(info.rows(), 1);
  EXPECT_EQ(info.cols(), 1);
  EXPECT_EQ(shape_string(info.shape), "[]");
  info.shape = {0, 4};
  info.bytes = 0;
  EXPECT_EQ(info.rows(), 0);
  EXPECT_EQ(info.row_bytes(), 0U);
}

TEST(Source, ReadsEveryNumericDtype) {
  MemorySource source;
  source.add("f32", DType::f32, {2, 1}, bytes_of<float>({1.5F, -2}));
  source.add("f64", DType::f64, {2, 1}, bytes_of<double>({1.5, -2}));
  source.add("bf16", DType::bf16, {2, 1}, bytes_of<std::uint16_t>({0x3fc0, 0xc000}));
  source.add("f16", DType::f16, {2, 1}, bytes_of<std::uint16_t>({0x3e00, 0xc000}));
  source.add("f8_e4m3", DType::f8_e4m3, {2, 1}, bytes_of<std::uint8_t>({0x3c, 0xc0}));
  source.add("f8_e5m2", DType::f8_e5m2, {2, 1}, bytes_of<std::uint8_t>({0x3e, 0xc0}));
  source.add("f8_e4m3fnuz", DType::f8_e4m3fnuz, {2, 1}, bytes_of<std::uint8_t>({0x44, 0xc8}));
  source.add("f8_e5m2fnuz", DType::f8_e5m2fnuz, {2, 1}, bytes_of<std::uint8_t>({0x42, 0xc4}));
  for (const char* name : {"f32", "f64", "bf16", "f16", "f8_e4m3", "f8_e5m2", "f8_e4m3fnuz", "f8_e5m2fnuz"}) {
    EXPECT_EQ(read_as_float(source, source.at(name)), (std::vector<float>{1.5F, -2})) << name;
    std::vector<float> second(1);
    read_rows_as_float(source, source.at(name), 1, 1, second);
    EXPECT_EQ(second[0], -2) << name;
  }
  source.add("i8", DType::i8, {2}, bytes_of<std::int8_t>({7, -3}));
  source.add("i16", DType::i16, {2}, bytes_of<std::int16_t>({7, -3}));
  source.add("i32", DType::i32, {2}, bytes_of<std::int32_t>({7, -3}));
  source.add("i64", DType::i64, {2}, bytes_of<std::int64_t>({7, -3}));
  for (const char* name : {"i8", "i16", "i32", "i64"}) {
    EXPECT_EQ(read_as_float(source, source.at(name)), (std::vector<float>{7, -3})) << name;
  }
  source.add("u8", DType::u8, {2}, bytes_of<std::uint8_t>({7, 200}));
  source.add("u16", DType::u16, {2}, bytes_of<std::uint16_t>({7, 60000}));
  source.add("u32", DType::u32, {2}, bytes_of<std::uint32_t>({7, 4000000000U}));
  source.add("u64", DType::u64, {2}, bytes_of<std::uint64_t>({7, std::uint64_t{1} << 63}));
  EXPECT_EQ(read_as_float(source, source.at("u8"))[1], 200);
  EXPECT_EQ(read_as_float(source, source.at("u16"))[1], 60000);
  EXPECT_EQ(read_as_float(source, source.at("u32"))[1], 4e9F);
  EXPECT_EQ(read_as_float(source, source.at("u64"))[1], 0x1p63F);
  source.add("e8m0", DType::f8_e8m0, {3}, bytes_of<std::uint8_t>({127, 134, 255}));
  const std::vector<float> scales = read_as_float(source, source.at("e8m0"));
  EXPECT_EQ(scales[0], 1);
  EXPECT_EQ(scales[1], 128);
  EXPECT_TRUE(std::isnan(scales[2]));
  source.add("scalar", DType::i64, {}, bytes_of<std::int64_t>({-5}));
  EXPECT_EQ(read_as_float(source, source.at("scalar")), std::vector<float>{-5});
  source.add("empty", DType::f32, {0, 4}, {});
  EXPECT_TRUE(read_as_float(source, source.at("empty")).empty());
}

// safetensors' F4 and F6: least significant bits first, a row after the other.
TEST(Source, ReadsPackedSubByteRows) {
  MemorySource source;
  source.add("f4", DType::f4, {2, 4}, bytes_of<std::uint8_t>({0x21, 0x43, 0x65, 0x87}));
  EXPECT_EQ(read_as_float(source, source.at("f4")), (std::vector<float>{0.5F, 1, 1.5F, 2, 3, 4, 6, -0.0F}));
  std::vector<float> row(4);
  read_rows_as_float(source, source.at("f4"), 1, 1, row);
  EXPECT_EQ(row[0], 3);
  // Codes 1, 2, 31, 63: 0b111111'011111'000010'000001.
  source.add("e2m3", DType::f6_e2m3, {1, 4}, bytes_of<std::uint8_t>({0x81, 0xf0, 0xfd}));
  source.add("e3m2", DType::f6_e3m2, {1, 4}, bytes_of<std::uint8_t>({0x81, 0xf0, 0xfd}));
  EXPECT_EQ(read_as_float(source, source.at("e2m3")), (std::vector<float>{0.125F, 0.25F, 7.5F, -7.5F}));
  EXPECT_EQ(read_as_float(source, source.at("e3m2")), (std::vector<float>{0.0625F, 0.125F, 28, -28}));
}

TEST(Source, ReadsGgufBlocks) {
  MemorySource source;
  std::vector<std::byte> blocks;  // two rows of one Q8_0 block: scale 0.5, codes 0, 1, 2 ...; then the negatives
  for (const int sign : {1, -1}) {
    const auto scale = bytes_of<std::uint16_t>({0x3800});
    blocks.insert(blocks.end(), scale.begin(), scale.end());
    for (int i = 0; i < 32; ++i) blocks.push_back(static_cast<std::byte>(sign * i));
  }
  source.add("q8_0", DType::ggml_block, {2, 32}, blocks, GgmlType::q8_0);
  const std::vector<float> values = read_as_float(source, source.at("q8_0"));
  for (std::size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(values[i], 0.5F * static_cast<float>(i));
    EXPECT_EQ(values[32 + i], -0.5F * static_cast<float>(i));
  }
  source.add("f64", DType::ggml_block, {2, 1}, bytes_of<double>({0.25, -1}), GgmlType::f64);
  EXPECT_EQ(read_as_float(source, source.at("f64")), (std::vector<float>{0.25F, -1}));
}

TEST(Source, RefusesWhatHasNoValueByName) {
  MemorySource source;
  source.add("flag", DType::boolean, {2}, bytes_of<std::uint8_t>({0, 1}));
  source.add("complex", DType::c64, {1}, bytes_of<float>({0, 1}));
  source.add("iq2", DType::ggml_block, {1, 256}, std::vector<std::byte>(66), GgmlType::iq2_xxs);
  for (const char* name : {"flag", "complex", "iq2"}) {
    try {
      read_as_float(source, source.at(name));
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::unsupported);
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("memory.bin"), std::string::npos) << error.what();
    }
  }
}

TEST(Source, FindsByName) {
  MemorySource source;
  EXPECT_EQ(source.find("a"), nullptr);
  for (int i = 0; i < 500; ++i) source.add("t" + std::to_string(i * 7919 % 500), DType::f32, {1}, bytes_of<float>({1}));
  for (int i = 0; i < 500; ++i) {
    const std::string name = "t" + std::to_string(i);
    ASSERT_NE(source.find(name), nullptr) << name;
    EXPECT_EQ(source.at(name).name, name);
  }
  EXPECT_EQ(source.find("t500"), nullptr);
  EXPECT_EQ(source.find(""), nullptr);
  source.add("late", DType::f32, {1}, bytes_of<float>({1}));
  EXPECT_NE(source.find("late"), nullptr);
  try {
    source.at("model.norm.weight");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_input);
    EXPECT_NE(std::string(error.what()).find("model.norm.weight"), std::string::npos);
  }
  MemorySource shared;
  for (int i = 0; i < 300; ++i) shared.add("t" + std::to_string(i), DType::f32, {1}, bytes_of<float>({1}));
  std::vector<std::thread> threads;
  std::vector<int> found(4);
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) found[t] += shared.find("t" + std::to_string(i)) != nullptr;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(found, std::vector<int>(4, 300));
}

}  // namespace
}  // namespace halftone
