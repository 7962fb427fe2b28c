// What a report says of the scale cells of a quantized matrix: values that were clipped, cells that hold only zeros.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/quantized.h"

namespace halftone {

// The values that a scheme's codes reach, in units of the scale, with half a step and the scale's own rounding allowed.
struct CodeRange {
  double low = 0, high = 0;
};

CodeRange code_range(const Scheme& scheme);

struct CellCounts {
  std::int64_t clipped = 0, zero_cells = 0;
};

// `values`: the rows of q before they were quantized. Clipped values are counted where a row has its own scales.
CellCounts count_cells(const CodeRange& range, const QuantizedTensor& q, std::span<const float> values);

}  // namespace halftone
