// Fast encoding and decoding of whole rows: equal to the scalar codec of numeric/ bit for bit.
#pragma once

#include <cstdint>
#include <span>

#include "base/threads.h"
#include "tensor/quantized.h"

namespace halftone {

// dequantize_rows (tensor/quantized.h), in parallel and through look-up tables.
void dequantize(const QuantizedTensor& tensor, std::span<float> out, ThreadPool& pool);

// quantize_rows (tensor/quantized.h), in parallel over rows.
QuantizedTensor quantize(const Scheme& scheme, std::span<const float> values, std::int64_t rows, std::int64_t cols,
                         const TensorStats& whole, ThreadPool& pool);

// accumulate_stats in parallel.
void scan(TensorStats& stats, std::span<const float> values, std::int64_t first_element, ThreadPool& pool);

}  // namespace halftone
