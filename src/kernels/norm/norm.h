// Root-mean-square norm (Zhang and Sennrich 2019): y = x * rsqrt(mean(x^2) + eps) * weight, in FP32.
#pragma once

#include <cstdint>
#include <span>

#include "base/threads.h"

namespace halftone {

// x, y: [rows, cols]; y may be x. `weight` (cols) already holds 1 + w where the model stores w (Gemma).
void rms_norm(const float* x, std::span<const float> weight, float eps, std::int64_t rows, std::int64_t cols, float* y,
              ThreadPool& pool);

}  // namespace halftone
