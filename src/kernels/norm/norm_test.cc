#include "kernels/norm/norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "base/testing.h"
#include "kernels/norm/kernels.h"

namespace halftone {
namespace {

TEST(RmsNorm, MatchesTheFormula) {
  ThreadPool pool(2);
  for (const std::int64_t cols : {1, 5, 8, 64, 576, 577}) {
    const std::int64_t rows = 19;
    const auto x = normal_values(rows * cols, 1),
               w = normal_values(static_cast<std::size_t>(cols), 2);
    std::vector<float> y(x.size());
    rms_norm(x.data(), w, 1e-5F, rows, cols, y.data(), pool);
    for (std::int64_t r = 0; r < rows; ++r) {
      double squares = 0;
      for (std::int64_t c = 0; c < cols; ++c)
        squares += std::pow(static_cast<double>(x[static_cast<std::size_t>(r * cols + c)]), 2);
      const double inverse = 1.0 / std::sqrt(squares / static_cast<double>(cols) + static_cast<double>(1e-5F));
      for (std::int64_t c = 0; c < cols; ++c) {
        const auto i = static_cast<std::size_t>(r * cols + c);
        const double want = static_cast<double>(x[i]) * inverse * static_cast<double>(w[static_cast<std::size_t>(c)]);
        ASSERT_NEAR(static_cast<double>(y[i]), want, 1e-6 * std::fabs(want)) << cols;
      }
    }
  }
}

TEST(RmsNorm, InstructionSetsBatchingAndThreadsAgreeBitForBit) {
  for (const std::int64_t cols : {3, 8, 100, 576, 2051}) {
    const std::int64_t rows = 33;
    const auto x = normal_values(static_cast<std::size_t>(rows * cols), 3),
               w = normal_values(static_cast<std::size_t>(cols), 4);
    std::vector<float> want(x.size()), got(x.size());
    for (std::int64_t r = 0; r < rows; ++r) {
      scalar::rms_norm_row(x.data() + r * cols, w.data(), 1e-6F, cols, want.data() + r * cols);
    }
    for (const int threads : {1, 3}) {
      ThreadPool pool(threads);
      rms_norm(x.data(), w, 1e-6F, rows, cols, got.data(), pool);
      EXPECT_EQ(0, std::memcmp(got.data(), want.data(), want.size() * sizeof(float))) << cols;
      std::vector<float> in_place = x;
      rms_norm(in_place.data(), w, 1e-6F, rows, cols, in_place.data(), pool);
      EXPECT_EQ(0, std::memcmp(in_place.data(), want.data(), want.size() * sizeof(float))) << cols;
    }
  }
}

TEST(RmsNorm, ZeroRowsAndZeroValues) {
  ThreadPool pool(1);
  const std::vector<float> w(8, 1.0F);
  std::vector<float> x(8, 0.0F);
  rms_norm(x.data(), w, 1e-5F, 0, 8, x.data(), pool);
  rms_norm(x.data(), w, 1e-5F, 1, 8, x.data(), pool);
  for (const float v : x) EXPECT_EQ(v, 0.0F);
}

}  // namespace
}  // namespace halftone
