#include "checkpoint/gguf.h"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/random.h"
#include "base/testing.h"
#include "checkpoint/testing_files.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

enum Type : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, text, array, u64, i64, f64 };

std::string str(std::string_view s) {
  return little_endian(std::uint64_t{s.size()}) + std::string(s);
}

// Puts a GGUF file together; every part can be given as raw bytes instead.
struct Builder {
  std::uint32_t version = 3;
  std::string pairs, infos, data;
  std::uint64_t pair_count = 0, tensor_count = 0, alignment = 32;

  Builder& raw_pair(std::string_view key, std::uint32_t type, std::string_view value) {
    pairs += str(key) + little_endian(type) + std::string(value);
    ++pair_count;
    return *this;
  }
  template <class T>
  Builder& pair(std::string_view key, std::uint32_t type, T value) {
    return raw_pair(key, type, little_endian(value));
  }
  Builder& list(std::string_view key, std::uint32_t element, std::uint64_t count, std::string_view payload) {
    return raw_pair(key, array, little_endian(element) + little_endian(count) + std::string(payload));
  }
  // `dims`: contiguous one first, as in the file.
  Builder& tensor(std::string_view name, std::vector<std::uint64_t> dims, std::uint32_t type, std::uint64_t offset,
                  std::string_view bytes) {
    infos += str(name) + little_endian(static_cast<std::uint32_t>(dims.size()));
    for (const std::uint64_t d : dims) infos += little_endian(d);
    infos += little_endian(type) + little_endian(offset);
    data += bytes;
    data.resize((data.size() + alignment - 1) / alignment * alignment, '\0');
    ++tensor_count;
    return *this;
  }
  std::string bytes() const {
    std::string all =
        "GGUF" + little_endian(version) + little_endian(tensor_count) + little_endian(pair_count) + pairs + infos;
    if (!data.empty()) all.resize((all.size() + alignment - 1) / alignment * alignment, '\0');
    return all + data;
  }
};

void read_all(const GgufFile& file) {
  std::vector<std::byte> scratch;
  unsigned sum = 0;
  for (const TensorInfo& info : file.tensors()) {
    const auto bytes = file.rows(info, 0, info.rows(), scratch);
    EXPECT_EQ(bytes.size(), info.bytes);
    for (const std::byte b : bytes) sum += std::to_integer<unsigned>(b);
  }
  [[maybe_unused]] static volatile unsigned sink;
  sink = sum;
}

class Gguf : public ::testing::Test {
 protected:
  fs::path write(std::string_view content) {
    put_file(file_, content);
    return file_;
  }
  void expect_refused(const std::string& content, std::initializer_list<std::string_view> parts,
                      ErrorKind kind = ErrorKind::bad_input) {
    const fs::path path = write(content);
    expect_cheap_refusal([&] { const GgufFile opened(path); }, parts, kind);
  }
  void expect_accepted(const std::string& content) {
    EXPECT_EQ(error_of([&] { read_all(GgufFile(write(content))); }), "");
  }
  TempFolder folder_;
  fs::path file_ = folder_.path() / "x.gguf";
};

TEST_F(Gguf, GoldenVerdicts) {
  if (!have_shared()) GTEST_SKIP() << "SKIPPED: no shared/golden";
  // Stricter than the reference: it opens the file without looking at the data, which its model loader refuses later.
  const std::set<std::string> stricter{"data_truncated"};
  const auto cases = nlohmann::json::parse(read_text_file(shared_folder() / "golden" / "gguf_cases.json"));
  ASSERT_GT(cases.size(), 40U);
  for (const auto& [name, one] : cases.items()) {
    const fs::path path = write(from_hex(one.at("hex").get<std::string>()));
    const std::string message = error_of([&] { read_all(GgufFile(path)); });
    const bool wanted = one.at("ggml_c") == "accepted" && !stricter.contains(name);
    EXPECT_EQ(message.empty(), wanted) << name << ": " << message;
  }
}

