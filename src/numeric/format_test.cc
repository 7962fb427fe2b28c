#include "numeric/format.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/sha256.h"
#include "numeric/testing_golden.h"

namespace halftone {
namespace {

std::vector<std::vector<std::string>> read_csv(const char* name) {
  std::ifstream in(shared_folder() / "golden" / name);
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(in, line);) {
    std::vector<std::string> cells;
    std::size_t at = 0;
    for (;;) {
      const std::size_t comma = line.find(',', at);
      cells.push_back(line.substr(at, comma - at));
      if (comma == std::string::npos) break;
      at = comma + 1;
    }
    rows.push_back(cells);
  }
  return rows;
}

float float_of(const std::string& word) {
  return std::bit_cast<float>(hex(word));
}
std::uint32_t bits_of(double value) {
  return std::bit_cast<std::uint32_t>(static_cast<float>(value));
}

std::vector<ElementFormat> all_formats() {
  std::vector<ElementFormat> formats;
  for (const NamedFormat& named : named_formats()) formats.push_back(named.format);
  for (int e = 1; e <= 8; ++e) {
    for (int m = 0; 1 + e + m <= 16; ++m) {
      for (const char* family : {"", "fn", "ieee", "fnuz", "finite"}) {
        if (const auto format = find_format(fmt::format("e{}m{}{}", e, m, family))) formats.push_back(*format);
      }
    }
  }
  for (int k = 3; k <= 16; ++k) {
    for (int p = 1; p < k; ++p) {
      for (const char* domain : {"se", "sf"}) {
        if (const auto format = find_format(fmt::format("k{}p{}{}", k, p, domain))) formats.push_back(*format);
      }
    }
  }
  return formats;
}

TEST(Golden, DecodeEveryCode) {
  NEEDS_SHARED();
  const auto rows = read_csv("decode.csv");
  ASSERT_EQ(rows.size(), 257U);
  std::size_t compared = 0;
  for (std::size_t column = 1; column < rows[0].size(); ++column) {
    const auto format = find_format(rows[0][column]);
    ASSERT_TRUE(format) << rows[0][column];
    ASSERT_GE(257U, code_count(*format));
    for (std::uint32_t code = 0; code < 256; ++code) {
      const std::string& want = rows[code + 1][column];
      if (code >= code_count(*format)) {
        EXPECT_EQ(want, "");
        continue;
      }
      const double got = decode(*format, code);
      ++compared;
      if (want == "nan") {
        EXPECT_TRUE(std::isnan(got)) << rows[0][column] << ' ' << code;
      } else {
        EXPECT_EQ(bits_of(got), hex(want)) << rows[0][column] << ' ' << code;
      }
    }
  }
  EXPECT_GT(compared, 3000U);
}

// ml_dtypes: nearest even without saturation. gfloat with saturation where the references agree: NaN inputs are left
// out (gfloat drops the sign of E4M3's NaN, uses FF for E5M2's, and refuses formats without NaN).
TEST(Golden, EncodeEdges) {
  NEEDS_SHARED();
  const auto rows = read_csv("encode.csv");
  std::size_t saturated = 0;
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const auto format = find_format(rows[i][0]);
    ASSERT_TRUE(format);
    const float x = float_of(rows[i][1]);
    EXPECT_EQ(encode(*format, x, {.overflow = Overflow::ieee}), hex(rows[i][2])) << rows[i][0] << ' ' << rows[i][1];
    const std::string& sat = rows[i][4].empty() ? rows[i][2] : rows[i][4];
    if (std::isnan(x) || sat == "-" || sat == "err") continue;
    ++saturated;
    EXPECT_EQ(encode(*format, x), hex(sat)) << rows[i][0] << ' ' << rows[i][1];
  }
  EXPECT_GT(saturated, 1500U);
}

