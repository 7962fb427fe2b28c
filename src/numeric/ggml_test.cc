#include "numeric/ggml.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "numeric/testing_golden.h"
#include "numeric/format.h"

namespace halftone {
namespace {

std::vector<std::byte> from_hex(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::vector<float> words(const std::string& hex) {
  std::vector<float> values;
  for (std::size_t i = 0; i + 7 < hex.size(); i += 8) {
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(std::stoul(hex.substr(i, 8), nullptr, 16))));
  }
  return values;
}

std::vector<std::uint32_t> bits_of(std::span<const float> values) {
  std::vector<std::uint32_t> bits;
  for (const float v : values) bits.push_back(std::bit_cast<std::uint32_t>(v));
  return bits;
}

std::size_t block_bytes(GgmlType type) {
  return static_cast<std::size_t>(ggml_info(type).block_bytes);
}
std::size_t block_elements(GgmlType type) {
  return static_cast<std::size_t>(ggml_info(type).block_elements);
}

// Random bytes; scales and minimums of each type are then finite halves or whatever the bytes say.
std::vector<std::byte> random_blocks(GgmlType type, std::size_t count, std::uint32_t seed) {
  std::vector<std::byte> bytes(count * block_bytes(type));
  std::uint32_t state = seed * 2654435761U + 12345U;
  for (std::byte& b : bytes) {
    state = state * 1664525U + 1013904223U;
    b = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

std::vector<float> random_values(std::size_t n, std::uint32_t seed, float size) {
  std::vector<float> values(n);
  std::uint32_t state = seed * 2654435761U + 99U;
  for (float& v : values) {
    float sum = 0.0F;
    for (int i = 0; i < 4; ++i) {
      state = state * 1664525U + 1013904223U;
      sum += static_cast<float>(state >> 8) * 0x1p-24F - 0.5F;
    }
    v = size * sum;
  }
  return values;
}

TEST(Ggml, TypeTableIsConsistent) {
  std::set<std::uint32_t> ids;
  for (const GgmlTypeInfo& info : ggml_types()) {
    EXPECT_TRUE(ids.insert(static_cast<std::uint32_t>(info.type)).second) << info.name;
    EXPECT_EQ(find_ggml_type(static_cast<std::uint32_t>(info.type)), &info);
    EXPECT_EQ(find_ggml_type(info.name), &info);
    EXPECT_GT(info.block_bytes, 0);
    EXPECT_TRUE(info.can_decode || !info.can_encode) << info.name;
  }
  EXPECT_EQ(ids.size(), 35U);
  EXPECT_EQ(find_ggml_type("Q4_K")->type, GgmlType::q4_k);
  for (const std::uint32_t removed : {4U, 5U, 31U, 32U, 33U, 36U, 37U, 38U, 43U, 0xFFFFFFFFU}) {
    EXPECT_EQ(find_ggml_type(removed), nullptr) << removed;
  }
  EXPECT_EQ(find_ggml_type("q4"), nullptr);
  EXPECT_EQ(find_ggml_type(""), nullptr);
}

TEST(Ggml, DecodesTheGoldenBlocks) {
  if (!have_shared()) GTEST_SKIP() << "SKIPPED: no shared folder";
  const auto file = golden("ggml_decode.json");
  EXPECT_EQ(file["blocks"].size(), 16U);
  for (const auto& [name, entry] : file["blocks"].items()) {
    const GgmlTypeInfo* info = find_ggml_type(name);
    ASSERT_NE(info, nullptr) << name;
    EXPECT_EQ(info->block_elements, entry["elements"].get<int>()) << name;
    EXPECT_EQ(info->block_bytes, entry["bytes"].get<int>()) << name;
    const auto bytes = from_hex(entry["block"]);
    std::vector<float> values(static_cast<std::size_t>(info->block_elements));
    ggml_decode(info->type, bytes, values);
    EXPECT_EQ(bits_of(values), bits_of(words(entry["f32"]))) << name;
  }
}

TEST(Ggml, EncodesTheGoldenInputs) {
  if (!have_shared()) GTEST_SKIP() << "SKIPPED: no shared folder";
  const auto file = golden("ggml_encode.json");
  int compared = 0;
  for (const auto& [name, entry] : file["encoded"].items()) {
    const GgmlTypeInfo* info = find_ggml_type(name);
    ASSERT_NE(info, nullptr) << name;
    ASSERT_TRUE(info->can_encode) << name;
    for (const char* input : {"gauss", "structured", "zeros"}) {
      if (!entry.contains(input)) continue;
      const auto values = words(file["inputs_f32"][input]);
      const auto want = from_hex(entry[input]);
      std::vector<std::byte> got(want.size(), std::byte{0xA5});
      ggml_encode(info->type, values, got);
      EXPECT_EQ(got, want) << name << ' ' << input;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 47);
}

// ggml_decode is exactly what the affine view says, for every byte pattern: finite, infinite and NaN scales included.
TEST(Ggml, AffineViewGivesTheSameValues) {
  for (const GgmlTypeInfo& info : ggml_types()) {
    if (!info.can_decode || info.block_elements == 1) continue;
    const GgmlAffine affine = ggml_affine(info.type);
    constexpr std::size_t kBlocks = 50;
    const auto bytes = random_blocks(info.type, kBlocks, static_cast<std::uint32_t>(info.type));
    const std::size_t n = kBlocks * block_elements(info.type);
    const auto group = static_cast<std::size_t>(affine.group);
    ASSERT_EQ(block_elements(info.type) % group, 0U);
    std::vector<float> values(n), scales(n / group), minimums(affine.has_minimum ? n / group : 0);
    std::vector<std::int8_t> codes(n);
    ggml_decode(info.type, bytes, values);
    ggml_decode_affine(info.type, bytes, codes, scales, minimums);
    int lowest = 127, highest = -128;
    for (std::size_t i = 0; i < n; ++i) {
      const float product = scales[i / group] * static_cast<float>(codes[i]);
      const float want = affine.has_minimum ? product + minimums[i / group] : product;
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(values[i])) << info.name;
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(values[i]), std::bit_cast<std::uint32_t>(want)) << info.name << ' ' << i;
      }
      lowest = std::min<int>(lowest, codes[i]);
      highest = std::max<int>(highest, codes[i]);
    }
    EXPECT_GE(lowest, affine.code_low) << info.name;
    EXPECT_LE(highest - affine.code_low, affine.code_bits == 4 ? 15 : 255) << info.name;
  }
}

TEST(Ggml, TypesThatAreOnlyRecognised) {
  for (const GgmlTypeInfo& info : ggml_types()) {
    if (info.can_decode) continue;
    std::vector<std::byte> bytes(static_cast<std::size_t>(info.block_bytes));
    std::vector<float> values(static_cast<std::size_t>(info.block_elements));
    EXPECT_THROW(ggml_decode(info.type, bytes, values), Error) << info.name;
    EXPECT_THROW(ggml_encode(info.type, values, bytes), Error) << info.name;
    EXPECT_THROW(ggml_affine(info.type), Error) << info.name;
  }
  EXPECT_THROW(ggml_affine(GgmlType::f16), Error);
}

TEST(Ggml, RefusesWrongSizes) {
  std::vector<std::byte> bytes(18);
  std::vector<float> values(33);
  EXPECT_THROW(ggml_decode(GgmlType::q4_0, bytes, std::span(values).first(31)), CheckFailed);
  EXPECT_THROW(ggml_decode(GgmlType::q4_0, std::span(bytes).first(17), std::span(values).first(32)), CheckFailed);
  EXPECT_THROW(ggml_encode(GgmlType::q4_0, values, bytes), CheckFailed);
  ggml_decode(GgmlType::q4_0, {}, {});
  ggml_encode(GgmlType::q8_0, {}, {});
}

TEST(Ggml, PlainTypes) {
  const std::vector<float> values = {0.0F, -0.0F, 1.5F, -2.0F, 3.0F, 100.0F};
  for (const GgmlType type : {GgmlType::f32, GgmlType::f16, GgmlType::bf16}) {
    std::vector<std::byte> bytes(values.size() * block_bytes(type));
    std::vector<float> back(values.size());
    ggml_encode(type, values, bytes);
    ggml_decode(type, bytes, back);
    EXPECT_EQ(bits_of(back), bits_of(values));
  }
  const auto check = [](GgmlType type, auto number) {
    std::vector<std::byte> bytes(sizeof number);
    std::memcpy(bytes.data(), &number, sizeof number);
    float value = 0.0F;
    ggml_decode(type, bytes, std::span(&value, 1));
    EXPECT_EQ(value, static_cast<float>(number));
  };
  check(GgmlType::i8, std::int8_t{-7});
  check(GgmlType::i16, std::int16_t{-30000});
  check(GgmlType::i32, std::int32_t{16777217});
  check(GgmlType::i64, std::int64_t{-(1LL << 40)});
  check(GgmlType::f64, 0.1);
}

TEST(Ggml, OneBitAndTwoBitBlocks) {
  std::vector<std::byte> bytes(18);
  const std::uint16_t half = float_to_fp16(0.5F);
  std::memcpy(bytes.data(), &half, 2);
  bytes[2] = std::byte{0x05};  // elements 0 and 2
  std::vector<float> values(128);
  ggml_decode(GgmlType::q1_0, bytes, values);
  for (std::size_t i = 0; i < 128; ++i) EXPECT_EQ(values[i], i == 0 || i == 2 ? 0.5F : -0.5F) << i;

  bytes[2] = std::byte{0xE4};  // 0, 1, 2, 3
  values.resize(64);
  ggml_decode(GgmlType::q2_0, bytes, values);
  EXPECT_EQ(std::vector<float>(values.begin(), values.begin() + 5),
            (std::vector<float>{-0.5F, 0.0F, 0.5F, 1.0F, -0.5F}));
}

TEST(Ggml, NvfpScalesZeroAndNanCodes) {
  std::vector<std::byte> bytes(36, std::byte{0x22});
  bytes[0] = std::byte{0x00};
  bytes[1] = std::byte{0x7F};
  bytes[2] = std::byte{0x78};  // 256: never written by the reference, must be read
  bytes[3] = std::byte{0x01};  // 2^-9
  std::vector<float> values(64);
  ggml_decode(GgmlType::nvfp4, bytes, values);
  EXPECT_EQ(values[0], 0.0F);
  EXPECT_EQ(values[16], 0.0F);
  EXPECT_EQ(values[32], 256.0F);
  EXPECT_EQ(values[48], 0x1p-9F);
}

TEST(Ggml, MxfpScalesAtTheEnds) {
  for (int e = 0; e < 255; ++e) {
    std::vector<std::byte> bytes(17, std::byte{0x22});  // code 2 is 1.0
    bytes[0] = static_cast<std::byte>(e);
    std::vector<float> values(32);
    ggml_decode(GgmlType::mxfp4, bytes, values);
    EXPECT_EQ(static_cast<double>(values[0]), std::ldexp(1.0, e - 127)) << e;
  }
}

// The error of encoding is below the step that the type's codes allow; a broken search or a swapped nibble is far off.
TEST(Ggml, RoundTripErrorIsWithinAStep) {
  struct Case {
    GgmlType type;
    double relative_rms;  // of Gaussian-like values: about (6.5 sigma / levels) / sqrt(12) and some for the minimums
  };
  const Case cases[] = {{GgmlType::q8_0, 0.008}, {GgmlType::q5_0, 0.05},   {GgmlType::q5_1, 0.05},
                        {GgmlType::q4_0, 0.10},  {GgmlType::q4_1, 0.09},   {GgmlType::q6_k, 0.03},
                        {GgmlType::q5_k, 0.05},  {GgmlType::q4_k, 0.09},   {GgmlType::q3_k, 0.19},
                        {GgmlType::q2_k, 0.36},  {GgmlType::iq4_nl, 0.10}, {GgmlType::iq4_xs, 0.10},
                        {GgmlType::mxfp4, 0.16}, {GgmlType::nvfp4, 0.13}};
  for (const Case& c : cases) {
    const auto values = random_values(4096, 7, 0.05F);
    std::vector<std::byte> bytes(values.size() / block_elements(c.type) * block_bytes(c.type));
    std::vector<float> back(values.size());
    ggml_encode(c.type, values, bytes);
    ggml_decode(c.type, bytes, back);
    double error = 0, power = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      error += std::pow(static_cast<double>(back[i]) - static_cast<double>(values[i]), 2);
      power += std::pow(static_cast<double>(values[i]), 2);
    }
    EXPECT_LT(std::sqrt(error / power), c.relative_rms) << ggml_info(c.type).name;
  }
}

