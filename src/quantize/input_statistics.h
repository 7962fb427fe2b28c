// What calibrated methods know of the inputs of a linear layer: second moments, gathered from rows in any number of
// pieces.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/threads.h"

namespace halftone {

class InputStatistics {
 public:
  explicit InputStatistics(std::int64_t cols);

  // Rows [count, cols] of the inputs as the quantized model has them (after the quantization of activations, if any),
  // and the same positions in the original model. The sums depend on how rows are cut into calls, but not on threads.
  // Error(bad_input) if a value is not finite.
  void add(std::span<const float> quantized, std::span<const float> original, std::int64_t count, ThreadPool& pool);

  std::int64_t cols() const { return cols_; }
  std::int64_t rows() const { return rows_; }
  // H = mean of x x^T [cols, cols], x the quantized model's input (half of the Hessian of the layer's squared error).
  std::vector<float> second_moment() const;
  // C = mean of z x^T [cols, cols], z the original model's input: element (i, j) is the mean of z_i x_j.
  std::vector<float> cross_moment() const;

 private:
  std::int64_t cols_, rows_ = 0;
  std::vector<float> sums_;  // [2 * cols, cols]: of x x^T, then of z x^T
};

// H = R R^T with the input channels in `order`, and U = R^-1, so that H^-1 = U^T U: U is upper triangular, what GPTQ
// (Frantar et al. 2022, section 3.3) calls the Cholesky form of the inverse.
struct HessianFactor {
  std::vector<std::int32_t> order;  // position -> channel
  std::vector<float> upper;         // U [cols, cols], row-major, zero below the diagonal
  double damping = 0;               // what was added to the diagonal, as a share of its mean
  std::int64_t dead = 0;            // channels that are zero in every row; they keep to themselves
  std::int64_t tries = 1;           // of the damping ladder
};

// `damping` is raised tenfold until the matrix can be factored, at most to 10. by_activity: channels in descending
// order of their second moment (GPTQ's act-order), else as they stand. Error(bad_input) if nothing helps.
HessianFactor factor_hessian(std::span<const float> second_moment, std::int64_t cols, double damping, bool by_activity);

}  // namespace halftone