TEST_F(Gguf, GoldenFileHoldsItsValuesAndTensors) {
  if (!have_shared()) GTEST_SKIP() << "SKIPPED: no shared/golden";
  const GgufFile file(shared_folder() / "golden" / "tiny.gguf");
  EXPECT_EQ(file.version(), 3U);
  EXPECT_EQ(file.string("general.architecture"), "llama");
  EXPECT_EQ(file.string("t.str"), "gr\xC3\xBC\xC3\x9F");
  EXPECT_EQ(file.string("absent"), std::nullopt);
  EXPECT_EQ(file.unsigned_integer("t.u8"), 200U);
  EXPECT_EQ(file.unsigned_integer("t.u16"), 60000U);
  EXPECT_EQ(file.unsigned_integer("t.u32"), 4000000000U);
  EXPECT_EQ(file.unsigned_integer("t.u64"), std::uint64_t{1} << 40);
  EXPECT_EQ(file.number("t.i8"), -3.0);
  EXPECT_EQ(file.number("t.i16"), -300.0);
  EXPECT_EQ(file.number("t.i32"), -7.0);
  EXPECT_EQ(file.number("t.i64"), -1099511627776.0);
  EXPECT_EQ(file.number("t.f32"), static_cast<double>(0.1F));
  EXPECT_EQ(file.number("t.f64"), 0.1);
  EXPECT_EQ(file.number("t.u8"), 200.0);
  EXPECT_EQ(file.boolean("t.bool"), true);
  EXPECT_EQ(file.integers("t.arr_i32"), (std::vector<std::int64_t>{1, -2, 3}));
  EXPECT_EQ(file.numbers("t.arr_i32"), (std::vector<double>{1, -2, 3}));
  ASSERT_NE(file.strings("t.arr_str"), nullptr);
  EXPECT_EQ(*file.strings("t.arr_str"), (std::vector<std::string>{"a", "",
                                                                  "\xC4\xA0"
                                                                  "b"}));
  EXPECT_EQ(file.strings("absent"), nullptr);
  for (const auto& wrong : {error_of([&] { file.string("t.u8"); }), error_of([&] { file.unsigned_integer("t.i8"); }),
                            error_of([&] { file.number("t.str"); }), error_of([&] { file.boolean("t.u8"); }),
                            error_of([&] { file.strings("t.arr_i32"); }), error_of([&] { file.numbers("t.arr_str"); }),
                            error_of([&] { file.integers("t.f64"); })}) {
    EXPECT_NE(wrong.find("metadata key 't."), std::string::npos) << wrong;
    EXPECT_NE(wrong.find("found"), std::string::npos) << wrong;
  }

  ASSERT_EQ(file.tensors().size(), 4U);
  EXPECT_EQ(file.at("a.weight").shape, (Shape{2, 3}));
  EXPECT_EQ(file.at("a.weight").dtype, DType::f32);
  EXPECT_EQ(file.at("b.weight").dtype, DType::f16);
  EXPECT_EQ(file.at("bf.weight").dtype, DType::bf16);
  const TensorInfo& q = file.at("q.weight");
  EXPECT_EQ(q.dtype, DType::ggml_block);
  EXPECT_EQ(q.ggml, GgmlType::q8_0);
  EXPECT_EQ(q.shape, (Shape{4, 64}));
  EXPECT_EQ(q.bytes, 4U * 68U);
  EXPECT_EQ(q.file, "tiny.gguf");
  std::vector<std::byte> scratch;
  float value = 0;
  std::memcpy(&value, file.rows(file.at("a.weight"), 1, 1, scratch).data(), 4);
  EXPECT_EQ(value, 3.0F);
  const std::byte* whole = file.rows(q, 0, 4, scratch).data();
  EXPECT_EQ(file.rows(q, 3, 1, scratch).data() - whole, 3 * 68);
  EXPECT_TRUE(scratch.empty());
  file.forget(q);
  read_all(file);
}

