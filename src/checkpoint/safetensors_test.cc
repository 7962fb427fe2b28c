#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "base/random.h"
#include "base/testing.h"
#include "checkpoint/file_kind.h"
#include "checkpoint/testing_files.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

std::string entry(std::string_view name, std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape, offsets);
}

std::string header(std::initializer_list<std::string> entries) {
  std::string text = "{";
  for (const std::string& one : entries) text += (text.size() > 1 ? "," : "") + one;
  return text + "}";
}

std::vector<std::byte> all_bytes(const TensorSource& source, const TensorInfo& info) {
  std::vector<std::byte> scratch;
  const auto bytes = source.rows(info, 0, info.rows(), scratch);
  return {bytes.begin(), bytes.end()};
}

// Touches every byte that a source offers, so that the sanitizer sees wrong bounds.
void read_all(const TensorSource& source) {
  for (const TensorInfo& info : source.tensors()) all_bytes(source, info);
}

class Safetensors : public ::testing::Test {
 protected:
  fs::path write(std::string_view content) {
    put_file(file_, content);
    return file_;
  }
  void expect_refused(const std::string& content, std::initializer_list<std::string_view> parts) {
    const fs::path path = write(content);
    expect_cheap_refusal([&] { const SafetensorsFile opened(path); }, parts);
  }
  TempFolder folder_;
  fs::path file_ = folder_.path() / "x.safetensors";
};

TEST_F(Safetensors, GoldenVerdicts) {
  if (!have_shared()) GTEST_SKIP() << "SKIPPED: no shared/golden";
  const auto cases = nlohmann::json::parse(read_text_file(shared_folder() / "golden" / "safetensors_cases.json"));
  ASSERT_GT(cases.size(), 10U);
  for (const auto& [name, one] : cases.items()) {
    const fs::path path = write(from_hex(one.at("hex").get<std::string>()));
    const std::string message = error_of([&] { read_all(SafetensorsFile(path)); });
    EXPECT_EQ(message.empty(), one.at("safetensors") == "accepted") << name << ": " << message;
  }
}

TEST_F(Safetensors, GoldenFileHoldsItsTensors) {
  if (!have_shared()) GTEST_SKIP() << "SKIPPED: no shared/golden";
  const SafetensorsFile file(shared_folder() / "golden" / "tiny.safetensors");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  const std::map<std::string, std::pair<DType, Shape>> expected{
      {"i64", {DType::i64, {}}},         {"empty", {DType::f32, {0, 4}}}, {"f32", {DType::f32, {2, 2}}},
      {"bf16", {DType::bf16, {3}}},      {"e8m0", {DType::f8_e8m0, {2}}}, {"f8e4m3", {DType::f8_e4m3, {4}}},
      {"f8e5m2", {DType::f8_e5m2, {2}}}, {"u8", {DType::u8, {3}}},        {"f4", {DType::f4, {2, 4}}},
      {"bool", {DType::boolean, {2}}}};
  ASSERT_EQ(file.tensors().size(), expected.size());
  for (const TensorInfo& info : file.tensors()) {
    ASSERT_TRUE(expected.contains(info.name)) << info.name;
    EXPECT_EQ(info.dtype, expected.at(info.name).first) << info.name;
    EXPECT_EQ(info.shape, expected.at(info.name).second) << info.name;
    EXPECT_EQ(info.bytes, all_bytes(file, info).size()) << info.name;
    EXPECT_EQ(info.file, "tiny.safetensors");
    file.forget(info);
  }
  EXPECT_EQ(file.tensors().front().name, "i64");  // file order
}

