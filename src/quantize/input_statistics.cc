#include "quantize/input_statistics.h"

#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "kernels/matmul/matmul.h"
#include "quantize/dense_product.h"

namespace halftone {
namespace {

// [rows, cols] -> [cols, rows]
void transpose(const float* from, std::int64_t rows, std::int64_t cols, float* to, ThreadPool& pool) {
  constexpr std::int64_t tile = 32;
  pool.run_ranges(cols, tile, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r0 = 0; r0 < rows; r0 += tile) {
      const std::int64_t r1 = std::min(rows, r0 + tile);
      for (std::int64_t c = begin; c < end; ++c) {
        for (std::int64_t r = r0; r < r1; ++r) to[c * rows + r] = from[r * cols + c];
      }
    }
  });
}

}  // namespace

InputStatistics::InputStatistics(std::int64_t cols) : cols_(cols), sums_(static_cast<std::size_t>(2 * cols * cols)) {}

void InputStatistics::add(std::span<const float> quantized, std::span<const float> original, std::int64_t count,
                          ThreadPool& pool) {
  HT_CHECK(static_cast<std::int64_t>(quantized.size()) == count * cols_ && quantized.size() == original.size());
  for (const std::span<const float> values : {quantized, original}) {
    float sum = 0;
    for (const float x : values) sum += x * 0.0F;  // NaN for anything that is not finite
    if (sum != 0.0F || std::isnan(sum)) {
      fail(ErrorKind::bad_input, "the model's activations are not finite on the calibration data");
    }
  }
  std::vector<float> columns(2 * quantized.size()), product(sums_.size());
  transpose(quantized.data(), count, cols_, columns.data(), pool);
  transpose(original.data(), count, cols_, columns.data() + quantized.size(), pool);
  dense_product(columns, 2 * cols_, std::span(columns).first(quantized.size()), cols_, count, product, pool);
  pool.run_ranges(static_cast<std::int64_t>(sums_.size()), 4096, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i)
      sums_[static_cast<std::size_t>(i)] += product[static_cast<std::size_t>(i)];
  });
  rows_ += count;
}

std::vector<float> InputStatistics::second_moment() const {
  const auto size = static_cast<std::size_t>(cols_ * cols_);
  std::vector<float> out(sums_.begin(), sums_.begin() + static_cast<std::ptrdiff_t>(size));
  for (float& value : out) value /= static_cast<float>(std::max<std::int64_t>(1, rows_));
  return out;
}

std::vector<float> InputStatistics::cross_moment() const {
  const auto size = static_cast<std::size_t>(cols_ * cols_);
  std::vector<float> out(sums_.begin() + static_cast<std::ptrdiff_t>(size), sums_.end());
  for (float& value : out) value /= static_cast<float>(std::max<std::int64_t>(1, rows_));
  return out;
}

HessianFactor factor_hessian(std::span<const float> second_moment, std::int64_t cols, double damping,
                             bool by_activity) {
  HT_CHECK(static_cast<std::int64_t>(second_moment.size()) == cols * cols && cols > 0 && damping >= 0);
  const auto at = [&](std::int64_t i, std::int64_t j) {
    return static_cast<double>(second_moment[static_cast<std::size_t>(i * cols + j)]);
  };
  HessianFactor factor;
  factor.order.resize(static_cast<std::size_t>(cols));
  std::iota(factor.order.begin(), factor.order.end(), 0);
  if (by_activity) {
    std::stable_sort(factor.order.begin(), factor.order.end(),
                     [&](std::int32_t a, std::int32_t b) { return at(a, a) > at(b, b); });
  }
  double mean = 0;
  for (std::int64_t i = 0; i < cols; ++i) {
    mean += at(i, i) / static_cast<double>(cols);
    factor.dead += at(i, i) == 0.0 ? 1 : 0;
  }
  if (mean <= 0) mean = 1;  // nothing is known of the inputs: every channel for itself

  // The channels are taken in reverse, so that Eigen's lower factor is R turned round.
  const auto channel = [&](std::int64_t i) { return factor.order[static_cast<std::size_t>(cols - 1 - i)]; };
  Eigen::MatrixXd matrix(cols, cols);
  factor.damping = damping;
  for (;; ++factor.tries) {
    for (std::int64_t j = 0; j < cols; ++j) {
      for (std::int64_t i = 0; i < cols; ++i) matrix(i, j) = at(channel(i), channel(j));
      matrix(j, j) += factor.damping * mean;
      if (at(channel(j), channel(j)) == 0.0) matrix(j, j) = mean;
    }
    const Eigen::LLT<Eigen::Ref<Eigen::MatrixXd>, Eigen::Lower> lower(matrix);  // in place
    if (lower.info() == Eigen::Success && matrix.diagonal().minCoeff() > 0) break;
    if (factor.damping >= 10) fail(ErrorKind::bad_input, "the second moments of the inputs cannot be factored");
    factor.damping = std::max(1e-4, factor.damping * 10);
  }
  Eigen::MatrixXd inverse = Eigen::MatrixXd::Identity(cols, cols);
  matrix.triangularView<Eigen::Lower>().solveInPlace(inverse);
  factor.upper.assign(static_cast<std::size_t>(cols * cols), 0.0F);
  for (std::int64_t i = 0; i < cols; ++i) {
    for (std::int64_t j = i; j < cols; ++j) {
      factor.upper[static_cast<std::size_t>(i * cols + j)] = static_cast<float>(inverse(cols - 1 - i, cols - 1 - j));
    }
  }
  return factor;
}

}  // namespace halftone
