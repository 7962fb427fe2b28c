#include "kernels/codec/codec.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/integer.h"

namespace halftone {
namespace {

// Rows a task: at least some ten thousand values, a multiple of what the scheme codes together.
std::int64_t chunk_rows(const Scheme& scheme, std::int64_t cols) {
  constexpr std::int64_t kValues = 32768;
  const std::int64_t multiple = row_multiple(scheme);
  const std::int64_t rows = std::max<std::int64_t>(1, kValues / std::max<std::int64_t>(1, cols));
  return round_up(rows, multiple);
}

// The upper half of an FP32 word. By far the most common dense input, so it has a loop that the compiler vectorizes.
void widen_bf16(const std::byte* codes, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint16_t code = 0;
    std::memcpy(&code, codes + 2 * i, sizeof code);
    out[i] = std::bit_cast<float>(static_cast<std::uint32_t>(code) << 16);
  }
}

void merge(TensorStats& into, const TensorStats& part) {
  into.amax = std::max(into.amax, part.amax);
  into.range.low = std::min(into.range.low, part.range.low);
  into.range.high = std::max(into.range.high, part.range.high);
  into.non_finite += part.non_finite;
  if (part.first_non_finite >= 0 && (into.first_non_finite < 0 || part.first_non_finite < into.first_non_finite)) {
    into.first_non_finite = part.first_non_finite;
  }
}

}  // namespace

void dequantize(const QuantizedTensor& tensor, std::span<float> out, ThreadPool& pool) {
  HT_CHECK(static_cast<std::int64_t>(out.size()) == tensor.rows * tensor.cols);
  const std::int64_t step = chunk_rows(tensor.scheme, tensor.cols);
  const bool bf16 = tensor.scheme.is_dense() && tensor.scheme.element == bf16_format();
  pool.run(ceil_div(tensor.rows, step), [&](std::int64_t task, int) {
    const std::int64_t first = task * step, count = std::min(step, tensor.rows - first);
    if (bf16) {
      return widen_bf16(tensor.codes.data() + 2 * first * tensor.cols, count * tensor.cols,
                        out.data() + first * tensor.cols);
    }
    dequantize_rows(
        tensor, first, count,
        out.subspan(static_cast<std::size_t>(first * tensor.cols), static_cast<std::size_t>(count * tensor.cols)));
  });
}

QuantizedTensor quantize(const Scheme& scheme, std::span<const float> values, std::int64_t rows, std::int64_t cols,
                         const TensorStats& whole, ThreadPool& pool) {
  HT_CHECK(static_cast<std::int64_t>(values.size()) == rows * cols);
  const std::int64_t step = chunk_rows(scheme, cols);
  if (rows <= step) return quantize_rows(scheme, values, rows, cols, whole);

  QuantizedTensor result;
  result.scheme = scheme;
  result.rows = rows;
  result.cols = cols;
  const std::span<std::byte> codes = allocate_codes(result);
  const std::size_t row_bytes = codes.size() / static_cast<std::size_t>(rows);
  const SchemeShape shape = result.scales_shape();
  const auto cells = static_cast<std::size_t>(shape.scale_rows * shape.scale_cols);
  result.scales.resize(cells);
  const std::int64_t chunks = ceil_div(rows, step);
  std::vector<std::vector<std::int32_t>> zeros(static_cast<std::size_t>(chunks));
  std::vector<float> global_scales(static_cast<std::size_t>(chunks));
  // The first cell of a chunk; a scheme with one scale a matrix writes it once, from the first chunk.
  const auto first_cell = [&](std::int64_t first_row) {
    return static_cast<std::size_t>(first_row / row_multiple(scheme) * shape.scale_cols);
  };
  const bool one_scale = scheme.granularity == Granularity::tensor;
  pool.run(chunks, [&](std::int64_t task, int) {
    const std::int64_t first = task * step, count = std::min(step, rows - first);
    QuantizedTensor part = quantize_rows(
        scheme, values.subspan(static_cast<std::size_t>(first * cols), static_cast<std::size_t>(count * cols)), count,
        cols, whole);
    const std::size_t offset = static_cast<std::size_t>(first) * row_bytes;
    HT_CHECK(part.codes.size() == static_cast<std::size_t>(count) * row_bytes);
    std::copy(part.codes.begin(), part.codes.end(), codes.begin() + static_cast<std::ptrdiff_t>(offset));
    if (!part.scales.empty() && (!one_scale || task == 0)) {
      const std::size_t cell = one_scale ? 0 : first_cell(first);
      HT_CHECK(cell + part.scales.size() <= cells);
      std::copy(part.scales.begin(), part.scales.end(), result.scales.begin() + static_cast<std::ptrdiff_t>(cell));
    }
    zeros[static_cast<std::size_t>(task)] = std::move(part.zeros);
    global_scales[static_cast<std::size_t>(task)] = part.global_scale;
  });
  for (const auto& part : zeros) {
    if (one_scale && !result.zeros.empty()) break;
    result.zeros.insert(result.zeros.end(), part.begin(), part.end());
  }
  HT_CHECK(result.zeros.empty() || result.zeros.size() == cells);
  result.global_scale = global_scales.front();
  return result;
}

void scan(TensorStats& stats, std::span<const float> values, std::int64_t first_element, ThreadPool& pool) {
  constexpr std::int64_t kChunk = 65536;
  const auto n = static_cast<std::int64_t>(values.size());
  const std::int64_t chunks = ceil_div(n, kChunk);
  std::vector<TensorStats> parts(static_cast<std::size_t>(chunks));
  pool.run(chunks, [&](std::int64_t task, int) {
    const std::int64_t begin = task * kChunk, count = std::min(kChunk, n - begin);
    accumulate_stats(parts[static_cast<std::size_t>(task)],
                     values.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count)),
                     first_element + begin);
  });
  for (const TensorStats& part : parts) merge(stats, part);
}

}  // namespace halftone