TEST_F(Safetensors, EveryDtypeGoesThroughHeaderAndBack) {
  std::vector<TensorInfo> infos;
  std::string data;
  for (int d = 0; d < static_cast<int>(DType::ggml_block); ++d) {
    TensorInfo info;
    info.dtype = static_cast<DType>(d);
    info.name = std::string("t.\"\xC3\xBC\\ ") + std::string(dtype_name(info.dtype));
    info.shape = {3, 8};
    info.bytes = static_cast<std::uint64_t>(3 * dtype_bits(info.dtype));
    for (std::uint64_t i = 0; i < info.bytes; ++i) data += static_cast<char>(17 * i + static_cast<std::uint64_t>(d));
    infos.push_back(info);
  }
  const std::string head = safetensors_header(infos, {{"k", "v"}});
  EXPECT_EQ(head.size() % 8, 0U);
  EXPECT_EQ(head, safetensors_header(infos, {{"k", "v"}}));
  const SafetensorsFile file(write(head + data));
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"k", "v"}}));
  ASSERT_EQ(file.tensors().size(), infos.size());
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < infos.size(); ++i) {
    const TensorInfo& info = file.tensors()[i];
    EXPECT_EQ(info.name, infos[i].name);
    EXPECT_EQ(info.dtype, infos[i].dtype);
    EXPECT_EQ(info.bytes, infos[i].bytes);
    std::vector<std::byte> scratch;
    for (std::int64_t r = 0; r < 3; ++r) {
      const auto row = file.rows(info, r, 1, scratch);
      ASSERT_EQ(row.size(), info.row_bytes());
      EXPECT_EQ(std::memcmp(row.data(), data.data() + at, row.size()), 0) << info.name;
      EXPECT_TRUE(scratch.empty());  // zero copy
      at += row.size();
    }
  }
}

// Rows of sub-byte elements that share bytes are each moved to a byte bound.
TEST_F(Safetensors, SubByteRowsAreRealigned) {
  for (const auto& [dtype, bits] : {std::pair{"F4", 4}, std::pair{"F6_E2M3", 6}, std::pair{"F6_E3M2", 6}}) {
    for (const int cols : {1, 2, 3, 5, 7}) {
      const int rows = 8, total = rows * cols * bits / 8;
      std::string data(static_cast<std::size_t>(total), '\0');
      const auto code = [&](int element) { return (element * 11 + 5) & ((1 << bits) - 1); };
      for (int e = 0; e < rows * cols; ++e) {
        for (int b = 0; b < bits; ++b) {
          const int bit = e * bits + b;
          if ((code(e) >> b & 1) != 0) data[static_cast<std::size_t>(bit / 8)] |= static_cast<char>(1 << (bit % 8));
        }
      }
      const SafetensorsFile file(write(safetensors_bytes(
          header({entry("a", dtype, fmt::format("[{},{}]", rows, cols), fmt::format("[0,{}]", total))}), data)));
      std::vector<std::byte> scratch;
      const auto bytes = file.rows(file.at("a"), 3, 5, scratch);
      const auto row_bytes = static_cast<std::size_t>((cols * bits + 7) / 8);
      ASSERT_EQ(bytes.size(), 5 * row_bytes);
      for (int r = 0; r < 5; ++r) {
        for (int c = 0; c < cols; ++c) {
          int got = 0;
          for (int b = 0; b < bits; ++b) {
            const int bit = c * bits + b;
            const auto byte = std::to_integer<int>(
                bytes[static_cast<std::size_t>(r) * row_bytes + static_cast<std::size_t>(bit / 8)]);
            got |= (byte >> (bit % 8) & 1) << b;
          }
          EXPECT_EQ(got, code((r + 3) * cols + c)) << dtype << " cols " << cols;
        }
      }
    }
  }
}

// users.md C18: data_offsets declare more or less than the shape needs, in every dtype and place.
TEST_F(Safetensors, ShapeAndOffsetsMustAgree) {
  for (int d = 0; d < static_cast<int>(DType::ggml_block); ++d) {
    const std::string_view dtype = dtype_name(static_cast<DType>(d));
    const std::uint64_t needed = 32 * 8 * static_cast<std::uint64_t>(dtype_bits(static_cast<DType>(d))) / 8;
    for (const std::uint64_t declared :
         {std::uint64_t{0}, needed - 1, needed + 1, 64 * needed, std::uint64_t{1} << 62}) {
      expect_refused(safetensors_bytes(header({entry("w", dtype, "[32,8]", fmt::format("[0,{}]", declared))}),
                                       std::string(needed, 'x')),
                     {"'w'", std::to_string(needed), std::to_string(declared)});
    }
  }
}

