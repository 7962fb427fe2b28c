// y = x w^T of plain FP32 matrices, by the kernels that run the models.
#pragma once

#include <cstdint>
#include <span>

#include "base/threads.h"

namespace halftone {

// x [x_rows, depth], w [w_rows, depth], y [x_rows, w_rows].
void dense_product(std::span<const float> x, std::int64_t x_rows, std::span<const float> w, std::int64_t w_rows,
                   std::int64_t depth, std::span<float> y, ThreadPool& pool);

}  // namespace halftone
