#include <immintrin.h>

#include "kernels/activation/elementary_avx2.h"
#include "kernels/attention/kernels.h"

namespace halftone::avx2 {
namespace {

constexpr std::int64_t kPage = kKvPageTokens;
static_assert(kPage == 64, "a page is eight registers of scores");
// Loops over registers are unrolled by pragma: at -O2 the compiler would keep the arrays in memory.

__m256 load_f32(const std::byte* p) {
  return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
}

__m256 load_bf16(const std::byte* p) {
  const __m128i code = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(code), 16));
}

__m256 load_f16(const std::byte* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

__m256 load_i8(const std::byte* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

// As FP16 the seven low bits, moved up by seven, are the value times 2^-8 exactly, subnormals included; only NaN
// differs.
__m256 load_e4m3(const std::byte* p) {
  const __m128i code = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m128i magnitude = _mm_and_si128(code, _mm_set1_epi16(0x7F));
  const __m128i sign = _mm_slli_epi16(_mm_and_si128(code, _mm_set1_epi16(0x80)), 8);
  const __m256 v = _mm256_cvtph_ps(_mm_or_si128(_mm_slli_epi16(magnitude, 7), sign));
  const __m128i nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7F));
  return _mm256_or_ps(_mm256_mul_ps(v, _mm256_set1_ps(256.0F)), _mm256_castsi256_ps(_mm256_cvtepi16_epi32(nan)));
}

__m256 load_e5m2(const std::byte* p) {
  const __m128i code = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  return _mm256_cvtph_ps(_mm_slli_epi16(code, 8));
}

template <__m256 (*kLoad)(const std::byte*), int kBytes, bool kScaled>
void decode_as(const std::byte* codes, float scale, std::int64_t n, float* out) {
  const __m256 s = _mm256_set1_ps(scale);
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 v = kLoad(codes + kBytes * i);
    _mm256_storeu_ps(out + i, kScaled ? _mm256_mul_ps(v, s) : v);
  }
  if (i < n) {
    // The last codes through a small buffer: a vector load could leave the page.
    alignas(32) std::byte rest[8 * kBytes] = {};
    for (std::int64_t b = 0; b < kBytes * (n - i); ++b) rest[b] = codes[kBytes * i + b];
    const __m256 v = kLoad(rest);
    _mm256_maskstore_ps(out + i, first_lanes(n - i), kScaled ? _mm256_mul_ps(v, s) : v);
  }
}

void decode(KvCode kind, const std::byte* codes, float scale, std::int64_t n, float* out) {
  switch (kind) {
    case KvCode::f32:
      return decode_as<load_f32, 4, false>(codes, scale, n, out);
    case KvCode::bf16:
      return decode_as<load_bf16, 2, false>(codes, scale, n, out);
    case KvCode::f16:
      return decode_as<load_f16, 2, false>(codes, scale, n, out);
    case KvCode::i8:
      return decode_as<load_i8, 1, true>(codes, scale, n, out);
    case KvCode::e4m3:
      return decode_as<load_e4m3, 1, true>(codes, scale, n, out);
    case KvCode::e5m2:
      return decode_as<load_e5m2, 1, true>(codes, scale, n, out);
  }
}