// C19: products that wrap, to zero and elsewhere; dimensions that are negative or no integers.
TEST_F(Safetensors, ShapeOverflowAndOddDimensions) {
  for (const char* shape :
       {"[4294967296,4294967296]", "[4611686018427387904,8]", "[9223372036854775807,2]",
        "[9223372036854775807,9223372036854775807]", "[65536,65536,65536,65536]", "[0,4611686018427387904,8]",
        "[4611686018427387904,8,0]", "[2305843009213693952,1]", "[9223372036854775808]", "[18446744073709551615]"}) {
    for (const char* dtype : {"F64", "F32"}) {
      if (std::string_view(shape) == "[2305843009213693952,1]" && std::string_view(dtype) == "F32") {
        dtype = "C64";  // 2^61 * 64 bits wrap, too
      }
      expect_refused(safetensors_bytes(header({entry("w", dtype, shape, "[0,0]")}), ""), {"'w'", "overflow"});
    }
  }
  const std::pair<const char*, const char*> odd[] = {{"[-1]", "negative"},
                                                     {"[-0]", "negative"},
                                                     {"[4,-2]", "negative"},
                                                     {"[-9223372036854775808]", "negative"},
                                                     {"[1.0]", "integer"},
                                                     {"[1e2]", "integer"},
                                                     {"[18446744073709551616]", "integer"},
                                                     {"[\"1\"]", "integers"},
                                                     {"[null]", "integers"},
                                                     {"[true]", "integers"},
                                                     {"[[1]]", "integers"},
                                                     {"[{}]", "integers"},
                                                     {"1", "array of integers"},
                                                     {"null", "array of integers"},
                                                     {"\"1\"", "array of integers"},
                                                     {"{}", "array of integers"}};
  for (const auto& [shape, word] : odd) {
    expect_refused(safetensors_bytes(header({entry("w", "U8", shape, "[0,1]")}), "x"), {"'w'", "shape", word});
    expect_refused(safetensors_bytes(header({entry("w", "U8", "[1]", shape)}), "x"), {"'w'", "data_offsets"});
  }
  std::string many = "[1";
  for (int i = 0; i < 100; ++i) many += ",1";
  expect_refused(safetensors_bytes(header({entry("w", "U8", many + "]", "[0,1]")}), "x"), {"'w'", "64 dimensions"});
}