// Every type id from 0 to 63: known ones are read with the bytes of their blocks, others refused by number or name.
TEST_F(Gguf, TensorTypes) {
  for (std::uint32_t id = 0; id < 64; ++id) {
    SCOPED_TRACE(id);
    const GgmlTypeInfo* type = find_ggml_type(id);
    if (type == nullptr) {
      const bool removed = id == 4 || id == 5 || (id >= 31 && id <= 33) || (id >= 36 && id <= 38);
      expect_refused(Builder().tensor("w", {256, 2}, id, 0, std::string(4096, 'x')).bytes(),
                     {"'w'", "type " + std::to_string(id), removed ? "removed" : "unknown"},
                     removed ? ErrorKind::unsupported : ErrorKind::bad_input);
      continue;
    }
    const auto block = static_cast<std::uint64_t>(type->block_elements),
               size = static_cast<std::uint64_t>(type->block_bytes);
    const GgufFile file(write(Builder().tensor("w", {2 * block, 3}, id, 0, std::string(6 * size, 'x')).bytes()));
    EXPECT_EQ(file.at("w").bytes, 6 * size);
    EXPECT_EQ(file.at("w").row_bytes(), 2 * size);
    EXPECT_EQ(file.at("w").dtype == DType::ggml_block, file.at("w").ggml.has_value());
    read_all(file);
    if (block == 1) continue;
    for (const std::uint64_t row : {std::uint64_t{1}, block - 1, block + 1, 2 * block - 2}) {
      expect_refused(Builder().tensor("w", {row, block}, id, 0, std::string(4096, 'x')).bytes(),
                     {"'w'", "not a multiple", type->name});
    }
    // C28: rows whose byte count wraps in 64 bits, or whose element count does.
    for (const std::uint64_t row :
         {std::uint64_t{5124095576030431008U}, std::uint64_t{1} << 62, (std::uint64_t{1} << 63) - block}) {
      expect_refused(Builder().tensor("w", {row / block * block, 1}, id, 0, "").bytes(), {"'w'"});
      expect_refused(Builder().tensor("w", {row / block * block, 4}, id, 0, "").bytes(), {"'w'", "overflow"});
    }
  }
}

TEST_F(Gguf, Dimensions) {
  for (std::uint32_t n = 0; n <= 4; ++n) {
    expect_accepted(Builder().tensor("w", std::vector<std::uint64_t>(n, 2), 0, 0, std::string(4U << n, 'x')).bytes());
  }
  for (const std::uint32_t n : {5U, 9U, 255U, 0x7FFFFFFFU, 0xFFFFFFFFU}) {
    Builder builder;
    builder.tensor("w", {}, 0, 0, std::string(256, 'x'));
    builder.infos = str("w") + little_endian(n) + std::string(200, '\1');
    expect_refused(builder.bytes(), {"'w'", "n_dims", std::to_string(n)});
  }
  const std::uint64_t top = std::uint64_t{1} << 63, half = std::uint64_t{1} << 32;
  for (const std::vector<std::uint64_t>& dims :
       {std::vector<std::uint64_t>{top}, {~std::uint64_t{0}}, {1, top}, {1, 1, 1, ~std::uint64_t{7}}}) {
    expect_refused(Builder().tensor("w", dims, 0, 0, "").bytes(), {"'w'", "negative"});
  }
  for (const std::vector<std::uint64_t>& dims : {std::vector<std::uint64_t>{half, half},
                                                 {top - 1, 2},
                                                 {half, half, 0},
                                                 {0, half, half},
                                                 {65536, 65536, 65536, 65536},
                                                 {top - 1},
                                                 {top / 4, 1}}) {
    expect_refused(Builder().tensor("w", dims, 0, 0, "").bytes(), {"'w'", "overflow"});
  }
  expect_accepted(Builder().tensor("w", {0, 5}, 0, 0, "").tensor("v", {8}, 0, 0, std::string(32, 'x')).bytes());
  expect_accepted(Builder().tensor("w", {32, 0}, 8, 0, "").bytes());
}

TEST_F(Gguf, HeaderFaults) {
  const Builder good = Builder().pair("k", u32, std::uint32_t{1}).tensor("w", {8}, 0, 0, std::string(32, 'x'));
  expect_accepted(good.bytes());
  for (const std::uint32_t version : {2U, 3U}) {
    Builder other = good;
    other.version = version;
    expect_accepted(other.bytes());
    other.version = version << 24;
    expect_refused(other.bytes(), {"big-endian"}, ErrorKind::unsupported);
  }
  for (const std::uint32_t version : {1U, 4U, 100U, 0xFFFFFFFFU}) {
    Builder other = good;
    other.version = version;
    expect_refused(other.bytes(), {"version " + std::to_string(version)}, ErrorKind::unsupported);
  }
  Builder zero = good;
  zero.version = 0;
  expect_refused(zero.bytes(), {"version 0"});
  for (const std::string magic : {"GGUX", "ggml", "FUGG", "\n\n\n\n"}) {
    expect_refused(magic + good.bytes().substr(4), {"not a GGUF file"});
  }
  expect_refused("", {"empty"});
  expect_refused("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 77\n", {"Git LFS pointer", "77"});
  expect_refused(safetensors_bytes("{}      ", ""), {"safetensors"});
}

