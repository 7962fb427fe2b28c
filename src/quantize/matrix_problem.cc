#include "quantize/matrix_problem.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "quantize/dense_product.h"

namespace halftone {
namespace {

// sum over rows of d H d^T, rows [rows, cols].
double weighted_energy(std::span<const float> d, std::int64_t rows, std::span<const float> h, std::int64_t cols,
                       ThreadPool& pool) {
  constexpr std::int64_t rows_at_once = 4096;
  double sum = 0;
  std::vector<float> product;
  for (std::int64_t first = 0; first < rows; first += rows_at_once) {
    const std::int64_t count = std::min(rows_at_once, rows - first);
    const auto part = d.subspan(static_cast<std::size_t>(first * cols), static_cast<std::size_t>(count * cols));
    product.resize(part.size());
    dense_product(part, count, h, cols, cols, product, pool);  // H is symmetric
    std::vector<double> sums(static_cast<std::size_t>(count));
    pool.run_ranges(count, 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t r = begin; r < end; ++r) {
        for (std::int64_t c = 0; c < cols; ++c) {
          const auto i = static_cast<std::size_t>(r * cols + c);
          sums[static_cast<std::size_t>(r)] += static_cast<double>(part[i]) * static_cast<double>(product[i]);
        }
      }
    });
    for (const double row : sums) sum += row;
  }
  return sum;
}

}  // namespace

ProblemInputs::ProblemInputs(const InputStatistics& statistics, double damping)
    : cols(statistics.cols()),
      rows(statistics.rows()),
      second_moment(statistics.second_moment()),
      cross_moment(statistics.cross_moment()),
      factor(factor_hessian(second_moment, cols, damping, true)) {
  for (std::int64_t c = 0; c < cols; ++c) importance.push_back(second_moment[static_cast<std::size_t>(c * (cols + 1))]);
}

ProblemInputs::ProblemInputs(std::vector<float> diagonal)
    : cols(static_cast<std::int64_t>(diagonal.size())), importance(std::move(diagonal)) {}

bool MatrixProblem::can_solve(const Scheme& scheme) {
  return !scheme.ggml && !scheme.is_dense() && scheme.element.bits <= 8 &&
         scheme.element.kind != FormatKind::exponent && scheme.granularity != Granularity::token;
}

MatrixProblem::MatrixProblem(std::string module, const Scheme& scheme, std::span<const float> values, std::int64_t rows,
                             const ProblemInputs& inputs)
    : module_(std::move(module)), inputs_(inputs), grid_(scheme.element), target_(values.begin(), values.end()) {
  HT_CHECK(can_solve(scheme) && static_cast<std::int64_t>(values.size()) == rows * inputs.cols);
  TensorStats stats;
  accumulate_stats(stats, values, 0);
  solution_ = quantize_rows(scheme, values, rows, inputs.cols, stats);
  // Codes of its own: quantize_rows hands out a view of bytes that nobody may change.
  std::vector<std::byte> codes(solution_.codes.begin(), solution_.codes.end());
  const std::span<std::byte> own = allocate_codes(solution_);
  std::copy(codes.begin(), codes.end(), own.begin());
  codes_ = reinterpret_cast<std::uint8_t*>(own.data());
  const SchemeShape cells = solution_.scales_shape();
  scale_cols_ = std::max<std::int64_t>(1, cells.scale_cols);
  switch (scheme.granularity) {
    case Granularity::tensor:
      cell_rows_ = std::max<std::int64_t>(1, rows);
      cell_cols_ = inputs.cols;
      break;
    case Granularity::group:
      cell_cols_ = scheme.group;
      break;
    case Granularity::block:
      cell_rows_ = scheme.block_rows;
      cell_cols_ = scheme.block_cols;
      break;
    default:
      cell_cols_ = inputs.cols;
      break;
  }
}

float MatrixProblem::rounded_scale(float wanted) const {
  const float global = solution_.global_scale;
  if (!(wanted > 0) || !std::isfinite(wanted)) return 0;
  const auto rounded =
      static_cast<float>(round_to(scheme().scale, static_cast<double>(wanted) / static_cast<double>(global)));
  const float whole = rounded * global;
  return std::isfinite(whole) && whole >= 0x1p-126F ? whole : 0.0F;
}

