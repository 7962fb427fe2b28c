// GPTAQ (Li et al. 2025, "Efficient finetuning-free quantization with asymmetric calibration"): the layer shall give
// what the original layer gave for the original inputs z, although it now gets x. The best real weights for that are
//   argmin_V E |W z - V x|^2 = W C H^-1,  C = E[z x^T], H = E[x x^T],
// here damped towards W: V = W + W (C - H) (H + damping)^-1. Rounding V under H is then the same problem as before.
#include <vector>

#include "quantize/calibrated_method.h"
#include "quantize/dense_product.h"

namespace halftone {
namespace {

class Gptaq final : public CalibratedMethod {
 public:
  std::string name() const override { return "gptaq"; }
  Place place() const override { return Place::target; }

  void apply(MatrixProblem& problem, ThreadPool& pool) const override {
    const ProblemInputs& inputs = problem.inputs();
    const std::int64_t cols = problem.cols(), rows = problem.rows();
    const auto channel = [&](std::int64_t j) { return std::int64_t{inputs.factor.order[static_cast<std::size_t>(j)]}; };
    // Row j: column channel(j) of C - H, so that the product comes out in the factor's order.
    std::vector<float> change(static_cast<std::size_t>(cols * cols)), transposed(change.size());
    const std::vector<float>& upper = inputs.factor.upper;
    pool.run_ranges(cols, 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t j = begin; j < end; ++j) {
        for (std::int64_t i = 0; i < cols; ++i) {
          const auto from = static_cast<std::size_t>(i * cols + channel(j));
          change[static_cast<std::size_t>(j * cols + i)] = inputs.cross_moment[from] - inputs.second_moment[from];
          transposed[static_cast<std::size_t>(j * cols + i)] = upper[static_cast<std::size_t>(i * cols + j)];
        }
      }
    });
    std::vector<float> a(problem.target().size()), b(a.size());
    dense_product(problem.target(), rows, change, cols, cols, a, pool);  // W (C - H)
    dense_product(a, rows, upper, cols, cols, b, pool);                  // times U^T
    dense_product(b, rows, transposed, cols, cols, a, pool);             // times U: H^-1 = U^T U
    pool.run_ranges(rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t r = begin; r < end; ++r) {
        for (std::int64_t j = 0; j < cols; ++j) {
          problem.target()[static_cast<std::size_t>(r * cols + channel(j))] +=
              a[static_cast<std::size_t>(r * cols + j)];
        }
      }
    });
  }
};

}  // namespace

std::unique_ptr<CalibratedMethod> make_gptaq() {
  return std::make_unique<Gptaq>();
}

}  // namespace halftone