// Nothing undefined whatever comes: tiny, huge, infinite, NaN (run under the sanitizers).
TEST(Ggml, EncodersStandAnyInput) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float sizes[] = {1e-45F, 1e-38F, 1e-20F, 1e-4F, 1e5F, 1e20F, 3e38F, inf, nan};
  for (const GgmlTypeInfo& info : ggml_types()) {
    if (!info.can_encode) continue;
    for (const float size : sizes) {
      auto values = random_values(256, 3, 1.0F);
      for (std::size_t i = 0; i < values.size(); i += size == size ? 1 : 5) values[i] *= size;
      std::vector<std::byte> bytes(256 / static_cast<std::size_t>(info.block_elements) *
                                   static_cast<std::size_t>(info.block_bytes));
      std::vector<float> back(256);
      ggml_encode(info.type, values, bytes);
      ggml_decode(info.type, bytes, back);
      std::vector<std::byte> again(bytes.size(), std::byte{0xFF});
      ggml_encode(info.type, values, again);
      EXPECT_EQ(bytes, again) << info.name;
    }
  }
}

TEST(Ggml, ZerosDecodeToZero) {
  const std::vector<float> zeros(256);
  for (const GgmlTypeInfo& info : ggml_types()) {
    if (!info.can_encode) continue;
    std::vector<std::byte> bytes(256 / static_cast<std::size_t>(info.block_elements) *
                                 static_cast<std::size_t>(info.block_bytes));
    std::vector<float> back(256, 1.0F);
    ggml_encode(info.type, zeros, bytes);
    ggml_decode(info.type, bytes, back);
    for (const float v : back) ASSERT_EQ(v, 0.0F) << info.name;
  }
}

}  // namespace
}  // namespace halftone
