#include "kernels/norm/norm.h"

#include <cmath>

#include "base/error.h"
#include "kernels/activation/elementary.h"
#include "kernels/norm/kernels.h"

namespace halftone {

void scalar::rms_norm_row(const float* x, const float* weight, float eps, std::int64_t cols, float* y) {
  float lanes[8] = {};
  for (std::int64_t i = 0; i < cols; ++i) lanes[i % 8] = std::fma(x[i], x[i], lanes[i % 8]);
  const float mean = fold_lanes(lanes) / static_cast<float>(cols);
  const float inverse = 1.0F / std::sqrt(mean + eps);
  for (std::int64_t i = 0; i < cols; ++i) y[i] = (x[i] * inverse) * weight[i];
}

RmsNormRow rms_norm_row([[maybe_unused]] Isa isa) {
#ifdef HALFTONE_SIMD
  if (isa >= Isa::avx2) return avx2::rms_norm_row;
#endif
  return scalar::rms_norm_row;
}

void rms_norm(const float* x, std::span<const float> weight, float eps, std::int64_t rows, std::int64_t cols, float* y,
              ThreadPool& pool) {
  HT_CHECK(static_cast<std::int64_t>(weight.size()) == cols);
  const RmsNormRow row = rms_norm_row(active_isa().isa);
  pool.run_ranges(rows, 8, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) row(x + r * cols, weight.data(), eps, cols, y + r * cols);
  });
}

}  // namespace halftone