void transpose(const float* in, std::int64_t stride, std::int64_t dim, float* out) {
  for (std::int64_t t = 0; t < kPage; t += 8) {
    for (std::int64_t d = 0; d < dim; d += 8) {
      const float* p = in + t * stride + d;
      __m256 r[8], s[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(p + i * stride);
#pragma GCC unroll 8
      for (int i = 0; i < 8; i += 2) {
        s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
      }
#pragma GCC unroll 8
      for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(s[i], s[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(s[i], s[i + 2], 0xEE);
        r[i + 2] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0xEE);
      }
      float* o = out + d * kPage + t;
#pragma GCC unroll 8
      for (int i = 0; i < 4; ++i) {
        _mm256_storeu_ps(o + i * kPage, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(o + (i + 4) * kPage, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
      }
    }
  }
}

// Scores of 8 * kGroups tokens from `first` on.
template <int kGroups>
void score_groups(const float* q, const float* keys, std::int64_t dim, float* s) {
  __m256 sum[kGroups];
#pragma GCC unroll 8
  for (int g = 0; g < kGroups; ++g) sum[g] = _mm256_setzero_ps();
  for (std::int64_t d = 0; d < dim; ++d, keys += kPage) {
    const __m256 x = _mm256_broadcast_ss(q + d);
#pragma GCC unroll 8
    for (int g = 0; g < kGroups; ++g) sum[g] = _mm256_fmadd_ps(x, _mm256_loadu_ps(keys + 8 * g), sum[g]);
  }
#pragma GCC unroll 8
  for (int g = 0; g < kGroups; ++g) _mm256_storeu_ps(s + 8 * g, sum[g]);
}

void scores(const float* q, const float* keys, std::int64_t dim, std::int64_t low, std::int64_t high, float* s) {
  std::int64_t first = low / 8 * 8;
  const std::int64_t end = (high + 7) / 8 * 8;
  if (end - first == kPage) return score_groups<8>(q, keys, dim, s);
  for (; first + 32 <= end; first += 32) score_groups<4>(q, keys + first, dim, s + first);
  for (; first + 16 <= end; first += 16) score_groups<2>(q, keys + first, dim, s + first);
  if (first < end) score_groups<1>(q, keys + first, dim, s + first);
}

float softmax(float* s, std::int64_t low, std::int64_t high, float scale, float softcap, float* sum) {
  const std::int64_t first = low / 8 * 8;
  const __m256 factor = _mm256_set1_ps(scale);
  const __m256 cap = _mm256_set1_ps(softcap);
  const __m256 minus_infinity = _mm256_set1_ps(-__builtin_huge_valf());
  __m256 top = minus_infinity;
  for (std::int64_t t = first; t < high; t += 8) {
    __m256 v = _mm256_mul_ps(_mm256_loadu_ps(s + t), factor);
    if (softcap > 0.0F) v = _mm256_mul_ps(cap, tanh_f32(_mm256_div_ps(v, cap)));
    if (t < low || t + 8 > high) {
      const __m256i before = t < low ? first_lanes(low - t) : _mm256_setzero_si256();
      const __m256i until = t + 8 > high ? first_lanes(high - t) : _mm256_set1_epi32(-1);
      v = _mm256_blendv_ps(minus_infinity, v, _mm256_castsi256_ps(_mm256_andnot_si256(before, until)));
    }
    _mm256_storeu_ps(s + t, v);
    top = _mm256_max_ps(v, top);
  }
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(top), _mm256_extractf128_ps(top, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  const float maximum = _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
  const __m256 shift = _mm256_set1_ps(maximum);
  __m256 lanes = _mm256_setzero_ps();
  for (std::int64_t t = first; t < high; t += 8) {
    const __m256 p = exp_f32(_mm256_sub_ps(_mm256_loadu_ps(s + t), shift));
    _mm256_storeu_ps(s + t, p);
    lanes = _mm256_add_ps(lanes, p);
  }
  *sum = fold_lanes(lanes);
  return maximum;
}

template <int kGroups>
void weighted_groups(const float* p, const float* values, std::int64_t dim, std::int64_t low, std::int64_t high,
                     float* o) {
  __m256 sum[kGroups];
#pragma GCC unroll 8
  for (int g = 0; g < kGroups; ++g) sum[g] = _mm256_setzero_ps();
  const float* v = values + low * dim;
  for (std::int64_t t = low; t < high; ++t, v += dim) {
    const __m256 x = _mm256_broadcast_ss(p + t);
#pragma GCC unroll 8
    for (int g = 0; g < kGroups; ++g) sum[g] = _mm256_fmadd_ps(x, _mm256_loadu_ps(v + 8 * g), sum[g]);
  }
#pragma GCC unroll 8
  for (int g = 0; g < kGroups; ++g) _mm256_storeu_ps(o + 8 * g, sum[g]);
}

void weighted(const float* p, const float* values, std::int64_t dim, std::int64_t low, std::int64_t high, float* o) {
  std::int64_t d = 0;
  for (; d + 64 <= dim; d += 64) weighted_groups<8>(p, values + d, dim, low, high, o + d);
  for (; d + 32 <= dim; d += 32) weighted_groups<4>(p, values + d, dim, low, high, o + d);
  for (; d < dim; d += 8) weighted_groups<1>(p, values + d, dim, low, high, o + d);
}

void combine(float* o, float a, const float* part, float b, std::int64_t dim) {
  const __m256 va = _mm256_set1_ps(a), vb = _mm256_set1_ps(b);
  for (std::int64_t d = 0; d < dim; d += 8) {
    const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(o + d), va);
    _mm256_storeu_ps(o + d, _mm256_fmadd_ps(_mm256_loadu_ps(part + d), vb, scaled));
  }
}

}  // namespace

const AttentionKernels attention_kernels{decode, transpose, scores, softmax, weighted, combine};

}  // namespace halftone::avx2
