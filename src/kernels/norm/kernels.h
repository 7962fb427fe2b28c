// Inside kernels/ only. Order of the sum of squares, the same in every instruction set: eight lanes, lane i % 8 takes
// lane = fma(x[i], x[i], lane) for i ascending, then the lanes fold as in scalar::fold_lanes.
#pragma once

#include <cstdint>

#include "base/cpu.h"

namespace halftone {

using RmsNormRow = void (*)(const float* x, const float* weight, float eps, std::int64_t cols, float* y);

RmsNormRow rms_norm_row(Isa isa);  // the best at or below `isa`

namespace scalar {
void rms_norm_row(const float* x, const float* weight, float eps, std::int64_t cols, float* y);
}
namespace avx2 {
void rms_norm_row(const float* x, const float* weight, float eps, std::int64_t cols, float* y);
}

}  // namespace halftone