// C27: counts and lengths that no file of this size can hold.
TEST_F(Gguf, AbsurdCountsAreRefusedAtOnce) {
  for (int shift = 20; shift < 64; ++shift) {
    for (const std::uint64_t count :
         {std::uint64_t{1} << shift, (std::uint64_t{1} << shift) - 1, ~std::uint64_t{0} >> (63 - shift)}) {
      SCOPED_TRACE(count);
      const std::string number = std::to_string(count);
      Builder builder;
      builder.pair_count = count;
      expect_refused(builder.bytes(), {"kv_count", number});
      builder.pair_count = 0;
      builder.tensor_count = count;
      expect_refused(builder.bytes(), {"tensor_count", number});
      builder = Builder().pair("k", u8, std::uint8_t{1});
      builder.pairs.replace(0, 8, little_endian(count));
      expect_refused(builder.bytes() + std::string(64, 'x'), {"key 0", number});
      expect_refused(Builder().raw_pair("k", text, little_endian(count)).bytes(), {"'k'", number});
      for (const std::uint32_t element : {u8, i16, f32, boolean, text, u64, f64}) {
        expect_refused(Builder().list("k", element, count, "").bytes(), {"'k'", "array length", number});
        expect_refused(Builder().list("k", element, count, std::string(500, 'x')).bytes(),
                       {"'k'", "array length", number});
      }
    }
  }
  // Strings inside of an array, and names of tensors.
  const std::string huge = little_endian(std::uint64_t{1} << 40);
  expect_refused(Builder().list("tokenizer.ggml.tokens", text, 3, str("a") + huge + str("b")).bytes(),
                 {"tokenizer.ggml.tokens"});
  Builder builder;
  builder.tensor_count = 1;
  builder.infos = huge + std::string(100, 'n');
  expect_refused(builder.bytes(), {"name of tensor 0"});
}

