#include "numeric/scale.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "numeric/testing_golden.h"

namespace halftone {
namespace {

using Json = nlohmann::json;

std::vector<float> floats_of(const std::string& words) {
  std::vector<float> values;
  for (std::size_t i = 0; i < words.size(); i += 8) values.push_back(std::bit_cast<float>(hex(words.substr(i, 8))));
  return values;
}

std::uint32_t scale_code(const Scheme& scheme, float scale) {
  const std::uint32_t code = encode(scheme.scale, scale);
  EXPECT_EQ(static_cast<float>(decode(scheme.scale, code)), scale);
  return code;
}

// OCP's example rule is `floor`. The all-zero block differs on purpose: gfloat writes scale code 0 (2^-127), Halftone
// the scale 1; the element codes are zeros in both.
TEST(GoldenScale, MxBlocks) {
  NEEDS_SHARED();
  const Json json = golden("mx_blocks.json");
  std::size_t blocks = 0;
  for (const auto& [name, inputs] : json.at("blocks").items()) {
    const Scheme scheme = parse_scheme(name == "mxfp4_e2m1" ? "mxfp4:floor" : name + ":g32:e8m0:floor");
    for (const auto& [input, want] : inputs.items()) {
      const std::vector<float> values = floats_of(json.at("inputs_f32").at(input).get<std::string>());
      ASSERT_EQ(values.size(), 32U);
      const ScaleZero sz = choose_scale(scheme, values);
      EXPECT_EQ(scale_code(scheme, sz.scale), input == "zeros" ? 127 : hex(want.at("scale").get<std::string>()))
          << name << ' ' << input;
      std::string codes;
      for (const float x : values) codes += fmt::format("{:02x}", quantize_value(scheme, x, sz));
      EXPECT_EQ(codes, want.at("codes").get<std::string>()) << name << ' ' << input;
      ++blocks;
    }
  }
  EXPECT_EQ(blocks, 42U);
}

TEST(GoldenScale, RulesOfE8m0Scales) {
  NEEDS_SHARED();
  std::ifstream in(shared_folder() / "golden" / "mx_scale_rules.csv");
  std::string line;
  std::getline(in, line);
  std::size_t rows = 0;
  while (std::getline(in, line)) {
    std::istringstream cells(line);
    std::string word;
    std::getline(cells, word, ',');
    const float amax = std::bit_cast<float>(hex(word));
    for (const char* element : {"mxfp8", "mxfp4"}) {
      for (const char* rule : {":floor", ":ceil", ":ct_round"}) {
        std::string want;
        std::getline(cells, want, ',');
        const Scheme scheme = parse_scheme(std::string(element) + rule);
        EXPECT_EQ(scale_code(scheme, choose_scale(scheme, Range{-amax, amax / 2}).scale),
                  static_cast<std::uint32_t>(std::stoi(want)))
            << line << ' ' << element << rule;
      }
    }
    ++rows;
  }
  EXPECT_EQ(rows, 12U);
}

// Both restatements (compressed-tensors, Transformer Engine) but for the all-zero block, whose scale they write as
// 0.125 and 0; Halftone's is 1. The multiplier is theirs within an ulp (they store or invert its reciprocal).
TEST(GoldenScale, Nvfp4) {
  NEEDS_SHARED();
  const Json json = golden("nvfp4.json");
  const Scheme scheme = parse_scheme("nvfp4");
  for (const auto& c : json.at("cases")) {
    const std::vector<float> values = floats_of(c.at("input_f32").get<std::string>());
    const Range range = values_range(values);
    const float global = choose_global_scale(scheme, std::max(-range.low, range.high));
    for (const char* style : {"ct", "te"}) {
      const auto& want = c.at(style);
      const float multiplier = floats_of(want.at("global_scale_multiplier").get<std::string>())[0];
      EXPECT_NEAR(global, multiplier, static_cast<double>(multiplier) * 0x1p-23);
      const auto scales = want.at("block_scales_e4m3").get<std::string>();
      const auto packed = want.at("packed_low_nibble_first").get<std::string>();
      const std::vector<float> decoded = floats_of(want.at("dequant_f32").get<std::string>());
      std::string got;
      for (std::size_t block = 0; block * 16 < values.size(); ++block) {
        const auto part = std::span(values).subspan(block * 16, 16);
        const ScaleZero sz = choose_scale(scheme, part, global);
        const bool zero = std::all_of(part.begin(), part.end(), [](float x) { return x == 0; });
        EXPECT_EQ(scale_code(scheme, sz.scale), zero ? 0x38U : hex(scales.substr(block * 2, 2)))
            << style << ' ' << block;
        for (std::size_t i = 0; i < 16; i += 2) {
          const std::uint32_t low = quantize_value(scheme, part[i], sz, global),
                              high = quantize_value(scheme, part[i + 1], sz, global);
          got += fmt::format("{:02x}", low | high << 4);
          for (const std::size_t k : {i, i + 1}) {
            const double reference = decoded[block * 16 + k];
            EXPECT_NEAR(dequantize_value(scheme, k == i ? low : high, sz, global), reference,
                        std::fabs(reference) * 0x1p-22);
          }
        }
      }
      EXPECT_EQ(got, packed) << style;
    }
  }
}

const char* const kSchemes[] = {"int8:channel",
                                "int8:g32:fp16",
                                "int8:g32:fp32",
                                "int4:g128",
                                "int4:g64:asym",
                                "int8:tensor:asym",
                                "int3:g32:fp32",
                                "int2:g32:asym",
                                "int2:g32",
                                "fp8_e4m3:channel",
                                "fp8_e5m2:g64",
                                "fp8_e4m3:128x128",
                                "fp8_e4m3fnuz:g32",
                                "fp4_e2m1:g32",
                                "fp6_e3m2:g32:fp16",
                                "e4m4:channel",
                                "bf16:channel",
                                "fp16:channel",
                                "nf4:g64",
                                "mxint8",
                                "mxfp4",
                                "mxfp4:floor",
                                "mxfp4:ct_round",
                                "mxfp4:search",
                                "mxfp6",
                                "mxfp8:search",
                                "mxfp8_e5m2",
                                "nvfp4",
                                "int4:g32:e8m0",
                                "fp4_e2m1:g16:e4m3:one_level",
                                "int4:g32:e4m3",
                                "int8:g32:asym:fp16"};

std::vector<std::vector<float>> hard_blocks() {
  std::vector<std::vector<float>> blocks;
  const auto fill = [&](float value, float spike) {
    std::vector<float> block(32, value);
    block[7] = spike;
    blocks.push_back(block);
  };
  const float tiny = std::numeric_limits<float>::denorm_min(), normal = std::numeric_limits<float>::min(),
              huge = std::numeric_limits<float>::max();
  for (const float value :
       {0.0F, -0.0F, tiny, 1e-40F, normal, 1e-30F, 1e-6F, 1.0F, 1e6F, 1e30F, huge, -huge, -1.0F, -tiny}) {
    fill(value, value);
    fill(0.0F, value);
    fill(value, -value);
    fill(value, 1.0F);
    fill(-value, huge);
  }
  std::mt19937 rng(5);
  for (float scale = 1e-44F; scale < 1e38F; scale *= 30.0F) {
    std::normal_distribution<float> normal_values(0.0F, 1.0F);
    std::vector<float> block(32);
    for (float& x : block) x = normal_values(rng) * scale;
    blocks.push_back(block);
    for (float& x : block) x = std::fabs(x);
    blocks.push_back(block);
  }
  return blocks;
}

// users.md C01, C02: whatever the block, the scale is a positive number of its format with an FP32 inverse, every code
// decodes to a finite number, and zeros decode to exact zero.
TEST(Scale, SafeForEveryFiniteBlock) {
  for (const char* name : kSchemes) {
    const Scheme scheme = parse_scheme(name);
    for (const std::vector<float>& block : hard_blocks()) {
      const Range range = values_range(block);
      const float amax = std::max(-range.low, range.high);
      for (const float tensor_amax : {amax, std::max(amax, 1000.0F), std::numeric_limits<float>::max()}) {
        const float global = scheme.two_level ? choose_global_scale(scheme, tensor_amax) : 1.0F;
        const ScaleZero sz = choose_scale(scheme, block, global);
        ASSERT_GT(sz.scale, 0.0F) << name << ' ' << amax;
        ASSERT_TRUE(std::isfinite(sz.scale)) << name << ' ' << amax;
        ASSERT_TRUE(std::isfinite(1.0F / sz.scale)) << name << ' ' << amax;
        ASSERT_GT(sz.scale * global, 0.0F) << name << ' ' << amax;
        ASSERT_TRUE(std::isfinite(1.0F / (sz.scale * global))) << name << ' ' << amax;
        ASSERT_EQ(static_cast<float>(round_to(scheme.scale, sz.scale)), sz.scale) << name << ' ' << amax;
        if (scheme.symmetric) {
          ASSERT_EQ(sz.zero, 0) << name;
        }
        const int half = 1 << (scheme.element.bits - 1);
        if (!scheme.symmetric) {
          ASSERT_TRUE(sz.zero >= -half && sz.zero < half) << name;
        }
        ASSERT_EQ(dequantize_value(scheme, quantize_value(scheme, 0.0F, sz, global), sz, global), 0.0F)
            << name << ' ' << amax;
        for (const float x : block) {
          const std::uint32_t code = quantize_value(scheme, x, sz, global);
          ASSERT_LT(code, code_count(scheme.element));
          if (amax < 1e30F) {
            ASSERT_TRUE(std::isfinite(dequantize_value(scheme, code, sz, global))) << name << ' ' << x;
          }
        }
      }
    }
  }
}

TEST(Scale, AllZeroRangeIsScaleOne) {
  for (const char* name : kSchemes) {
    const Scheme scheme = parse_scheme(name);
    EXPECT_EQ(choose_scale(scheme, Range{}).scale, 1.0F) << name;
    EXPECT_EQ(choose_scale(scheme, Range{}).zero, 0) << name;
    EXPECT_EQ(choose_scale(scheme, std::vector<float>(16, 0.0F)).scale, 1.0F) << name;
    EXPECT_EQ(choose_global_scale(scheme, 0.0F), 1.0F);
  }
}

// The error of a value is at most half the distance of the codes around it, plus what the rounding of the scale clips.
TEST(Scale, ErrorStaysWithinTheStep) {
  std::mt19937 rng(11);
  std::normal_distribution<float> normal(0.0F, 1.0F);
  for (const char* name : kSchemes) {
    const Scheme scheme = parse_scheme(name);
    const bool may_clip = scheme.scale == e8m0_format() && scheme.scale_rule != ScaleRule::ceil;
    for (int trial = 0; trial < 200; ++trial) {
      std::vector<float> block(32);
      for (float& x : block) x = normal(rng) * std::exp2(static_cast<float>(trial % 40 - 20) / 4);
      const Range range = values_range(block);
      const float amax = std::max(-range.low, range.high);
      const float global = scheme.two_level ? choose_global_scale(scheme, amax * 3) : 1.0F;
      const ScaleZero sz = choose_scale(scheme, block, global);
      // The widest step between codes, in units of the scale.
      const ElementFormat& element = scheme.element;
      double step = 0;
      std::vector<double> values;
      for (std::uint32_t code = 0; code < code_count(element); ++code) {
        if (std::isfinite(decode(element, code))) values.push_back(decode(element, code));
      }
      std::sort(values.begin(), values.end());
      for (std::size_t i = 1; i < values.size(); ++i) step = std::max(step, values[i] - values[i - 1]);
      // E4M3 scales are off by up to 1/16, BF16 by 1/256: the largest value is clipped by as much. Zero points: one
      // more half step.
      const double clipped = may_clip                            ? 0.5
                             : scheme.scale == fp8_e4m3_format() ? 1.0 / 15
                             : scheme.scale == e8m0_format()     ? 0.0
                                                                 : 1.0 / 250;
      const double unit = double{sz.scale} * global;
      const double bound = std::max(step * unit * (scheme.symmetric ? 0.501 : 1.001),
                                    (range.high - range.low) * clipped + step * unit * 0.501);
      for (const float x : block) {
        const float back = dequantize_value(scheme, quantize_value(scheme, x, sz, global), sz, global);
        ASSERT_LE(std::fabs(back - x), bound) << name << ' ' << x << ' ' << back << ' ' << sz.scale;
      }
    }
  }
}

// users.md C05.
TEST(Scale, FloorClipsAndCeilDoesNot) {
  std::vector<float> block(32, 1.0F);
  block[0] = 960;
  block[1] = 957;
  block[2] = 832;
  const auto decoded = [&](const char* name, float x) {
    const Scheme scheme = parse_scheme(name);
    const ScaleZero sz = choose_scale(scheme, block);
    return dequantize_value(scheme, quantize_value(scheme, x, sz), sz);
  };
  EXPECT_EQ(decoded("mxfp8:floor", 960), 896);
  EXPECT_EQ(decoded("mxfp8:floor", 957), 896);
  EXPECT_EQ(decoded("mxfp8:ceil", 960), 960);
  EXPECT_EQ(decoded("mxfp8:ceil", 957), 960);
  EXPECT_EQ(decoded("mxfp8:floor", 832), 832);
  EXPECT_EQ(decoded("mxfp8:ceil", 832), 832);
}

TEST(Scale, SearchIsNeverWorseThanEitherNeighbour) {
  std::mt19937 rng(2);
  std::normal_distribution<float> normal(0.0F, 1.0F);
  int smaller = 0;
  for (const char* element : {"mxfp4", "mxfp6", "mxfp8", "mxint8", "int4:g32:e8m0"}) {
    const Scheme ceil =
        parse_scheme(std::string(element) + (std::string(element) == "mxint8" ? ":g32:e8m0:ceil" : ":ceil"));
    Scheme search = ceil;
    search.scale_rule = ScaleRule::search;
    for (int trial = 0; trial < 200; ++trial) {
      std::vector<float> block(32);
      for (float& x : block) x = normal(rng);
      const auto error = [&](ScaleZero sz) {
        double sum = 0;
        for (const float x : block)
          sum += std::pow(double{x} - dequantize_value(ceil, quantize_value(ceil, x, sz), sz), 2);
        return sum;
      };
      const ScaleZero up = choose_scale(ceil, block), down{up.scale / 2, 0}, found = choose_scale(search, block);
      EXPECT_LE(error(found), std::min(error(up), error(down)));
      smaller += found.scale < up.scale;
    }
  }
  EXPECT_GT(smaller, 100);
}

TEST(Scale, ConventionsOfIntegers) {
  // compressed-tensors: amax / 7.5 and amax / 127.5, here in FP32 scales.
  EXPECT_EQ(choose_scale(parse_scheme("int4:g32:fp32"), Range{-15, 3}).scale, 2.0F);
  EXPECT_EQ(choose_scale(parse_scheme("int8:channel:fp32"), Range{-3, 127.5F}).scale, 1.0F);
  // Asymmetric: [0, 15] is exact in 16 steps with the zero at the lowest code; a range off zero includes zero.
  const ScaleZero positive = choose_scale(parse_scheme("int4:g32:asym:fp32"), Range{0, 15});
  EXPECT_EQ(positive.scale, 1.0F);
  EXPECT_EQ(positive.zero, -8);
  const ScaleZero off_zero = choose_scale(parse_scheme("int4:g32:asym:fp32"), Range{10, 15});
  EXPECT_EQ(off_zero.scale, 1.0F);
  EXPECT_EQ(off_zero.zero, -8);
  const ScaleZero negative = choose_scale(parse_scheme("int4:g32:asym:fp32"), Range{-15, -10});
  EXPECT_EQ(negative.scale, 1.0F);
  EXPECT_EQ(negative.zero, 7);
}

TEST(Scale, RangeOfValuesIncludesZeroAndEveryPosition) {
  for (std::size_t n = 0; n < 20; ++n) {
    for (std::size_t i = 0; i < n; ++i) {
      std::vector<float> values(n, 1.0F);
      values[i] = -3;
      EXPECT_EQ(values_range(values).low, -3);
      values[i] = 5;
      EXPECT_EQ(values_range(values).high, 5);
      EXPECT_EQ(values_range(values).low, 0);
    }
  }
}

}  // namespace
}  // namespace halftone
