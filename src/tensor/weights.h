// Weights as a model sees them: by module name ("model.layers.0.self_attn.q_proj"), each a matrix in a scheme.
// The model knows no files; whoever opens a checkpoint implements this (pipeline/open.h).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/quantized.h"

namespace halftone {

struct WeightInfo {
  std::string module;  // canonical Hugging Face name without ".weight"
  Scheme scheme;
  std::optional<Scheme> activations;  // how the inputs of this linear are quantized
  std::int64_t rows = 0, cols = 0;
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual std::optional<WeightInfo> find(std::string_view module) const = 0;  // nullopt: no such matrix
  // Rows of a matrix; `first` must be a multiple of row_multiple(scheme) and, unless it reaches the end, so must `count`.
  virtual QuantizedTensor rows(const WeightInfo& info, std::int64_t first, std::int64_t count) const = 0;
  // A vector ("model.norm.weight", "model.layers.0.self_attn.q_proj.bias") in FP32; nullopt if absent.
  virtual std::optional<std::vector<float>> vector(std::string_view name) const = 0;
  // Drops resident pages of what was read.
  virtual void forget(const WeightInfo&) const {}
};

}  // namespace halftone
