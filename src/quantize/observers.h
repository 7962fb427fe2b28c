// How the range of a scale cell is chosen before its scale is computed: the seam between "what is in this group" and
// "which scale codes it". Round-to-nearest uses one of these; calibrated methods bring their own.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "numeric/scale.h"
#include "tensor/quantized.h"

namespace halftone {

class ScaleObserver {
 public:
  virtual ~ScaleObserver() = default;
  virtual std::string name() const = 0;
  // The scale of the values that share one cell. Precondition: finite values, at least one.
  virtual ScaleZero choose(const Scheme& scheme, std::span<const float> values, float global) const = 0;
  virtual bool is_absmax() const { return false; }
};

// absmax: the whole range. mse: the clip ratio in {1.00, 0.98, ..., 0.40} with the smallest squared error of the cell
// (ties: the larger ratio). percentile[:P]: the range that holds P % of the magnitudes (default 99.9).
// Error(usage) lists the names.
std::unique_ptr<ScaleObserver> make_observer(std::string_view name);
std::vector<std::string> observer_names();

// Rows under a scheme with the observer's scales; with absmax the same as quantize_rows (tensor/quantized.h).
// Dense schemes and GGUF blocks have no scales to choose, and one scale a tensor would need all rows at once: these
// are always coded with abs-max.
QuantizedTensor quantize_with(const ScaleObserver& observer, const Scheme& scheme, std::span<const float> values,
                              std::int64_t rows, std::int64_t cols, const TensorStats& whole);

}  // namespace halftone
