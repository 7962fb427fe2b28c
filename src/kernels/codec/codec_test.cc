#include "kernels/codec/codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/random.h"
#include "base/testing.h"

namespace halftone {
namespace {

const char* const kSchemes[] = {"fp32",
                                "bf16",
                                "fp16",
                                "fp8_e4m3:none",
                                "fp8_e4m3:tensor",
                                "fp8_e4m3:channel",
                                "fp8_e4m3:128x128",
                                "fp8_e5m2:g64",
                                "int8:channel",
                                "int8:tensor",
                                "int4:g128",
                                "int4:g64:asym",
                                "int3:g32",
                                "mxfp4",
                                "mxfp6",
                                "mxfp8",
                                "nvfp4",
                                "nf4:g64",
                                "e4m4:g32",
                                "q8_0",
                                "q4_k",
                                "q6_k"};

// 768 columns hold whole blocks of everything; 300 rows leave a partial tile of 128 and several chunks.
TEST(Codec, EqualsTheScalarCodecForAnyThreads) {
  const std::int64_t rows = 300, cols = 768;
  const auto values = normal_values(rows * cols, 1);
  for (const char* name : kSchemes) {
    const Scheme scheme = parse_scheme(name);
    TensorStats whole;
    accumulate_stats(whole, values, 0);
    const QuantizedTensor want = quantize_rows(scheme, values, rows, cols, whole);
    std::vector<float> back(values.size());
    dequantize_rows(want, 0, rows, back);
    for (const int threads : {1, 3}) {
      ThreadPool pool(threads);
      const QuantizedTensor got = quantize(scheme, values, rows, cols, whole, pool);
      EXPECT_EQ(got.scheme, want.scheme) << name;
      EXPECT_EQ(got.rows, rows);
      EXPECT_EQ(got.cols, cols);
      ASSERT_EQ(got.codes.size(), want.codes.size()) << name;
      EXPECT_EQ(0, std::memcmp(got.codes.data(), want.codes.data(), want.codes.size())) << name;
      EXPECT_EQ(got.scales, want.scales) << name;
      EXPECT_EQ(got.zeros, want.zeros) << name;
      EXPECT_EQ(got.global_scale, want.global_scale) << name;
      std::vector<float> out(values.size());
      dequantize(got, out, pool);
      EXPECT_EQ(0, std::memcmp(out.data(), back.data(), back.size() * sizeof(float))) << name;
    }
  }
}

TEST(Codec, EmptyMatrix) {
  ThreadPool pool(2);
  const QuantizedTensor empty = quantize(parse_scheme("int4:g128"), {}, 0, 128, {}, pool);
  dequantize(empty, {}, pool);
  EXPECT_EQ(empty.codes.size(), 0U);
}

TEST(Codec, ScanEqualsTheScalarOne) {
  auto values = normal_values(300001, 2);
  values[70000] = 9.0F;
  values[250000] = -11.0F;
  for (const bool bad : {false, true}) {
    if (bad) {
      values[200001] = std::numeric_limits<float>::quiet_NaN();
      values[140000] = std::numeric_limits<float>::infinity();
    }
    TensorStats want, got;
    accumulate_stats(want, values, 1000);
    ThreadPool pool(3);
    scan(got, std::span<const float>(values).first(100), 1000, pool);
    scan(got, std::span<const float>(values).subspan(100), 1100, pool);
    EXPECT_EQ(got.amax, want.amax);
    EXPECT_EQ(got.range.low, want.range.low);
    EXPECT_EQ(got.range.high, want.range.high);
    EXPECT_EQ(got.non_finite, want.non_finite);
    EXPECT_EQ(got.first_non_finite, want.first_non_finite);
  }
}

}  // namespace
}  // namespace halftone
