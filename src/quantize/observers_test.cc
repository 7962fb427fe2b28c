#include "quantize/observers.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/random.h"

namespace halftone {
namespace {

std::vector<float> values_with_outlier(std::size_t count) {
  CounterRng rng(11);
  std::vector<float> values(count);
  for (float& value : values) value = rng.next_normal();
  values[count / 3] = 6.0F;
  return values;
}

double error_of(const ScaleObserver& observer, const Scheme& scheme, const std::vector<float>& values,
                std::int64_t rows, std::int64_t cols) {
  TensorStats stats;
  accumulate_stats(stats, values, 0);
  const QuantizedTensor q = quantize_with(observer, scheme, values, rows, cols, stats);
  std::vector<float> back(values.size());
  dequantize_rows(q, 0, rows, back);
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double d = static_cast<double>(values[i]) - static_cast<double>(back[i]);
    sum += d * d;
  }
  return sum;
}

TEST(Observers, SmallestErrorIsNeverWorseThanAbsMaxAndBetterWithOutliers) {
  const auto absmax = make_observer("absmax"), mse = make_observer("mse");
  for (const char* text : {"int4:channel", "int4:g64", "int4:g64:asym", "int3:g60", "fp8_e4m3:channel", "mxfp4",
                           "nvfp4", "int4:16x32", "nf4:g64"}) {
    const Scheme scheme = parse_scheme(text);
    const std::vector<float> values = values_with_outlier(32 * 128);
    EXPECT_LE(error_of(*mse, scheme, values, 32, 128), error_of(*absmax, scheme, values, 32, 128)) << text;
  }
  const Scheme int4 = parse_scheme("int4:channel");
  const std::vector<float> values = values_with_outlier(2048);
  EXPECT_LT(error_of(*mse, int4, values, 1, 2048), 0.6 * error_of(*absmax, int4, values, 1, 2048));
}

TEST(Observers, OwnLoopAgreesWithTheSharedRoutineWhereNothingIsClipped) {
  // percentile:100 is abs-max through this file's loop.
  const auto all = make_observer("percentile:100"), absmax = make_observer("absmax");
  for (const char* text : {"int4:g48", "int8:channel:asym", "int3:g32:asym", "fp8_e4m3:16x48", "nvfp4", "mxfp4",
                           "e4m4:g32", "int2:g16", "fp6_e2m3:g32:e8m0", "nf4:g64"}) {
    const Scheme scheme = parse_scheme(text);
    std::vector<float> values = values_with_outlier(20 * 100);
    std::fill(values.begin(), values.begin() + 100, 0.0F);
    TensorStats stats;
    accumulate_stats(stats, values, 0);
    const QuantizedTensor a = quantize_with(*all, scheme, values, 20, 100, stats);
    const QuantizedTensor b = quantize_with(*absmax, scheme, values, 20, 100, stats);
    EXPECT_TRUE(std::equal(a.codes.begin(), a.codes.end(), b.codes.begin(), b.codes.end())) << text;
    EXPECT_EQ(a.scales, b.scales) << text;
    EXPECT_EQ(a.zeros, b.zeros) << text;
  }
}

TEST(Observers, PercentileClipsAndKeepsMostlyZeroCellsAlive) {
  const auto percentile = make_observer("percentile:90");
  std::vector<float> values(100, 0.5F);
  values[7] = 100.0F;
  const Scheme scheme = parse_scheme("int8:channel");
  EXPECT_LT(percentile->choose(scheme, values, 1.0F).scale, 0.01F);
  std::vector<float> sparse(100, 0.0F);
  sparse[3] = 2.0F;
  EXPECT_GT(percentile->choose(scheme, sparse, 1.0F).scale, 0.01F);
}

TEST(Observers, UnknownNamesListTheKnown) {
  for (const char* name : {"minmax", "percentile:0", "percentile:101", "percentile:x", "percentile:"}) {
    EXPECT_THROW(make_observer(name), Error) << name;
  }
}

}  // namespace
}  // namespace halftone
