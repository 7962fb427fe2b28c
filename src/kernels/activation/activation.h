// Element-wise products of gated feed-forward layers, and the exponential that all kernels share.
#pragma once

#include <cstdint>

#include "base/threads.h"

namespace halftone {

enum class GateActivation { silu, gelu_tanh, gelu_erf, relu };

// out[i] = act(gate[i]) * up[i], on the calling thread; out may be gate.
void gated_activation(GateActivation act, const float* gate, const float* up, float* out, std::int64_t n);
// y += x
void add(float* y, const float* x, std::int64_t n, ThreadPool& pool);

// softmax statistics of a row of logits in FP64 sums: log(sum(exp(x))) with the maximum taken out.
double log_sum_exp(const float* x, std::int64_t n);

}  // namespace halftone
