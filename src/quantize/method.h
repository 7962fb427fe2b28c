// A method turns the rows of a matrix into codes. Plain rounding needs nothing but the rows; calibrated methods (an
// issue of their own) will ask for activations through the `needs_activations` door.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quantize/observers.h"
#include "tensor/quantized.h"

namespace halftone {

struct MethodInput {
  std::string_view module;
  const Scheme& scheme;
  std::span<const float> values;  // [rows, cols]; rows start at a multiple of row_multiple(scheme)
  std::int64_t first_row = 0, rows = 0, cols = 0;
  const TensorStats& whole;       // of the whole matrix where needs_whole_tensor_stats(scheme)
};

class Method {
 public:
  virtual ~Method() = default;
  virtual std::string name() const = 0;
  virtual bool needs_activations() const { return false; }
  virtual QuantizedTensor apply(const MethodInput& input) const = 0;  // thread-safe
};

// Registered: "rtn" (round to nearest with an observer). Error(usage) lists the names.
std::unique_ptr<Method> make_method(std::string_view name, std::string_view observer);
std::vector<std::string> method_names();

}  // namespace halftone
