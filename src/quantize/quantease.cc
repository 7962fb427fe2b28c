// Cyclic coordinate descent on the layer's squared error (Behdin et al. 2023, "QuantEase", section 3): each code in
// turn is set to the best one for all others as they are. Between rounds each scale is set to the least-squares one of
// its cell and rounded into its format. Every step that is taken lowers the error, so the result is never worse than
// the start.
#include <algorithm>
#include <cmath>
#include <vector>

#include "quantize/calibrated_method.h"
#include "quantize/dense_product.h"

namespace halftone {
namespace {

constexpr int kRounds = 4;

class QuantEase final : public CalibratedMethod {
 public:
  std::string name() const override { return "quantease"; }
  Place place() const override { return Place::refinement; }

  void apply(MatrixProblem& problem, ThreadPool& pool) const override {
    const std::int64_t cols = problem.cols();
    constexpr std::int64_t rows_at_once = 1024;
    std::vector<float> values, difference, gradient;
    for (std::int64_t first = 0; first < problem.rows(); first += rows_at_once) {
      const std::int64_t count = std::min(rows_at_once, problem.rows() - first);
      values.resize(static_cast<std::size_t>(count * cols));
      difference.resize(values.size());
      gradient.resize(values.size());
      for (int round = 0; round < kRounds; ++round) {
        pool.run_ranges(count, 1, [&](std::int64_t begin, std::int64_t end, int) {
          for (std::int64_t r = begin; r < end; ++r) {
            for (std::int64_t c = 0; c < cols; ++c) {
              const auto i = static_cast<std::size_t>(r * cols + c);
              values[i] = problem.value(first + r, c);
              difference[i] = values[i] - problem.target()[static_cast<std::size_t>((first + r) * cols + c)];
            }
          }
        });
        // Anew in every round, so that the rounding errors of the updates do not add up.
        dense_product(difference, count, problem.inputs().second_moment, cols, cols, gradient, pool);
        pool.run(count, [&](std::int64_t r, int) {
          Row row{problem, first + r, values.data() + r * cols, gradient.data() + r * cols};
          if (problem.cell_rows() == 1) row.refit_scales();
          row.descend();
        });
      }
    }
  }

 private:
  // w: the values of the codes; g = (w - target) H.
  struct Row {
    MatrixProblem& problem;
    std::int64_t row;
    float* w;
    float* g;

    const float* h(std::int64_t channel) const {
      return problem.inputs().second_moment.data() + channel * problem.cols();
    }

    void descend() {
      const std::int64_t cols = problem.cols();
      std::uint8_t* codes = problem.codes(row);
      const CodeGrid& grid = problem.grid();
      for (const std::int32_t c : problem.inputs().factor.order) {
        const float curvature = h(c)[c];
        if (!(curvature > 0)) continue;
        const std::int64_t cell = problem.cell(row, c);
        const float scale = problem.scale(cell);
        const std::int32_t zero = problem.zero(cell);
        const std::uint8_t code = grid.nearest((w[c] - g[c] / curvature) / scale, zero);
        if (code == codes[c]) continue;
        const float step = grid.value(code, zero) * scale - w[c];
        codes[c] = code;
        w[c] += step;
        const float* hc = h(c);
        for (std::int64_t k = 0; k < cols; ++k) g[k] += step * hc[k];
      }
    }

    // For one cell with values w = s v: the error changes by 2 d (v . g) + d^2 v H v when s becomes s + d.
    void refit_scales() {
      const std::int64_t cols = problem.cols(), width = problem.cell_cols();
      std::vector<float> hw(static_cast<std::size_t>(cols));
      for (std::int64_t left = 0; left < cols; left += width) {
        const std::int64_t right = std::min(cols, left + width);
        std::fill(hw.begin(), hw.end(), 0.0F);
        for (std::int64_t c = left; c < right; ++c) {
          const float* hc = h(c);
          if (w[c] == 0.0F) continue;
          for (std::int64_t k = 0; k < cols; ++k) hw[static_cast<std::size_t>(k)] += w[c] * hc[k];
        }
        double slope = 0, curvature = 0;
        for (std::int64_t c = left; c < right; ++c) {
          slope += static_cast<double>(w[c]) * static_cast<double>(g[c]);
          curvature += static_cast<double>(w[c]) * static_cast<double>(hw[static_cast<std::size_t>(c)]);
        }
        if (!(curvature > 0)) continue;
        const std::int64_t cell = problem.cell(row, left);
        const float scale = problem.scale(cell);
        const float rounded = problem.rounded_scale(scale * static_cast<float>(1.0 - slope / curvature));
        if (rounded <= 0 || rounded == scale) continue;
        const double d = static_cast<double>(rounded) / static_cast<double>(scale) - 1.0;
        if (2 * d * slope + d * d * curvature >= 0) continue;  // coarse scale formats
        problem.set_scale(cell, rounded);
        for (std::int64_t c = left; c < right; ++c) w[c] *= 1.0F + static_cast<float>(d);
        for (std::int64_t k = 0; k < cols; ++k) g[k] += static_cast<float>(d) * hw[static_cast<std::size_t>(k)];
      }
    }
  };
};

}  // namespace

std::unique_ptr<CalibratedMethod> make_quantease() {
  return std::make_unique<QuantEase>();
}

}  // namespace halftone
