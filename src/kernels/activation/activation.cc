#include "kernels/activation/activation.h"

#include <cmath>
#include <limits>

#include "base/error.h"
#include "kernels/activation/elementary.h"
#include "kernels/activation/kernels.h"

namespace halftone {
namespace scalar {
namespace {

void exp_all(const float* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = exp_f32(x[i]);
}

void tanh_all(const float* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = tanh_f32(x[i]);
}

float maximum(const float* x, std::int64_t n) {
  float m = -std::numeric_limits<float>::infinity();
  for (std::int64_t i = 0; i < n; ++i) m = x[i] > m ? x[i] : m;
  return m;
}

double sum_exp(const float* x, std::int64_t n, float max) {
  double lanes[8] = {};
  for (std::int64_t i = 0; i < n; ++i) lanes[i % 8] += static_cast<double>(exp_f32(x[i] - max));
  return fold_lanes(lanes);
}

// x / (1 + e^-x).
float silu(float x) {
  return x / (1.0F + exp_f32(-x));
}

// 0.5 x (1 + tanh(u)) = x / (1 + e^(-2u)) with u = sqrt(2/pi) (x + 0.044715 x^3); no cancellation on the negative side.
float gelu_tanh(float x) {
  const float cubic = std::fma(kGeluTanhCubic, x * x * x, x);
  return x / (1.0F + exp_f32(-2.0F * kGeluTanhScale * cubic));
}

// x times the normal distribution function.
float gelu_erf(float x) {
  return static_cast<float>(0.5 * static_cast<double>(x) * std::erfc(-static_cast<double>(x) * 0.70710678118654752440));
}

template <float (*kAct)(float)>
void gated_with(const float* gate, const float* up, float* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = kAct(gate[i]) * up[i];
}

float relu(float x) {
  return x > 0.0F ? x : 0.0F;
}

constexpr ActivationKernels kKernels{exp_all, tanh_all, gated, maximum, sum_exp};

}  // namespace

void gated(GateActivation act, const float* gate, const float* up, float* out, std::int64_t n) {
  switch (act) {
    case GateActivation::silu:
      return gated_with<silu>(gate, up, out, n);
    case GateActivation::gelu_tanh:
      return gated_with<gelu_tanh>(gate, up, out, n);
    case GateActivation::gelu_erf:
      return gated_with<gelu_erf>(gate, up, out, n);
    case GateActivation::relu:
      return gated_with<relu>(gate, up, out, n);
  }
  HT_CHECK(false);
}

}  // namespace scalar

const ActivationKernels& activation_kernels([[maybe_unused]] Isa isa) {
#ifdef HALFTONE_SIMD
  if (isa >= Isa::avx2) return avx2::activation_kernels;
#endif
  return scalar::kKernels;
}

void gated_activation(GateActivation act, const float* gate, const float* up, float* out, std::int64_t n) {
  activation_kernels(active_isa().isa).gated(act, gate, up, out, n);
}

void add(float* y, const float* x, std::int64_t n, ThreadPool& pool) {
  pool.run_ranges(n, 16384, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) y[i] += x[i];
  });
}

double log_sum_exp(const float* x, std::int64_t n) {
  const ActivationKernels& kernels = activation_kernels(active_isa().isa);
  const float max = kernels.maximum(x, n);
  if (std::isinf(max)) return static_cast<double>(max);
  return static_cast<double>(max) + std::log(kernels.sum_exp(x, n, max));
}

}  // namespace halftone