TEST(Golden, EncodeTo16Bits) {
  NEEDS_SHARED();
  const auto rows = read_csv("encode_16.csv");
  ASSERT_GT(rows.size(), 40U);
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const float x = float_of(rows[i][0]);
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(x))));
      EXPECT_TRUE(std::isnan(fp16_to_float(float_to_fp16(x))));
      continue;
    }
    EXPECT_EQ(float_to_bf16(x), hex(rows[i][1])) << rows[i][0];
    EXPECT_EQ(float_to_fp16(x), hex(rows[i][2])) << rows[i][0];
    EXPECT_EQ(encode(bf16_format(), x, {.overflow = Overflow::ieee}), hex(rows[i][1])) << rows[i][0];
    EXPECT_EQ(encode(fp16_format(), x, {.overflow = Overflow::ieee}), hex(rows[i][2])) << rows[i][0];
  }
}

// E8M0 of ml_dtypes is half-up nearest with differences that are all stated here: zero, negative and too large values
// are NaN (FF), and an FP32 subnormal above 2^-127 goes up to 2^-126 however near it is.
std::uint32_t ml_dtypes_e8m0(float x) {
  if (!(x > 0) || x >= 0x1.8p127F) return 255;
  if (x > 0x1p-127F && x < 0x1p-126F) return 1;
  return encode_e8m0(x, E8m0Rounding::nearest);
}

TEST(Golden, DigestsOfEveryUpperHalf) {
  NEEDS_SHARED();
  std::ifstream in(shared_folder() / "golden" / "encode_digests.json");
  const auto json = nlohmann::json::parse(in);
  std::size_t rows = 0;
  for (const auto& [row, digests] : json.at("sha256").items()) {
    std::string name = row;
    const bool sat = name.ends_with("_sat");
    if (sat) name.resize(name.size() - 4);
    const auto format = find_format(name);
    ASSERT_TRUE(format) << name;
    const EncodeOptions options{.overflow = sat ? Overflow::saturate : Overflow::ieee};
    const std::size_t width = format->bits > 8 ? 2 : 1;
    for (const auto& [low, want] : digests.items()) {
      std::vector<std::byte> codes(65536 * width);
      for (std::uint32_t i = 0; i < 65536; ++i) {
        const float x = std::bit_cast<float>(i << 16 | hex(low));
        const std::uint32_t code = name == "e8m0" ? ml_dtypes_e8m0(x) : encode(*format, x, options);
        std::memcpy(codes.data() + i * width, &code, width);
      }
      EXPECT_EQ(sha256_hex(codes), want.get<std::string>()) << row << ' ' << low;
      ++rows;
    }
  }
  EXPECT_EQ(rows, 16U * 7);
}

// floor, ceil and nearest are ONNX's down, up and nearest (saturating) but for: negative values (ONNX drops the sign),
// and values that ONNX sends to 2^-126: by `up` everything in (0, 2^-127], by `nearest` everything in (2^-127, 1.5 *
// 2^-127).
TEST(Golden, E8m0Rules) {
  NEEDS_SHARED();
  const auto rows = read_csv("encode_e8m0.csv");
  ASSERT_GT(rows.size(), 30U);
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const float x = float_of(rows[i][0]);
    const std::uint32_t floor = encode_e8m0(x, E8m0Rounding::floor), ceil = encode_e8m0(x, E8m0Rounding::ceil),
                        nearest = encode_e8m0(x, E8m0Rounding::nearest);
    EXPECT_EQ(ml_dtypes_e8m0(x), hex(rows[i][1])) << rows[i][0];
    if (x < 0 && std::isfinite(x)) {
      EXPECT_EQ(floor + ceil + nearest, 0U);
      continue;
    }
    EXPECT_EQ(floor, hex(rows[i][5])) << rows[i][0];
    if (x > 0 && x <= 0x1p-127F) {
      EXPECT_EQ(ceil, 0U) << rows[i][0];
    } else {
      EXPECT_EQ(ceil, hex(rows[i][3])) << rows[i][0];
    }
    if (x > 0x1p-127F && x < 0x1.8p-127F) {
      EXPECT_EQ(nearest, 0U) << rows[i][0];
    } else {
      EXPECT_EQ(nearest, hex(rows[i][4])) << rows[i][0];
    }
  }
}

