#include "pipeline/cell_counts.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace halftone {

CodeRange code_range(const Scheme& scheme) {
  CodeRange range;
  double below_high = -std::numeric_limits<double>::infinity();
  if (scheme.element.bits > 8) {
    range.high = max_finite(scheme.element);
    below_high = range.high * (1.0 - std::ldexp(1.0, -scheme.element.mantissa_bits - 1));
    range.low = -range.high;
  } else {
    for (std::uint32_t code = 0; code < code_count(scheme.element); ++code) {
      const double value = decode(scheme.element, code);
      if (!std::isfinite(value)) continue;
      range.low = std::min(range.low, value);
      range.high = std::max(range.high, value);
    }
    for (std::uint32_t code = 0; code < code_count(scheme.element); ++code) {
      const double value = decode(scheme.element, code);
      if (std::isfinite(value) && value < range.high) below_high = std::max(below_high, value);
    }
  }
  const double slack = (range.high - below_high) / 2 + 0.005 * range.high;
  range.high += slack;
  range.low -= slack;
  return range;
}

CellCounts count_cells(const CodeRange& range, const QuantizedTensor& q, std::span<const float> values) {
  CellCounts counts;
  const Scheme& scheme = q.scheme;
  const bool blocks = scheme.ggml.has_value();
  if (!blocks && (scheme.is_dense() || scheme.granularity == Granularity::tensor)) return counts;
  const std::int64_t cell_rows = !blocks && scheme.granularity == Granularity::block ? scheme.block_rows : 1;
  std::int64_t cell_cols = q.cols;
  if (blocks) {
    cell_cols = ggml_info(*scheme.ggml).block_elements;
  } else if (scheme.granularity == Granularity::group) {
    cell_cols = scheme.group;
  } else if (scheme.granularity == Granularity::block) {
    cell_cols = scheme.block_cols;
  }
  std::size_t cell = 0;
  for (std::int64_t top = 0; top < q.rows; top += cell_rows) {
    for (std::int64_t left = 0; left < q.cols; left += cell_cols, ++cell) {
      const std::int64_t bottom = std::min(q.rows, top + cell_rows), right = std::min(q.cols, left + cell_cols);
      bool zero = true;
      double low = 0, high = 0;
      if (!blocks) {
        const double scale = static_cast<double>(q.scales[cell]) * static_cast<double>(q.global_scale);
        const double shift = q.zeros.empty() ? 0.0 : static_cast<double>(q.zeros[cell]);
        low = (range.low - shift) * scale;
        high = (range.high - shift) * scale;
      }
      for (std::int64_t r = top; r < bottom; ++r) {
        const float* row = values.data() + static_cast<std::size_t>(r * q.cols);
        for (std::int64_t c = left; c < right; ++c) {
          const double value = static_cast<double>(row[c]);
          zero = zero && value == 0.0;
          if (!blocks && (value > high || value < low)) ++counts.clipped;
        }
      }
      if (zero) ++counts.zero_cells;
    }
  }
  return counts;
}

}  // namespace halftone
