// One matrix on its way through calibrated methods: find codes and scales so that the layer's outputs stay as they are.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/threads.h"
#include "quantize/code_grid.h"
#include "quantize/input_statistics.h"
#include "tensor/quantized.h"

namespace halftone {

// What matrices that read the same inputs share.
struct ProblemInputs {
  std::int64_t cols = 0, rows = 0;   // rows: of calibration data
  std::vector<float> second_moment;  // H [cols, cols]
  std::vector<float> cross_moment;   // C [cols, cols]
  HessianFactor factor;              // of H
  std::vector<float> importance;     // diagonal of H [cols]: how much a channel's squared error counts

  ProblemInputs() = default;
  ProblemInputs(const InputStatistics& statistics, double damping);
  // For rounding with weighed scales only: H is not known beyond its diagonal.
  explicit ProblemInputs(std::vector<float> diagonal);
};

class MatrixProblem {
 public:
  // Codes and scales are those of plain rounding with abs-max scales. The scheme must have scales and an element format
  // of at most 8 bits (can_solve).
  MatrixProblem(std::string module, const Scheme& scheme, std::span<const float> values, std::int64_t rows,
                const ProblemInputs& inputs);
  static bool can_solve(const Scheme& scheme);

  const std::string& module() const { return module_; }
  const Scheme& scheme() const { return solution_.scheme; }
  const ProblemInputs& inputs() const { return inputs_; }
  const CodeGrid& grid() const { return grid_; }
  std::int64_t rows() const { return solution_.rows; }
  std::int64_t cols() const { return solution_.cols; }

  std::span<float> target() { return target_; }  // [rows, cols]: what the codes are to come close to
  std::span<const float> target() const { return target_; }

  // Scale cells. Precondition of set_scale: a positive finite number; it is rounded into the scale's format and what it
  // has become is returned (0: it cannot be a scale, nothing was changed).
  std::int64_t cell(std::int64_t row, std::int64_t col) const {
    return row / cell_rows_ * scale_cols_ + col / cell_cols_;
  }
  std::int64_t cell_rows() const { return cell_rows_; }
  std::int64_t cell_cols() const { return cell_cols_; }
  float scale(std::int64_t cell) const {  // with the global one
    return solution_.scales[static_cast<std::size_t>(cell)] * solution_.global_scale;
  }
  std::int32_t zero(std::int64_t cell) const {
    return solution_.zeros.empty() ? 0 : solution_.zeros[static_cast<std::size_t>(cell)];
  }
  float rounded_scale(float wanted) const;           // as scale() would give it; 0 if it cannot be one
  void set_scale(std::int64_t cell, float rounded);  // a result of rounded_scale
  // The scales with the smallest squared error of the cells, each channel's error weighed by its second moment.
  void choose_scales(ThreadPool& pool);

  std::uint8_t* codes(std::int64_t row) { return codes_ + row * cols(); }
  float value(std::int64_t row, std::int64_t col) const {
    const std::int64_t at = cell(row, col);
    return grid_.value(codes_[row * cols() + col], zero(at)) * scale(at);
  }

  // tr(E H E^T) / tr(T H T^T) with T the target and E the difference between it and the values of the codes.
  double loss(ThreadPool& pool) const;
  // The same with the diagonal of H alone, and not divided.
  double weighted_error(ThreadPool& pool) const;
  const QuantizedTensor& solution() const { return solution_; }

 private:
  std::string module_;
  const ProblemInputs& inputs_;
  CodeGrid grid_;
  std::vector<float> target_;
  QuantizedTensor solution_;
  std::uint8_t* codes_ = nullptr;
  std::int64_t cell_rows_ = 1, cell_cols_ = 1, scale_cols_ = 1;
};

}  // namespace halftone