TEST(Golden, RoundingModes) {
  NEEDS_SHARED();
  const std::map<std::string, Rounding> modes = {
      {"TowardZero", Rounding::toward_zero},         {"TowardNegative", Rounding::toward_negative},
      {"TowardPositive", Rounding::toward_positive}, {"TiesToEven", Rounding::nearest_even},
      {"TiesToAway", Rounding::nearest_away},        {"StochasticFastest", Rounding::stochastic_a},
      {"StochasticFast", Rounding::stochastic_b},    {"Stochastic", Rounding::stochastic_c}};
  const auto rows = read_csv("rounding.csv");
  ASSERT_GT(rows.size(), 300U);
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const auto format = find_format(rows[i][0]);
    ASSERT_TRUE(format);
    EncodeOptions options{.rounding = modes.at(rows[i][1])};
    if (!rows[i][2].empty()) {
      options.random_bits = std::stoi(rows[i][2]);
      options.random = static_cast<std::uint32_t>(std::stoul(rows[i][3]));
    }
    EXPECT_EQ(bits_of(round_to(*format, float_of(rows[i][4]), options)), hex(rows[i][5]))
        << rows[i][0] << ' ' << rows[i][1] << ' ' << rows[i][3] << ' ' << rows[i][4];
  }
}

// users.md C06: every finite code of every format returns to itself; NaN and infinity codes stay such.
TEST(Format, CodesReturnToThemselves) {
  std::size_t checked = 0;
  for (const ElementFormat& format : all_formats()) {
    if (format.bits > 16) continue;
    std::size_t finite = 0;
    for (std::uint32_t code = 0; code < code_count(format); ++code) {
      const double value = decode(format, code);
      const std::uint32_t back = encode(format, value, {.overflow = Overflow::ieee});
      if (std::isfinite(value)) {
        ++finite;
        ASSERT_EQ(back, code) << format_name(format);
        ASSERT_EQ(encode(format, value), code) << format_name(format);
      } else if (std::isinf(value)) {
        ASSERT_EQ(back, code) << format_name(format);
        ASSERT_EQ(std::fabs(decode(format, encode(format, value))), max_finite(format)) << format_name(format);
      } else {
        ASSERT_TRUE(has_nan(format)) << format_name(format);
        ASSERT_TRUE(std::isnan(decode(format, back))) << format_name(format);
      }
    }
    const std::string name = format_name(format);
    if (name == "fp4_e2m1") {
      EXPECT_EQ(finite, 16U);
    }
    if (name == "fp6_e2m3" || name == "fp6_e3m2") {
      EXPECT_EQ(finite, 64U);
    }
    if (name == "fp8_e4m3") {
      EXPECT_EQ(finite, 254U);
    }
    if (name == "fp8_e5m2") {
      EXPECT_EQ(finite, 248U);
    }
    ++checked;
  }
  EXPECT_GT(checked, 300U);
}

// The derived facts against the codes themselves.
TEST(Format, FactsAgreeWithTheCodes) {
  for (const ElementFormat& format : all_formats()) {
    if (format.bits > 16) continue;
    double largest = 0, smallest = std::numeric_limits<double>::infinity();
    bool infinity = false, nan = false, minus_zero = false;
    for (std::uint32_t code = 0; code < code_count(format); ++code) {
      const double value = decode(format, code);
      nan = nan || std::isnan(value);
      infinity = infinity || std::isinf(value);
      minus_zero = minus_zero || (value == 0 && std::signbit(value));
      if (!std::isfinite(value)) continue;
      largest = std::max(largest, std::fabs(value));
      if (value > 0) smallest = std::min(smallest, value);
    }
    const std::string name = format_name(format);
    EXPECT_EQ(max_finite(format), largest) << name;
    EXPECT_EQ(min_subnormal(format), smallest) << name;
    EXPECT_EQ(has_infinity(format), infinity) << name;
    EXPECT_EQ(has_nan(format), nan) << name;
    EXPECT_EQ(has_minus_zero(format), minus_zero) << name;
    EXPECT_GE(min_normal(format), smallest) << name;
  }
}

