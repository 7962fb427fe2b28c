#include <immintrin.h>

#include "kernels/activation/elementary_avx2.h"
#include "kernels/activation/kernels.h"

namespace halftone::avx2 {
namespace {

void exp_all(const float* x, float* y, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, exp_f32(_mm256_loadu_ps(x + i)));
  if (i < n) {
    const __m256i mask = first_lanes(n - i);
    _mm256_maskstore_ps(y + i, mask, exp_f32(_mm256_maskload_ps(x + i, mask)));
  }
}

void tanh_all(const float* x, float* y, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, tanh_f32(_mm256_loadu_ps(x + i)));
  if (i < n) {
    const __m256i mask = first_lanes(n - i);
    _mm256_maskstore_ps(y + i, mask, tanh_f32(_mm256_maskload_ps(x + i, mask)));
  }
}

__m256 negated(__m256 x) {
  return _mm256_xor_ps(x, _mm256_set1_ps(-0.0F));
}

__m256 silu(__m256 x) {
  return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0F), exp_f32(negated(x))));
}

__m256 gelu_tanh(__m256 x) {
  const __m256 cube = _mm256_mul_ps(_mm256_mul_ps(x, x), x);
  const __m256 cubic = _mm256_fmadd_ps(_mm256_set1_ps(kGeluTanhCubic), cube, x);
  const __m256 e = exp_f32(_mm256_mul_ps(_mm256_set1_ps(-2.0F * kGeluTanhScale), cubic));
  return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0F), e));
}

__m256 relu(__m256 x) {
  return _mm256_max_ps(x, _mm256_setzero_ps());
}

template <__m256 (*kAct)(__m256)>
void gated_with(const float* gate, const float* up, float* out, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(out + i, _mm256_mul_ps(kAct(_mm256_loadu_ps(gate + i)), _mm256_loadu_ps(up + i)));
  }
  if (i < n) {
    const __m256i mask = first_lanes(n - i);
    const __m256 y = _mm256_mul_ps(kAct(_mm256_maskload_ps(gate + i, mask)), _mm256_maskload_ps(up + i, mask));
    _mm256_maskstore_ps(out + i, mask, y);
  }
}

void gated(GateActivation act, const float* gate, const float* up, float* out, std::int64_t n) {
  switch (act) {
    case GateActivation::silu:
      return gated_with<silu>(gate, up, out, n);
    case GateActivation::gelu_tanh:
      return gated_with<gelu_tanh>(gate, up, out, n);
    case GateActivation::relu:
      return gated_with<relu>(gate, up, out, n);
    case GateActivation::gelu_erf:
      return scalar::gated(act, gate, up, out, n);  // the error function has no twin here
  }
}

float minus_infinity() {
  return -__builtin_huge_valf();
}

// Lanes beyond the end are -infinity.
__m256 load_or_low(const float* x, std::int64_t left) {
  if (left >= 8) return _mm256_loadu_ps(x);
  const __m256i mask = first_lanes(left);
  return _mm256_blendv_ps(_mm256_set1_ps(minus_infinity()), _mm256_maskload_ps(x, mask), _mm256_castsi256_ps(mask));
}

float maximum(const float* x, std::int64_t n) {
  // max(x, m) keeps m where x is NaN, as the scalar comparison does.
  __m256 m = _mm256_set1_ps(minus_infinity());
  for (std::int64_t i = 0; i < n; i += 8) m = _mm256_max_ps(load_or_low(x + i, n - i), m);
  float lanes[8];
  _mm256_storeu_ps(lanes, m);
  float best = lanes[0];
  for (int i = 1; i < 8; ++i) best = lanes[i] > best ? lanes[i] : best;
  return best;
}

double sum_exp(const float* x, std::int64_t n, float max) {
  const __m256 m = _mm256_set1_ps(max);
  __m256d low = _mm256_setzero_pd(), high = _mm256_setzero_pd();  // lanes 0-3, 4-7
  for (std::int64_t i = 0; i < n; i += 8) {
    const __m256 e = exp_f32(_mm256_sub_ps(load_or_low(x + i, n - i), m));
    low = _mm256_add_pd(low, _mm256_cvtps_pd(_mm256_castps256_ps128(e)));
    high = _mm256_add_pd(high, _mm256_cvtps_pd(_mm256_extractf128_ps(e, 1)));
  }
  double s[4];
  _mm256_storeu_pd(s, _mm256_add_pd(low, high));
  return (s[0] + s[2]) + (s[1] + s[3]);
}

}  // namespace

extern const ActivationKernels activation_kernels;
const ActivationKernels activation_kernels{exp_all, tanh_all, gated, maximum, sum_exp};

}  // namespace halftone::avx2
