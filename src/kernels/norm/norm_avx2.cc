#include <immintrin.h>

#include "kernels/activation/elementary_avx2.h"
#include "kernels/norm/kernels.h"

namespace halftone::avx2 {

void rms_norm_row(const float* x, const float* weight, float eps, std::int64_t cols, float* y) {
  __m256 sum = _mm256_setzero_ps();
  std::int64_t i = 0;
  for (; i + 8 <= cols; i += 8) {
    const __m256 v = _mm256_loadu_ps(x + i);
    sum = _mm256_fmadd_ps(v, v, sum);
  }
  const __m256i tail = first_lanes(cols - i);
  if (i < cols) {
    const __m256 v = _mm256_maskload_ps(x + i, tail);
    sum = _mm256_fmadd_ps(v, v, sum);
  }
  const float mean = fold_lanes(sum) / static_cast<float>(cols);
  const __m256 inverse = _mm256_set1_ps(1.0F / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean + eps))));
  for (i = 0; i + 8 <= cols; i += 8) {
    const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), inverse);
    _mm256_storeu_ps(y + i, _mm256_mul_ps(v, _mm256_loadu_ps(weight + i)));
  }
  if (i < cols) {
    const __m256 v = _mm256_mul_ps(_mm256_maskload_ps(x + i, tail), inverse);
    _mm256_maskstore_ps(y + i, tail, _mm256_mul_ps(v, _mm256_maskload_ps(weight + i, tail)));
  }
}

}  // namespace halftone::avx2