TEST(Format, NamesReadBack) {
  for (const ElementFormat& format : all_formats())
    EXPECT_EQ(find_format(format_name(format)), format) << format_name(format);
  EXPECT_EQ(format_name(*find_format("E4M3")), "fp8_e4m3");
  EXPECT_EQ(format_name(*find_format("e5m2")), "fp8_e5m2");
  EXPECT_EQ(format_name(*find_format("F8_E5M2FNUZ")), "fp8_e5m2fnuz");
  EXPECT_EQ(format_name(*find_format("e2m1")), "fp4_e2m1");
  EXPECT_EQ(format_name(*find_format("fp9_e4m4")), "e4m4");
  EXPECT_EQ(format_name(*find_format("e5m10ieee")), "fp16");
  EXPECT_EQ(max_finite(*find_format("k8p3se")), 49152);
  EXPECT_EQ(max_finite(*find_format("binary10p4se")), 3758096384.0);
  for (const char* bad : {"", "e", "e4", "e4m", "e0m3", "e9m3", "e8m8", "fp8_e5m10", "fp8_e4m3x", "e1m0fn", "int9",
                          "int1", "e4m3fnuzz", "e99999999999m1", "k8p9se", "k17p3se", "k8p3ue", "fp_e4m3"}) {
    EXPECT_FALSE(find_format(bad)) << bad;
  }
}

TEST(Format, UnknownNameListsNearOnes) {
  try {
    format_or_fail("fp8_e4m4");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_NE(std::string(error.what()).find("fp8_e4m3"), std::string::npos) << error.what();
  }
}

// Nearest by exhaustive search over the codes, for values of any size, every rounding direction on its own side.
TEST(Format, EncodeIsNearest) {
  std::mt19937_64 rng(7);
  for (const char* name : {"fp8_e4m3", "fp8_e5m2", "fp8_e4m3fnuz", "fp6_e3m2", "fp4_e2m1", "e4m4", "e5m4ieee", "e3m0",
                           "mxint8", "int8", "int5", "int2", "nf4", "k8p4se"}) {
    const ElementFormat format = *find_format(name);
    std::vector<double> values;
    for (std::uint32_t code = 0; code < code_count(format); ++code) {
      if (std::isfinite(decode(format, code))) values.push_back(decode(format, code));
    }
    const double low = *std::min_element(values.begin(), values.end()),
                 high = *std::max_element(values.begin(), values.end());
    std::uniform_real_distribution<double> uniform(low * 1.2, high * 1.2);
    std::normal_distribution<double> log_normal(0, 4);
    for (int i = 0; i < 2000; ++i) {
      const double x =
          i % 2 == 0 ? uniform(rng) : (i % 4 == 1 ? 1 : -1) * std::exp(log_normal(rng)) * min_normal(format);
      double nearest = std::numeric_limits<double>::infinity(), below = low, above = high;
      for (const double v : values) {
        nearest = std::min(nearest, std::fabs(v - x));
        if (v <= x) below = std::max(below, v);
        if (v >= x) above = std::min(above, v);
      }
      ASSERT_EQ(std::fabs(round_to(format, x) - x), nearest) << name << ' ' << x;
      if (format.kind == FormatKind::codebook) continue;
      ASSERT_EQ(round_to(format, x, {.rounding = Rounding::toward_negative}), below) << name << ' ' << x;
      ASSERT_EQ(round_to(format, x, {.rounding = Rounding::toward_positive}), above) << name << ' ' << x;
      ASSERT_EQ(round_to(format, x, {.rounding = Rounding::toward_zero}), x < 0 ? above : below) << name << ' ' << x;
    }
  }
}

// Rounding to odd at two more bits, then to nearest, equals rounding once: what the mode exists for.
TEST(Format, ToOddPreventsDoubleRounding) {
  const ElementFormat wide = *find_format("e5m7ieee"), narrow = *find_format("e5m2");
  std::mt19937_64 rng(3);
  std::uniform_real_distribution<double> exponent(-13, 14);
  for (int i = 0; i < 20000; ++i) {
    const double x = (i % 2 == 0 ? 1 : -1) * std::exp2(exponent(rng));
    ASSERT_EQ(round_to(narrow, round_to(wide, x, {.rounding = Rounding::to_odd})), round_to(narrow, x)) << x;
  }
}