// C20: one fault each.
TEST_F(Safetensors, HeaderFaults) {
  const std::string good = entry("a", "U8", "[2]", "[0,2]");
  const struct {
    std::string name, content;
    std::initializer_list<std::string_view> parts;
  } cases[] = {
      {"header length past the end", little_endian(std::uint64_t{4096}) + header({good}) + "xx", {"4104", "header"}},
      {"header length 2^63", little_endian(std::uint64_t{1} << 63) + header({good}), {"limit"}},
      {"header length 2^64-1", little_endian(~std::uint64_t{0}) + header({good}), {"limit"}},
      {"header length 0", little_endian(std::uint64_t{0}) + "{}", {"begin with '{'"}},
      {"space before", safetensors_bytes(" {}", ""), {"begin with '{'"}},
      {"duplicate tensor",
       safetensors_bytes(header({good, entry("a", "U8", "[1]", "[2,3]")}), "xxx"),
       {"duplicate key 'a'"}},
      {"duplicate metadata block",
       safetensors_bytes(R"({"__metadata__":{},"__metadata__":{}})", ""),
       {"duplicate key '__metadata__'"}},
      {"duplicate metadata", safetensors_bytes(R"({"__metadata__":{"k":"1","k":"2"}})", ""), {"duplicate key 'k'"}},
      {"duplicate by escape",
       safetensors_bytes(header({good, entry("\\u0061", "U8", "[1]", "[2,3]")}), "xxx"),
       {"duplicate key 'a'"}},
      {"duplicate field",
       safetensors_bytes(R"({"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", "x"),
       {"'a'", "duplicate key 'dtype'"}},
      {"duplicate shape",
       safetensors_bytes(R"({"a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}})", "x"),
       {"'a'", "duplicate key 'shape'"}},
      {"overlap",
       safetensors_bytes(header({good, entry("b", "U8", "[2]", "[1,3]")}), "xxx"),
       {"'b'", "overlap", "'a'"}},
      {"same bytes",
       safetensors_bytes(header({good, entry("b", "U8", "[2]", "[0,2]")}), "xx"),
       {"'b'", "overlap", "'a'"}},
      {"hole", safetensors_bytes(header({good, entry("b", "U8", "[1]", "[3,4]")}), "xxxx"), {"'b'", "hole of 1 bytes"}},
      {"hole at the start", safetensors_bytes(header({entry("b", "U8", "[1]", "[1,2]")}), "xx"), {"'b'", "hole"}},
      {"trailing", safetensors_bytes(header({good}), "xxy"), {"1 bytes trail"}},
      {"reversed", safetensors_bytes(header({entry("a", "U8", "[0]", "[1,0]")}), "x"), {"'a'", "reversed"}},
      {"unknown dtype, wild offsets",
       safetensors_bytes(header({entry("a", "F7", "[2]", "[18446744073709551615,1]")}), "xx"),
       {"'a'", "unknown dtype 'F7'"}},
      {"dtype of GGUF",
       safetensors_bytes(header({entry("a", "GGML", "[2]", "[0,2]")}), "xx"),
       {"unknown dtype 'GGML'"}},
      {"offsets near 2^64",
       safetensors_bytes(header({entry("a", "U8", "[2]", "[18446744073709551613,18446744073709551615]")}), "xx"),
       {"'a'", "hole"}},
      {"sub-byte total", safetensors_bytes(header({entry("a", "F4", "[3]", "[0,2]")}), "xx"), {"'a'", "12 bits"}},
      {"sub-byte total 6",
       safetensors_bytes(header({entry("a", "F6_E3M2", "[2]", "[0,2]")}), "xx"),
       {"'a'", "12 bits"}},
      {"bad UTF-8 in a name", safetensors_bytes("{\"\xff\":1}", ""), {"not UTF-8", "byte 2"}},
      {"bad UTF-8: surrogate", safetensors_bytes("{\"\xED\xA0\x80\":1}", ""), {"not UTF-8"}},
      {"bad UTF-8: overlong", safetensors_bytes("{\"\xC0\x80\":1}", ""), {"not UTF-8"}},
      {"metadata not a string",
       safetensors_bytes(R"({"__metadata__":{"x":1}})", ""),
       {"__metadata__", "'x'", "string"}},
      {"metadata nested", safetensors_bytes(R"({"__metadata__":{"x":{}}})", ""), {"__metadata__", "'x'", "an object"}},
      {"metadata null", safetensors_bytes(R"({"__metadata__":null})", ""), {"'__metadata__'", "null"}},
      {"not JSON", safetensors_bytes("{oops}", ""), {"not valid JSON"}},
      {"cut JSON", safetensors_bytes(R"({"a":{"dtype":"U8")", ""), {"not valid JSON"}},
      {"text after JSON", safetensors_bytes("{} {}", ""), {"not valid JSON"}},
      {"zero after JSON", safetensors_bytes(std::string("{}\0{}", 5), ""), {"zero byte"}},
      {"comment", safetensors_bytes("{/**/}", ""), {"not valid JSON"}},
      {"entry a number", safetensors_bytes(R"({"a":1})", ""), {"'a'", "object"}},
      {"entry an array", safetensors_bytes(R"({"a":[]})", ""), {"'a'", "object"}},
      {"unknown field",
       safetensors_bytes(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})", "x"),
       {"'a'", "unknown field 'x'"}},
      {"no dtype",
       safetensors_bytes(R"({"a":{"shape":[1],"data_offsets":[0,1]}})", "x"),
       {"'a'", "'dtype' is missing"}},
      {"no shape",
       safetensors_bytes(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", "x"),
       {"'a'", "'shape' is missing"}},
      {"no offsets",
       safetensors_bytes(R"({"a":{"dtype":"U8","shape":[1]}})", "x"),
       {"'a'", "'data_offsets' is missing"}},
      {"one offset", safetensors_bytes(header({entry("a", "U8", "[1]", "[0]")}), "x"), {"'a'", "two numbers"}},
      {"three offsets", safetensors_bytes(header({entry("a", "U8", "[1]", "[0,1,1]")}), "x"), {"'a'", "two numbers"}},
      {"too short", std::string(3, '\1'), {"3 bytes"}},
      {"empty", "", {"empty"}},
      {"LFS pointer",
       "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4096\n",
       {"Git LFS pointer", "4096", "git lfs pull"}},
      {"web page", "<!DOCTYPE html><html><body>404</body></html>", {"web page"}},
      {"pickle", std::string("PK\x03\x04", 4) + std::string(60, 'x'), {"pickled"}},
      {"GGUF", "GGUF" + std::string(60, '\0'), {"GGUF file"}},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.name);
    expect_refused(one.content, one.parts);
  }
}