TEST_F(Gguf, MetadataFaults) {
  expect_refused(Builder().pair("", u32, std::uint32_t{1}).bytes(), {"key 0 is empty"});
  expect_refused(Builder().pair("a", u32, std::uint32_t{1}).pair("", u32, std::uint32_t{1}).bytes(),
                 {"key 1 is empty"});
  expect_refused(Builder()
                     .pair("k", u32, std::uint32_t{1})
                     .pair("j", u8, std::uint8_t{1})
                     .pair("k", u32, std::uint32_t{1})
                     .bytes(),
                 {"'k'", "twice"});
  for (const std::uint32_t type : {13U, 14U, 255U, 0xFFFFFFFFU}) {
    expect_refused(Builder().raw_pair("k", type, std::string(32, '\0')).bytes(),
                   {"'k'", "value type", std::to_string(type)});
    expect_refused(Builder().list("k", type, 1, std::string(32, '\0')).bytes(),
                   {"'k'", "element type", std::to_string(type)});
  }
  // Nested 1 to 10,000 deep.
  for (const int depth : {1, 2, 100, 10'000}) {
    std::string nested;
    for (int i = 0; i < depth; ++i) nested += little_endian(std::uint32_t{array}) + little_endian(std::uint64_t{1});
    nested += little_endian(std::uint32_t{u8}) + little_endian(std::uint64_t{1}) + "x";
    expect_refused(Builder().raw_pair("k", array, nested).bytes(), {"'k'", "arrays inside of arrays"});
  }
  // Arrays without elements are sound, of any type.
  for (const std::uint32_t element : {u8, i8, u16, i16, u32, i32, f32, boolean, text, u64, i64, f64}) {
    expect_accepted(Builder().list("k", element, 0, "").bytes());
  }
  const GgufFile file(write(Builder()
                                .list("tokenizer.ggml.tokens", text, 0, "")
                                .list("tokenizer.ggml.merges", text, 0, "")
                                .list("tokenizer.ggml.scores", f32, 0, "")
                                .bytes()));
  EXPECT_TRUE(file.strings("tokenizer.ggml.tokens")->empty());
  EXPECT_TRUE(file.strings("tokenizer.ggml.merges")->empty());
  EXPECT_TRUE(file.numbers("tokenizer.ggml.scores")->empty());
}

// C28: keys that the format gives a type, in every other type.
TEST_F(Gguf, KnownKeysHaveTheirType) {
  const std::uint32_t scalars[] = {u8, i8, u16, i16, u32, i32, f32, boolean, u64, i64, f64};
  const std::string zeros(16, '\0');
  const auto size = [](std::uint32_t type) {
    return std::size_t{type == u8 || type == i8 || type == boolean ? 1U
                       : type == u16 || type == i16                ? 2U
                       : type >= u64                               ? 8U
                                                                   : 4U};
  };
  for (const std::uint32_t type : scalars) {
    SCOPED_TRACE(type);
    std::string value(size(type), '\0');
    value[0] = 32;
    Builder builder = Builder().raw_pair("general.alignment", type, value);
    type == u32 ? expect_accepted(builder.bytes()) : expect_refused(builder.bytes(), {"general.alignment", "u32"});
    expect_refused(Builder().raw_pair("general.architecture", type, value).bytes(), {"general.architecture", "string"});
    for (const auto& [key, element] :
         {std::pair{"tokenizer.ggml.scores", f32}, std::pair{"tokenizer.ggml.token_type", i32},
          std::pair{"tokenizer.ggml.tokens", text}, std::pair{"tokenizer.ggml.merges", text}}) {
      expect_refused(Builder().raw_pair(key, type, value).bytes(), {key, "array"});
      const bool right = type == element || (element == i32 && type == u32);
      const std::string list = Builder().list(key, type, 2, zeros.substr(0, 2 * size(type))).bytes();
      right ? expect_accepted(list) : expect_refused(list, {key, "array of"});
    }
  }
}

TEST_F(Gguf, Alignment) {
  for (std::uint64_t bit = 0; bit < 32; ++bit) {
    const auto alignment = static_cast<std::uint32_t>(std::uint64_t{1} << bit);
    SCOPED_TRACE(alignment);
    Builder builder;
    builder.alignment = bit <= 12 ? alignment : 32;
    builder.pair("general.alignment", u32, alignment);
    if (bit <= 12) {
      builder.tensor("a", {3}, 24, 0, "abc").tensor("b", {2}, 24, (3U + alignment - 1) / alignment * alignment, "de");
      const GgufFile file(write(builder.bytes()));
      std::vector<std::byte> scratch;
      EXPECT_EQ(std::memcmp(file.rows(file.at("b"), 0, 1, scratch).data(), "de", 2), 0);
    } else if (bit > 20) {
      expect_refused(builder.bytes(), {"general.alignment", std::to_string(alignment)});
    }
    if (bit >= 2) {
      expect_refused(Builder().pair("general.alignment", u32, alignment - 1).bytes(), {"general.alignment"});
    }
  }
  expect_refused(Builder().pair("general.alignment", u32, std::uint32_t{0}).bytes(), {"general.alignment is 0"});
}

TEST_F(Gguf, OffsetsAreTheRunningPaddedSum) {
  const std::string data(40, 'x');
  expect_accepted(Builder().tensor("a", {10}, 0, 0, data).tensor("b", {10}, 0, 64, data).bytes());
  for (const std::uint64_t offset : {0U, 4U, 32U, 40U, 63U, 96U, 1U << 30}) {
    expect_refused(Builder().tensor("a", {10}, 0, 0, data).tensor("b", {10}, 0, offset, data).bytes(),
                   {"'b'", "offset is " + std::to_string(offset), "64"});
  }
  for (const std::uint64_t offset : {std::uint64_t{1}, std::uint64_t{32}, ~std::uint64_t{0}, ~std::uint64_t{31}}) {
    expect_refused(Builder().tensor("a", {10}, 0, offset, data).bytes(), {"'a'", "offset"});
  }
  expect_refused(Builder().tensor("a", {10}, 0, 64, data).tensor("b", {10}, 0, 0, data).bytes(), {"'a'", "offset"});
  expect_refused(Builder().tensor("a", {10}, 0, 0, data).tensor("a", {10}, 0, 64, data).bytes(), {"'a'", "twice"});
  // Sizes that only together pass 2^63.
  const std::uint64_t third = (std::uint64_t{1} << 61);
  Builder sum;
  for (std::uint64_t i = 0; i < 4; ++i)
    sum.tensor(std::string(1, static_cast<char>('a' + i)), {third}, 24, i * third, "");
  expect_refused(sum.bytes(), {"'d'", "overflow"});
}

TEST_F(Gguf, NamesUpTo63Bytes) {
  for (const std::size_t size : {0U, 1U, 62U, 63U, 64U, 65U, 1000U}) {
    const std::string bytes = Builder().tensor(std::string(size, 'n'), {8}, 0, 0, std::string(32, 'x')).bytes();
    size <= 63 ? expect_accepted(bytes) : expect_refused(bytes, {"name of tensor 0", std::to_string(size), "63"});
  }
}

TEST_F(Gguf, SplitFilesAreNamed) {
  const auto split = [](std::uint16_t no, std::uint16_t count) {
    return Builder()
        .pair("split.no", u16, no)
        .pair("split.count", u16, count)
        .tensor("w", {8}, 0, 0, std::string(32, 'x'))
        .bytes();
  };
  expect_accepted(split(0, 0));
  expect_accepted(split(0, 1));
  expect_refused(split(0, 2), {"part 1", "2 files", "join"}, ErrorKind::unsupported);
  expect_refused(split(2, 5), {"part 3", "5 files", "join"}, ErrorKind::unsupported);
}

// C22: cut anywhere.
TEST_F(Gguf, TruncationNamesSizesAndFirstLostTensor) {
  const std::string whole = Builder()
                                .pair("k", u32, std::uint32_t{1})
                                .list("l", text, 2, str("ab") + str("cd"))
                                .tensor("first", {10}, 0, 0, std::string(40, 'x'))
                                .tensor("none", {0}, 0, 64, "")
                                .tensor("second", {32}, 8, 64, std::string(34, 'y'))
                                .bytes();
  const std::size_t end = whole.size() - (64 - 34);  // the last tensor's padding may be missing
  const std::size_t data = whole.size() - 128;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    SCOPED_TRACE(size);
    if (size >= end) {
      expect_accepted(whole.substr(0, size));
    } else if (size > data) {
      expect_refused(whole.substr(0, size), {"expected " + std::to_string(end), "has " + std::to_string(size),
                                             size < data + 40 ? "'first'" : "'second'", "download it again"});
    } else {
      expect_refused(whole.substr(0, size), {"x.gguf"});
    }
  }
}

