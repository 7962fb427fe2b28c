// Inside *_avx2.cc files only: the AVX2 twins of elementary.h. Everything is static, so that nothing compiled with AVX2
// flags can be chosen by the linker for another file.
#pragma once

#include <immintrin.h>

#include "kernels/activation/elementary.h"

namespace halftone::avx2 {

[[maybe_unused]] static inline __m256 exp_f32(__m256 x) {
  // max and min return their second operand if one is NaN.
  __m256 v = _mm256_max_ps(_mm256_set1_ps(kExpLow), x);
  v = _mm256_min_ps(_mm256_set1_ps(kExpHigh), v);
  const __m256 shift = _mm256_set1_ps(kRoundShift);
  const __m256 shifted = _mm256_fmadd_ps(v, _mm256_set1_ps(kLog2E), shift);
  const __m256 n = _mm256_sub_ps(shifted, shift);
  const __m256i exponent = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_castps_si256(shift));
  __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2High), v);
  r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2Low), r);
  __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(kExp4), r, _mm256_set1_ps(kExp3));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExp2));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExp1));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExp0));
  p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r);
  p = _mm256_add_ps(p, _mm256_set1_ps(1.0F));
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i half = _mm256_srai_epi32(exponent, 1);
  const __m256i rest = _mm256_sub_epi32(exponent, half);
  const __m256 first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const __m256 second = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(p, first), second);
}

[[maybe_unused]] static inline __m256 tanh_f32(__m256 x) {
  const __m256 sign_bit = _mm256_set1_ps(-0.0F);
  const __m256 a = _mm256_andnot_ps(sign_bit, x);
  const __m256 z = _mm256_mul_ps(a, a);
  __m256 q = _mm256_fmadd_ps(_mm256_set1_ps(kTanh4), z, _mm256_set1_ps(kTanh3));
  q = _mm256_fmadd_ps(q, z, _mm256_set1_ps(kTanh2));
  q = _mm256_fmadd_ps(q, z, _mm256_set1_ps(kTanh1));
  q = _mm256_fmadd_ps(q, z, _mm256_set1_ps(kTanh0));
  const __m256 small = _mm256_fmadd_ps(q, _mm256_mul_ps(z, a), a);
  const __m256 e = exp_f32(_mm256_add_ps(a, a));
  const __m256 y =
      _mm256_sub_ps(_mm256_set1_ps(1.0F), _mm256_div_ps(_mm256_set1_ps(2.0F), _mm256_add_ps(e, _mm256_set1_ps(1.0F))));
  const __m256 magnitude =
      _mm256_blendv_ps(_mm256_andnot_ps(sign_bit, y), small, _mm256_cmp_ps(a, _mm256_set1_ps(kTanhSplit), _CMP_LT_OQ));
  return _mm256_or_ps(magnitude, _mm256_and_ps(sign_bit, x));
}

// Lanes 0 .. n-1 (n <= 8) set.
[[maybe_unused]] static inline __m256i first_lanes(long long n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane);
}

// The order of scalar::fold_lanes.
[[maybe_unused]] static inline float fold_lanes(__m256 v) {
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}

}  // namespace halftone::avx2