// The length bytes of a header can look like the magic of another kind of file (0x280 begins like a pickle).
TEST_F(Safetensors, EveryHeaderLengthIsAccepted) {
  const std::string json = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  for (std::size_t length = json.size(); length < 1100; ++length) {
    const fs::path path = write(safetensors_bytes(json + std::string(length - json.size(), ' '), "x"));
    EXPECT_EQ(error_of([&] { SafetensorsFile file(path); }), "") << length;
  }
}

TEST_F(Safetensors, DeepNestingIsRefusedWithoutRecursion) {
  for (const std::string open : {"[", "{\"a\":", "{\"a\":{\"shape\":[", "{\"__metadata__\":{\"a\":"}) {
    std::string deep = "{\"a\":";
    while (deep.size() < 100'000) deep += open;
    expect_refused(safetensors_bytes(deep, ""), {"x.safetensors"});
    deep = open == "[" ? "{\"weight_map\":{},\"x\":" : "{\"x\":";
    while (deep.size() < 100'000) deep += open;
    put_file(folder_.path() / "model.safetensors.index.json", deep);
    expect_cheap_refusal([&] { const ShardedSafetensors opened(folder_.path()); }, {"index.json"});
  }
}

// C22: cut by any number of bytes: sizes and the first lost tensor are named.
TEST_F(Safetensors, TruncationNamesSizesAndFirstLostTensor) {
  const std::string head = header({entry("first", "F32", "[4]", "[0,16]"), entry("none", "F32", "[0]", "[16,16]"),
                                   entry("second", "U8", "[8]", "[16,24]"), entry("third", "U8", "[1]", "[24,25]")});
  const std::string whole = safetensors_bytes(head, std::string(25, 'd'));
  EXPECT_EQ(error_of([&] { read_all(SafetensorsFile(write(whole))); }), "");
  const std::size_t data = whole.size() - 25;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    SCOPED_TRACE(size);
    if (size < data) {
      expect_refused(whole.substr(0, size), {"download"});
      continue;
    }
    const std::size_t kept = size - data;
    expect_refused(whole.substr(0, size), {"expected " + std::to_string(whole.size()), "has " + std::to_string(size),
                                           kept < 16   ? "'first'"
                                           : kept < 24 ? "'second'"
                                                       : "'third'",
                                           "download it again"});
  }
}

TEST_F(Safetensors, RandomDamageOnlyEverThrowsError) {
  std::string whole;
  if (have_shared()) {
    whole = read_text_file(shared_folder() / "golden" / "tiny.safetensors");
  } else {
    whole = safetensors_bytes(header({entry("a", "F32", "[2,2]", "[0,16]"), entry("b", "F4", "[2,3]", "[16,19]")}),
                              std::string(19, 'd'));
  }
  CounterRng rng(20);
  const std::string_view interesting = "0123456789-{}[]\",:.eE\\\xff\x80";
  for (int round = 0; round < 4000; ++round) {
    std::string damaged = whole;
    for (std::uint32_t n = rng.next_bits() % 4 + 1; n > 0; --n) {
      const std::size_t at = rng.next_bits() % damaged.size();
      switch (rng.next_bits() % 4) {
        case 0:
          damaged[at] = static_cast<char>(rng.next_bits());
          break;
        case 1:
          damaged[at] = interesting[rng.next_bits() % interesting.size()];
          break;
        case 2:
          damaged.erase(at, rng.next_bits() % 9 + 1);
          break;
        default:
          damaged.insert(at, damaged.substr(rng.next_bits() % damaged.size(), rng.next_bits() % 40));
      }
      if (damaged.empty()) damaged = "x";
    }
    write(damaged);
    error_of([&] { read_all(SafetensorsFile(file_)); });
    if (HasFailure()) FAIL() << "round " << round;
  }
}

TEST_F(Safetensors, HeaderWriterRefusesWhatNoReaderTakes) {
  TensorInfo info;
  info.dtype = DType::u8;
  info.shape = {2};
  info.bytes = 2;
  for (const std::string name : {"__metadata__", "bad\xff"}) {
    info.name = name;
    EXPECT_NE(error_of([&] { safetensors_header({info}); }), "") << name;
  }
  info.name = "a";
  EXPECT_NE(error_of([&] { safetensors_header({info, info}); }).find("'a'"), std::string::npos);
  EXPECT_NE(error_of([&] { safetensors_header({info}, {{"k", "\xff"}}); }).find("'k'"), std::string::npos);
  info.bytes = 3;
  EXPECT_THROW(safetensors_header({info}), CheckFailed);
}

class Sharded : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int i = 1; i <= 3; ++i) write_shard(shard(i), {fmt::format("t{}", 2 * i), fmt::format("t{}", 2 * i + 1)});
    write_index(map());
  }
  static std::string shard(int i) { return fmt::format("model-{:05}-of-00003.safetensors", i); }
  static std::map<std::string, std::string> map() {
    std::map<std::string, std::string> all;
    for (int i = 1; i <= 3; ++i) all[fmt::format("t{}", 2 * i)] = all[fmt::format("t{}", 2 * i + 1)] = shard(i);
    return all;
  }
  void write_shard(const std::string& name, const std::vector<std::string>& tensors) {
    std::vector<TensorInfo> infos;
    std::string data;
    for (const std::string& tensor : tensors) {
      TensorInfo info;
      info.name = tensor;
      info.dtype = DType::u8;
      info.shape = {2};
      info.bytes = 2;
      infos.push_back(info);
      data += tensor.substr(0, 2);
    }
    put_file(folder_.path() / name, safetensors_header(infos) + data);
  }
  void write_index(const std::map<std::string, std::string>& weight_map) {
    nlohmann::json index;
    index["metadata"] = {{"total_size", 12}, {"more", {1, {{"deep", nullptr}}}}};
    index["weight_map"] = weight_map;
    write_index(index.dump(2));
  }
  void write_index(const std::string& text) { put_file(folder_.path() / "model.safetensors.index.json", text); }
  void expect_refused(std::initializer_list<std::string_view> parts) {
    expect_cheap_refusal([&] { const ShardedSafetensors opened(folder_.path()); }, parts);
  }
  TempFolder folder_;
};