TEST_F(Gguf, RandomDamageOnlyEverThrowsError) {
  std::string whole;
  if (have_shared()) {
    whole = read_text_file(shared_folder() / "golden" / "tiny.gguf");
  } else {
    whole = Builder()
                .pair("k", u32, std::uint32_t{1})
                .list("l", text, 2, str("ab") + str("cd"))
                .tensor("q", {32, 2}, 8, 0, std::string(68, 'y'))
                .bytes();
  }
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write(whole.substr(0, size));
    error_of([&] { read_all(GgufFile(file_)); });
    if (HasFailure()) FAIL() << "prefix " << size;
  }
  CounterRng rng(27);
  for (int round = 0; round < 6000; ++round) {
    std::string damaged = whole;
    for (std::uint32_t n = rng.next_bits() % 4 + 1; n > 0; --n) {
      const std::size_t at = rng.next_bits() % damaged.size();
      switch (rng.next_bits() % 4) {
        case 0:
          damaged[at] = static_cast<char>(rng.next_bits());
          break;
        case 1:
          damaged[at] = static_cast<char>(static_cast<unsigned char>(damaged[at]) ^ (1U << (rng.next_bits() % 8)));
          break;
        case 2: {  // a wild 64-bit number
          const std::string wild = little_endian(std::uint64_t{1} << (rng.next_bits() % 64));
          damaged.replace(at, 8, wild);
          break;
        }
        default:
          damaged.erase(at, rng.next_bits() % 9 + 1);
      }
      if (damaged.empty()) damaged = "x";
    }
    write(damaged);
    error_of([&] { read_all(GgufFile(file_)); });
    if (HasFailure()) FAIL() << "round " << round;
  }
}

}  // namespace
}  // namespace halftone
