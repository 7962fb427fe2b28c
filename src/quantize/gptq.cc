// GPTQ (Frantar, Ashkboos, Hoefler, Alistarh 2022), algorithm 1: channels are rounded one after the other, the most
// active first; what a channel loses is made up for by those that follow, w_k -= (w_j - q_j) U_jk / U_jj, with H^-1 =
// U^T U. Scales are those of the original weights (static groups), so that the order of channels does not touch the
// layout.
#include <algorithm>
#include <vector>

#include "quantize/calibrated_method.h"

namespace halftone {
namespace {

class Gptq final : public CalibratedMethod {
 public:
  std::string name() const override { return "gptq"; }
  Place place() const override { return Place::rounding; }

  void apply(MatrixProblem& problem, ThreadPool& pool) const override {
    problem.choose_scales(pool);
    constexpr std::int64_t rows_a_task = 8;  // that share each row of U while it is in the cache
    const std::int64_t cols = problem.cols(), rows = problem.rows();
    const HessianFactor& factor = problem.inputs().factor;
    pool.run((rows + rows_a_task - 1) / rows_a_task, [&](std::int64_t task, int) {
      const std::int64_t first = task * rows_a_task, count = std::min(rows_a_task, rows - first);
      std::vector<float> w(static_cast<std::size_t>(count * cols));
      for (std::int64_t r = 0; r < count; ++r) {
        const float* from = problem.target().data() + (first + r) * cols;
        for (std::int64_t j = 0; j < cols; ++j) {
          w[static_cast<std::size_t>(r * cols + j)] = from[factor.order[static_cast<std::size_t>(j)]];
        }
      }
      for (std::int64_t j = 0; j < cols; ++j) {
        const float* u = factor.upper.data() + j * cols;
        const std::int64_t channel = factor.order[static_cast<std::size_t>(j)];
        for (std::int64_t r = 0; r < count; ++r) {
          float* row = w.data() + r * cols;
          const std::int64_t cell = problem.cell(first + r, channel);
          const float scale = problem.scale(cell);
          const std::int32_t zero = problem.zero(cell);
          const std::uint8_t code = problem.grid().nearest(row[j] / scale, zero);
          problem.codes(first + r)[channel] = code;
          const float error = (row[j] - problem.grid().value(code, zero) * scale) / u[j];
          for (std::int64_t k = j + 1; k < cols; ++k) row[k] -= error * u[k];
        }
      }
    });
  }
};

class WeightedRounding final : public CalibratedMethod {
 public:
  std::string name() const override { return "rtn"; }
  Place place() const override { return Place::rounding; }

  void apply(MatrixProblem& problem, ThreadPool& pool) const override {
    problem.choose_scales(pool);
    pool.run_ranges(problem.rows(), 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t r = begin; r < end; ++r) {
        for (std::int64_t c = 0; c < problem.cols(); ++c) {
          const std::int64_t cell = problem.cell(r, c);
          const float value = problem.target()[static_cast<std::size_t>(r * problem.cols() + c)];
          problem.codes(r)[c] = problem.grid().nearest(value / problem.scale(cell), problem.zero(cell));
        }
      }
    });
  }
};

}  // namespace

std::unique_ptr<CalibratedMethod> make_gptq() {
  return std::make_unique<Gptq>();
}
std::unique_ptr<CalibratedMethod> make_weighted_rounding() {
  return std::make_unique<WeightedRounding>();
}

}  // namespace halftone
