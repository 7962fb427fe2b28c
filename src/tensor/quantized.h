// A matrix in a scheme: codes, scales, zero points. Dense matrices (fp32, bf16, fp16) are the schemes without scales.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "numeric/scale.h"
#include "numeric/scheme.h"

namespace halftone {

// value(r, c) = fl((code(r, c) - zero(g)) * fl(scale(g) * global)); g is the scale cell of (r, c).
struct QuantizedTensor {
  Scheme scheme;
  std::int64_t rows = 0, cols = 0;

  // One code an element, row-major: 1 byte (bits <= 8), 2 bytes LE (9..16) or 4 bytes LE (fp32). Integers are sign-
  // extended to the byte. With scheme.ggml: the raw blocks of the rows instead. May point into a mapped file.
  std::span<const std::byte> codes;
  std::vector<float> scales;  // [scale_rows, scale_cols] row-major, exact values of the scale format; empty if dense
  std::vector<std::int32_t> zeros;  // same shape; empty if symmetric
  float global_scale = 1.0F;

  std::shared_ptr<const void> owner;  // keeps `codes` alive

  int code_bytes() const { return scheme.element.bits <= 8 ? 1 : scheme.element.bits <= 16 ? 2 : 4; }
  SchemeShape scales_shape() const { return scale_shape(scheme, rows, cols); }
};

// Allocates codes inside the tensor (owner) and returns a writable view of them.
std::span<std::byte> allocate_codes(QuantizedTensor& tensor);

// Scalar reference; kernels/codec is the fast one. out.size() == count * cols.
void dequantize_rows(const QuantizedTensor& tensor, std::int64_t first, std::int64_t count, std::span<float> out);

// Rows [first, first + count) as a tensor of their own that shares the codes. `first` is a multiple of row_multiple().
QuantizedTensor slice_rows(const QuantizedTensor& tensor, std::int64_t first, std::int64_t count);

// What has to be known of a whole tensor before its rows can be coded one chunk after another.
struct TensorStats {
  float amax = 0;
  Range range;
  std::int64_t non_finite = 0;
  std::int64_t first_non_finite = -1;  // element index
};
void accumulate_stats(TensorStats& stats, std::span<const float> values, std::int64_t first_element);

// Round to nearest under the scheme with abs-max (or min-max) scales: rows of a larger tensor. `row_multiple()` of the
// scheme (block_rows, else 1) must divide the first row of a chunk. `whole` is read only if needs_whole_tensor_stats().
// Precondition: values are finite; plain BF16 and FP16 (casts: overflow to infinity) and FP32 take any. Other formats
// without scales saturate. Error(unsupported) where a GGUF block type cannot code such rows.
QuantizedTensor quantize_rows(const Scheme& scheme, std::span<const float> values, std::int64_t rows, std::int64_t cols,
                              const TensorStats& whole);
std::int64_t row_multiple(const Scheme& scheme);
bool needs_whole_tensor_stats(const Scheme& scheme);  // granularity tensor, two-level

// Quantize and decode activations in place, row by row, dynamic scales: x[m, k] under an activation scheme (tensor,
// token or group; a tensor's or two-level scale is that of this call). Dynamic scales are never stored, so BF16 scales
// stay FP32. A row with a non-finite value is left as it is, so that the value stays visible.
void fake_quantize_rows(const Scheme& scheme, std::span<float> values, std::int64_t rows, std::int64_t cols);

}  // namespace halftone