// Over all R, the stochastic modes round up exactly as often as their rule says: A floor(d * 2^N), B to the nearest
// half, C RNE(d * 2^N) of 2^N.
TEST(Format, StochasticRoundingCounts) {
  const ElementFormat format = fp8_e4m3_format();
  const int n = 6;
  for (const double d : {0.0, 0.01, 0.3, 0.5, 0.71875, 0.99, 0.999}) {
    const double x = 1 + d / 8;
    int ups[3] = {};
    for (std::uint32_t r = 0; r < 64; ++r) {
      int k = 0;
      for (const Rounding mode : {Rounding::stochastic_a, Rounding::stochastic_b, Rounding::stochastic_c}) {
        const double y = round_to(format, x, {.rounding = mode, .random = r, .random_bits = n});
        ASSERT_TRUE(y == 1 || y == 1.125);
        ups[k++] += y > 1;
      }
    }
    EXPECT_EQ(ups[0], static_cast<int>(std::floor(d * 64)));
    EXPECT_EQ(ups[1], static_cast<int>(std::floor(d * 128) + 1) / 2);
    EXPECT_EQ(ups[2], static_cast<int>(std::nearbyint(d * 64)));
  }
}

// users.md C04.
TEST(Format, OverflowOfE4m3) {
  const ElementFormat f = fp8_e4m3_format();
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const double x : {448.0, 464.0, 465.0, 1000.0, inf}) {
    EXPECT_EQ(round_to(f, x), 448);
    EXPECT_EQ(round_to(f, -x), -448);
  }
  EXPECT_TRUE(std::isnan(round_to(f, nan)));
  const EncodeOptions ieee{.overflow = Overflow::ieee};
  EXPECT_EQ(round_to(f, 464, ieee), 448);
  for (const double x : {464.5, 465.0, 1000.0, inf}) EXPECT_TRUE(std::isnan(round_to(f, x, ieee)));
}

TEST(Format, FastHalvesEqualTheGenericCodec) {
  for (std::uint32_t code = 0; code < 65536; ++code) {
    const auto half = static_cast<std::uint16_t>(code);
    const double fp16 = decode(fp16_format(), code), bf16 = decode(bf16_format(), code);
    if (std::isnan(fp16)) {
      ASSERT_TRUE(std::isnan(fp16_to_float(half)));
    } else {
      ASSERT_EQ(bits_of(fp16), std::bit_cast<std::uint32_t>(fp16_to_float(half)));
    }
    if (!std::isnan(bf16)) {
      ASSERT_EQ(bits_of(bf16), std::bit_cast<std::uint32_t>(bf16_to_float(half)));
    }
    ASSERT_EQ(float_to_bf16(bf16_to_float(half)), half);  // NaN payloads too (users.md C14)
    for (const std::uint32_t low : {0x0000U, 0x0001U, 0x0fffU, 0x1000U, 0x1001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      const float x = std::bit_cast<float>(code << 16 | low);
      if (std::isnan(x)) {
        ASSERT_TRUE(std::isnan(fp16_to_float(float_to_fp16(x))));
        ASSERT_TRUE(std::isnan(bf16_to_float(float_to_bf16(x))));
        continue;
      }
      ASSERT_EQ(float_to_fp16(x), encode(fp16_format(), x, {.overflow = Overflow::ieee})) << x;
      ASSERT_EQ(float_to_bf16(x), encode(bf16_format(), x, {.overflow = Overflow::ieee})) << x;
    }
  }
}

// users.md C06: 255 is NaN, 134 is 128; powers of two come back under every rule.
TEST(Format, E8m0Codes) {
  EXPECT_TRUE(std::isnan(decode_e8m0(255)));
  EXPECT_EQ(decode_e8m0(134), 128.0F);
  for (int code = 0; code < 255; ++code) {
    const auto c = static_cast<std::uint8_t>(code);
    for (const E8m0Rounding rule : {E8m0Rounding::floor, E8m0Rounding::ceil, E8m0Rounding::nearest}) {
      EXPECT_EQ(encode_e8m0(decode_e8m0(c), rule), c);
    }
  }
}

}  // namespace
}  // namespace halftone
