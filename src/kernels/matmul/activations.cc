#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "kernels/matmul/matmul.h"

namespace halftone {
namespace {

bool is_finite_row(std::span<const float> row) {
  // The exponent of x * 0 is all ones only for infinities and NaN; the sum keeps it.
  float sum = 0;
  for (const float x : row) sum += x * 0.0F;
  return sum == 0.0F;
}

}  // namespace

void Activations::assign(std::span<const float> x, std::int64_t rows, std::int64_t cols,
                         const std::optional<Scheme>& scheme, ThreadPool& pool) {
  HT_CHECK(x.size() == static_cast<std::size_t>(rows * cols));
  rows_ = rows;
  cols_ = cols;
  scheme_ = scheme;
  codes_.clear();
  row_scales_.clear();
  if (!scheme) {
    data_ = x.data();
    return;
  }
  values_.assign(x.begin(), x.end());
  data_ = values_.data();
  if (!scheme || scheme->is_dense()) {
    if (scheme) fake_quantize_rows(*scheme, values_, rows, cols);
    return;
  }
  const bool by_token = scheme->granularity == Granularity::token && scheme->symmetric;
  if (!by_token) {
    if (scheme->granularity == Granularity::tensor) {
      fake_quantize_rows(*scheme, values_, rows, cols);
      return;
    }
    // Row by row, so that the second level of a two-level scheme is a token's own: results do not depend on the batch.
    pool.run(rows, [&](std::int64_t r, int) {
      fake_quantize_rows(*scheme,
                         std::span(values_).subspan(static_cast<std::size_t>(r * cols), static_cast<std::size_t>(cols)),
                         1, cols);
    });
    return;
  }
  // One scale a row multiplies the finished sums, so the kernels see the bare codes. It is never stored: FP32.
  Scheme dynamic = *scheme;
  if (dynamic.scale == bf16_format()) dynamic.scale = fp32_format();
  const bool int8 = dynamic.element == int_format(8);
  HT_CHECK(dynamic.element.bits <= 8);
  std::array<float, 256> table{};
  const auto mask = static_cast<std::uint32_t>(code_count(dynamic.element) - 1);
  for (std::uint32_t byte = 0; byte < 256; ++byte)
    table[byte] = static_cast<float>(decode(dynamic.element, byte & mask));
  if (int8) codes_.resize(values_.size());
  row_scales_.resize(static_cast<std::size_t>(rows));
  pool.run_ranges(rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      const auto row = std::span(values_).subspan(static_cast<std::size_t>(r * cols), static_cast<std::size_t>(cols));
      if (!is_finite_row(row)) {  // stays visible in the result
        row_scales_[static_cast<std::size_t>(r)] = std::numeric_limits<float>::quiet_NaN();
        continue;
      }
      const QuantizedTensor coded = quantize_rows(dynamic, row, 1, cols, TensorStats{});
      row_scales_[static_cast<std::size_t>(r)] = coded.scales[0] * coded.global_scale;
      if (int8) std::memcpy(codes_.data() + r * cols, coded.codes.data(), static_cast<std::size_t>(cols));
      for (std::int64_t c = 0; c < cols; ++c)
        row[static_cast<std::size_t>(c)] = table[static_cast<std::uint8_t>(coded.codes[static_cast<std::size_t>(c)])];
    }
  });
}

}  // namespace halftone