TEST_F(Sharded, ReadsAllShards) {
  const ShardedSafetensors source(folder_.path());
  ASSERT_EQ(source.tensors().size(), 6U);
  for (const TensorInfo& info : source.tensors()) {
    const auto bytes = all_bytes(source, info);
    EXPECT_EQ(std::memcmp(bytes.data(), info.name.data(), 2), 0);
    EXPECT_EQ(info.file, map().at(info.name));
    source.forget(info);
  }
  EXPECT_EQ(source.files().size(), 4U);
  EXPECT_EQ(source.files().back().filename(), "model.safetensors.index.json");
}

// C23: every subset of missing shards is listed by base name.
TEST_F(Sharded, MissingShardsAreListed) {
  for (int missing = 1; missing < 8; ++missing) {
    SetUp();
    for (int i = 1; i <= 3; ++i) {
      if ((missing >> (i - 1) & 1) != 0) fs::remove(folder_.path() / shard(i));
    }
    const std::string message = error_of([&] { const ShardedSafetensors opened(folder_.path()); });
    for (int i = 1; i <= 3; ++i) {
      EXPECT_EQ(message.find("'" + shard(i) + "'") != std::string::npos, (missing >> (i - 1) & 1) != 0) << message;
    }
  }
}

TEST_F(Sharded, CutShardIsNamed) {
  for (const double part : {0.0, 0.25, 0.75, 0.99}) {
    SetUp();
    const fs::path path = folder_.path() / shard(2);
    const auto size = fs::file_size(path);
    fs::resize_file(path, static_cast<std::uintmax_t>(static_cast<double>(size) * part));
    expect_refused({shard(2), "download"});
  }
  SetUp();
  put_file(folder_.path() / shard(3), "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 123\n");
  expect_refused({shard(3), "Git LFS pointer", "123"});
}

TEST_F(Sharded, IndexAndShardsMustAgree) {
  auto weight_map = map();
  weight_map["ghost"] = shard(1);
  write_index(weight_map);
  expect_refused({"'ghost'", "no file has"});
  weight_map = map();
  weight_map.erase("t4");
  write_index(weight_map);
  expect_refused({"'t4'", "index does not name"});
  weight_map = map();
  std::swap(weight_map["t2"], weight_map["t5"]);
  write_index(weight_map);
  expect_refused({"t2 (in " + shard(1) + ", not in " + shard(2), "t5"});
  write_index(map());
  write_shard(shard(2), {"t4", "t5", "t2"});
  expect_refused({"'t2'", "two files", shard(1), shard(2)});
}

