// AVX-512 F/BW/VL/DQ/VNNI: a tile's 16 outputs are one register. Everything lives in halftone::avx512.
#include <immintrin.h>

#include "kernels/matmul/packed.h"

namespace halftone::avx512 {
namespace {

using Vec = __m512;
using IntVec = __m512i;

constexpr std::int64_t kPanelSegment = kLongestPanel;
constexpr std::int64_t kPanelRows = 192;
constexpr int kMicroRows = 12;    // sums of 32 registers; enough to cover the latency of two FMA units
constexpr int kIntegerRows = 12;

inline Vec vzero() { return _mm512_setzero_ps(); }
inline Vec vset(float x) { return _mm512_set1_ps(x); }
inline Vec vload(const float* p) { return _mm512_loadu_ps(p); }
inline void vstore(float* p, Vec a) { _mm512_storeu_ps(p, a); }
inline Vec vadd(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec vmul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec vfma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline void vprefetch(const std::byte* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }

inline IntVec izero() { return _mm512_setzero_si512(); }
inline IntVec iset_pair(const std::int16_t* p) {
  int pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return _mm512_set1_epi32(pair);
}
inline IntVec imadd(IntVec x, IntVec w, IntVec sum) { return _mm512_dpwssd_epi32(sum, x, w); }
inline Vec ifloat(IntVec a) { return _mm512_cvtepi32_ps(a); }

inline __m128i load16(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
inline __m256i load32(const std::byte* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline Vec from_int8(__m128i bytes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)); }

struct DecodeF32 {
  static constexpr int kStep = 1, kBytes = 64;
  explicit DecodeF32(const WeightView&) {}
  void decode(const std::byte* p, Vec* out) const { *out = vload(reinterpret_cast<const float*>(p)); }
};
struct DecodeBf16 {
  static constexpr int kStep = 1, kBytes = 32;
  explicit DecodeBf16(const WeightView&) {}
  void decode(const std::byte* p, Vec* out) const {
    *out = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load32(p)), 16));
  }
};
struct DecodeF16 {
  static constexpr int kStep = 1, kBytes = 32;
  explicit DecodeF16(const WeightView&) {}
  void decode(const std::byte* p, Vec* out) const { *out = _mm512_cvtph_ps(load32(p)); }
};
struct DecodeE4m3 {
  static constexpr int kStep = 1, kBytes = 16;
  explicit DecodeE4m3(const WeightView&) {}
  void decode(const std::byte* p, Vec* out) const {
    const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(load16(p)), 7);
    *out = _mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16(static_cast<short>(0xBF80))));
  }
};
struct DecodeE5m2 {
  static constexpr int kStep = 1, kBytes = 16;
  explicit DecodeE5m2(const WeightView&) {}
  void decode(const std::byte* p, Vec* out) const {
    *out = _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(load16(p)), 8));
  }
};
struct DecodeI8 {
  static constexpr int kStep = 1, kBytes = 16;
  explicit DecodeI8(const WeightView&) {}
  void decode(const std::byte* p, Vec* out) const { *out = from_int8(load16(p)); }
};
struct DecodeLut8 {
  static constexpr int kStep = 1, kBytes = 16;
  explicit DecodeLut8(const WeightView& w) : table(w.table) {}
  void decode(const std::byte* p, Vec* out) const { *out = _mm512_i32gather_ps(_mm512_cvtepu8_epi32(load16(p)), table, 4); }
  const float* table;
};
struct DecodeN4i {
  static constexpr int kStep = 2, kBytes = 16;
  explicit DecodeN4i(const WeightView& w) : table(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w.table16))) {}
  void split(const std::byte* p, __m128i& first, __m128i& second) const {
    const __m128i bytes = load16(p), mask = _mm_set1_epi8(15);
    first = _mm_shuffle_epi8(table, _mm_and_si128(bytes, mask));
    second = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(bytes, 4), mask));
  }
  void decode(const std::byte* p, Vec* out) const {
    __m128i first, second;
    split(p, first, second);
    out[0] = from_int8(first);
    out[1] = from_int8(second);
  }
  IntVec pairs(const std::byte* p) const {
    __m128i first, second;
    split(p, first, second);
    const __m256i bytes = _mm256_set_m128i(_mm_unpackhi_epi8(first, second), _mm_unpacklo_epi8(first, second));
    return _mm512_cvtepi8_epi16(bytes);
  }
  __m128i table;
};
struct DecodeN4f {
  static constexpr int kStep = 2, kBytes = 16;
  explicit DecodeN4f(const WeightView& w) : table(_mm512_loadu_ps(w.table)) {}
  void decode(const std::byte* p, Vec* out) const {
    const __m512i bytes = _mm512_cvtepu8_epi32(load16(p));  // the look-up reads the low four bits alone
    out[0] = _mm512_permutexvar_ps(bytes, table);
    out[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), table);
  }
  __m512 table;
};
struct DecodeI8x2 {
  static constexpr int kStep = 2, kBytes = 32;
  explicit DecodeI8x2(const WeightView&) {}
  void decode(const std::byte* p, Vec* out) const {
    const __m512i wide = pairs(p);
    out[0] = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(wide, 16), 16));
    out[1] = _mm512_cvtepi32_ps(_mm512_srai_epi32(wide, 16));
  }
  IntVec pairs(const std::byte* p) const { return _mm512_cvtepi8_epi16(load32(p)); }
};

#include "kernels/matmul/kernel_body.h"

}  // namespace

const KernelSet& kernels() { return kSet; }

}  // namespace halftone::avx512
