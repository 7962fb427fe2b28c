// Inside kernels/ only: the element-wise kernels of one instruction set, so that tests can compare the sets.
#pragma once

#include <cstdint>

#include "base/cpu.h"
#include "kernels/activation/activation.h"

namespace halftone {

struct ActivationKernels {
  void (*exp)(const float* x, float* y, std::int64_t n);  // as elementary.h
  void (*tanh)(const float* x, float* y, std::int64_t n);
  void (*gated)(GateActivation act, const float* gate, const float* up, float* out, std::int64_t n);
  float (*maximum)(const float* x, std::int64_t n);                  // -infinity if n is 0
  double (*sum_exp)(const float* x, std::int64_t n, float maximum);  // of exp(x - maximum)
};

const ActivationKernels& activation_kernels(Isa isa);  // the best at or below `isa`

namespace scalar {
void gated(GateActivation act, const float* gate, const float* up, float* out, std::int64_t n);
}
namespace avx2 {
extern const ActivationKernels activation_kernels;
}

}  // namespace halftone