TEST_F(Sharded, PathsThatLeaveTheFolderAreRefused) {
  const fs::path inner = folder_.path() / "inner";
  fs::create_directories(inner / "sub");
  fs::copy_file(folder_.path() / shard(1), inner / "sub" / shard(1));
  for (const std::string& name :
       {"../" + shard(1), "sub/" + shard(1), "./" + shard(1), "..\\" + shard(1), (folder_.path() / shard(1)).string(),
        std::string(".."), std::string("."), std::string()}) {
    nlohmann::json index;
    index["weight_map"] = {{"t2", name}, {"t3", name}};
    put_file(inner / "model.safetensors.index.json", index.dump());
    expect_cheap_refusal([&] { const ShardedSafetensors opened(inner); }, {"'t", "inside of this folder"});
  }
  put_file(inner / "model.safetensors.index.json",
           R"({"weight_map":{"t2":"a.safetensors\u0000/../../b.safetensors"}})");
  expect_cheap_refusal([&] { const ShardedSafetensors opened(inner); }, {"inside of this folder"});
}

TEST_F(Sharded, DamagedIndex) {
  const std::pair<std::string, std::string_view> cases[] = {
      {"", "empty"},
      {"[]", "object"},
      {"1", "object"},
      {"{}", "no 'weight_map'"},
      {R"({"x":{"weight_map":{"a":"b"}}})", "no 'weight_map'"},
      {R"({"weight_map":{}})", "names no tensor"},
      {R"({"weight_map":[]})", "must be an object"},
      {R"({"weight_map":"x"})", "must be an object"},
      {R"({"weight_map":null})", "must be an object"},
      {R"({"weight_map":{"a":1}})", "file name"},
      {R"({"weight_map":{"a":["b"]}})", "file name"},
      {R"({"weight_map":{"a":{"b":"c"}}})", "file name"},
      {R"({"weight_map":{"a":"b.safetensors","a":"c.safetensors"}})", "duplicate key 'a'"},
      {R"({"weight_map":{"a":"b.safetensors"},"weight_map":{}})", "duplicate key 'weight_map'"},
      {R"({"weight_map":{"a":"b.safetensors"})", "not valid JSON"},
      {R"({"weight_map":{"a":"b.safetensors"}} x)", "not valid JSON"},
      {"{\"weight_map\":{\"a\":\"\xff\"}}", "not UTF-8"},
      {R"({"weight_map":{"a":")" + std::string(5000, 'n') + R"("}})", "missing"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 99\n", "Git LFS pointer"},
  };
  for (const auto& [text, part] : cases) {
    SCOPED_TRACE(text.substr(0, 80));
    write_index(text);
    expect_refused({"index.json", part});
  }
  put_file(folder_.path() / "w.bin", "x");
  write_index(R"({"weight_map":{"a":"w.bin"}})");
  expect_refused({"'w.bin'", "not a .safetensors"});
}

TEST(FileKind, PrintableKeepsMessagesOnOneLine) {
  EXPECT_EQ(printable("a\xC3\xBC.b"), "a\xC3\xBC.b");
  EXPECT_EQ(printable(std::string_view("a\n\0\xff\x7f", 5)), "a\\x0a\\x00\\xff\\x7f");
  EXPECT_LT(printable(std::string(10'000, 'n')).size(), 130U);
  EXPECT_EQ(first_invalid_utf8("a\xC3\xBC\xE2\x82\xAC\xF0\x9F\x98\x80"), std::nullopt);
  const std::pair<std::string_view, std::size_t> bad[] = {{"a\xff", 1},
                                                          {"\xC3", 0},
                                                          {"\xC0\x80", 0},
                                                          {"\xE0\x80\x80", 0},
                                                          {"x\xED\xA0\x80", 1},
                                                          {"\xF4\x90\x80\x80", 0},
                                                          {"\xF0\x8F\xBF\xBF", 0},
                                                          {"\xE2\x82", 0}};
  for (const auto& [text, at] : bad) EXPECT_EQ(first_invalid_utf8(text), at);
}

}  // namespace
}  // namespace halftone