void MatrixProblem::set_scale(std::int64_t cell, float rounded) {
  solution_.scales[static_cast<std::size_t>(cell)] = static_cast<float>(
      round_to(scheme().scale, static_cast<double>(rounded) / static_cast<double>(solution_.global_scale)));
}

void MatrixProblem::choose_scales(ThreadPool& pool) {
  const std::int64_t width = cols(), height = rows();
  const std::int64_t bands = (height + cell_rows_ - 1) / cell_rows_;
  const ScaleChooser chooser(scheme(), solution_.global_scale);
  std::vector<float> weights = inputs_.importance;
  double mean = 0;
  for (const float weight : weights) mean += static_cast<double>(weight) / static_cast<double>(width);
  // Channels that the calibration data never moved still count a little.
  for (float& weight : weights) weight += static_cast<float>(mean > 0 ? 1e-3 * mean : 1.0);
  pool.run(bands, [&](std::int64_t band, int) {
    const std::int64_t top = band * cell_rows_, bottom = std::min(height, top + cell_rows_);
    for (std::int64_t left = 0; left < width; left += cell_cols_) {
      const std::int64_t right = std::min(width, left + cell_cols_);
      Range range;
      for (std::int64_t r = top; r < bottom; ++r) {
        for (std::int64_t c = left; c < right; ++c) {
          const float value = target_[static_cast<std::size_t>(r * width + c)];
          range.low = std::min(range.low, value);
          range.high = std::max(range.high, value);
        }
      }
      if (range.low == 0.0F && range.high == 0.0F) continue;
      const std::int64_t at = cell(top, left);
      double smallest = std::numeric_limits<double>::infinity();
      ScaleZero last{};
      int best = 0;
      const auto attempt = [&](int step) {  // of a fortieth of the range
        const float ratio = static_cast<float>(step) * 0.025F;
        const ScaleZero candidate = chooser.choose(Range{range.low * ratio, range.high * ratio});
        if (candidate.scale == last.scale && candidate.zero == last.zero) return;
        last = candidate;
        const float s = candidate.scale * solution_.global_scale, inverse = 1.0F / s;
        double error = 0;
        for (std::int64_t r = top; r < bottom && error < smallest; ++r) {
          float sum = 0;
          for (std::int64_t c = left; c < right; ++c) {
            const float value = target_[static_cast<std::size_t>(r * width + c)];
            const float back = grid_.value(grid_.nearest(value * inverse, candidate.zero), candidate.zero) * s;
            sum += weights[static_cast<std::size_t>(c)] * (value - back) * (value - back);
          }
          error += static_cast<double>(sum);
        }
        if (error >= smallest) return;
        smallest = error;
        best = step;
        solution_.scales[static_cast<std::size_t>(at)] = candidate.scale;
        if (!solution_.zeros.empty()) solution_.zeros[static_cast<std::size_t>(at)] = candidate.zero;
      };
      attempt(40);                                               // the whole range: never worse than that
      for (int step = 42; step >= 10; step -= 4) attempt(step);  // 1.05 to 0.25 of it
      const int coarse = best;
      for (const int offset : {-3, -2, -1, 1, 2, 3}) attempt(coarse + offset);
    }
  });
}

double MatrixProblem::loss(ThreadPool& pool) const {
  std::vector<float> difference(target_.size());
  pool.run_ranges(rows(), 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::int64_t c = 0; c < cols(); ++c) {
        const auto i = static_cast<std::size_t>(r * cols() + c);
        difference[i] = value(r, c) - target_[i];
      }
    }
  });
  const double energy = weighted_energy(target_, rows(), inputs_.second_moment, cols(), pool);
  const double error = weighted_energy(difference, rows(), inputs_.second_moment, cols(), pool);
  return energy > 0 ? error / energy : 0;
}

double MatrixProblem::weighted_error(ThreadPool& pool) const {
  std::vector<double> sums(static_cast<std::size_t>(rows()));
  pool.run_ranges(rows(), 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::int64_t c = 0; c < cols(); ++c) {
        const double d =
            static_cast<double>(value(r, c)) - static_cast<double>(target_[static_cast<std::size_t>(r * cols() + c)]);
        sums[static_cast<std::size_t>(r)] +=
            d * d * static_cast<double>(inputs_.importance[static_cast<std::size_t>(c)]);
      }
    }
  });
  double sum = 0;
  for (const double row : sums) sum += row;
  return sum;
}

}  // namespace halftone
