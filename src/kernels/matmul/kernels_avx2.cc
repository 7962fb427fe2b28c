// AVX2 + FMA + F16C. Everything lives in halftone::avx2; no inline code of other headers is used (tests/odr_test.py).
#include <immintrin.h>

#include "kernels/matmul/packed.h"

namespace halftone::avx2 {
namespace {

struct Vec {
  __m256 lo, hi;
};
struct IntVec {
  __m256i lo, hi;
};

// The small arrays of sums are registers only if the loops over them are unrolled, at any optimization level.
#define HT_UNROLL _Pragma("GCC unroll 16")

constexpr std::int64_t kPanelSegment = kLongestPanel;
// A block of x of this many rows and one segment (256 x 256 x 4 bytes) stays in a 512 KiB L2 cache beside the panel.
constexpr std::int64_t kPanelRows = 256;
constexpr int kMicroRows = 6;    // 12 sums, 2 codes, 1 x: 15 of 16 registers
constexpr int kDirectRows = 4;   // 8 sums, 2 codes, and what decoding needs
constexpr int kIntegerRows = 4;  // 8 sums, 2 codes, 4 x and products: with more the compiler spills

inline Vec vzero() {
  return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}
inline Vec vset(float x) {
  const __m256 v = _mm256_set1_ps(x);
  return {v, v};
}
inline Vec vload(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
inline void vstore(float* p, Vec a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
inline Vec vadd(Vec a, Vec b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline Vec vmul(Vec a, Vec b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline Vec vfma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline void vprefetch(const std::byte* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
}

inline IntVec izero() {
  return {_mm256_setzero_si256(), _mm256_setzero_si256()};
}
inline IntVec iset_pair(const std::int16_t* p) {
  int pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  const __m256i v = _mm256_set1_epi32(pair);
  return {v, v};
}
inline IntVec imadd(IntVec x, IntVec w, IntVec sum) {
  return {_mm256_add_epi32(sum.lo, _mm256_madd_epi16(x.lo, w.lo)),
          _mm256_add_epi32(sum.hi, _mm256_madd_epi16(x.hi, w.hi))};
}
inline Vec ifloat(IntVec a) {
  return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}

inline __m128i load16(const std::byte* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
inline __m256i load32(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline Vec from_fp16(__m256i halves) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}

inline IntVec iload(const std::int16_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16))};
}
inline void istore(std::int16_t* p, IntVec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 16), a.hi);
}

inline Vec load_bf16(const std::byte* p) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load16(p)), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load16(p + 16)), 16))};
}
inline Vec load_f16(const std::byte* p) {
  return {_mm256_cvtph_ps(load16(p)), _mm256_cvtph_ps(load16(p + 16))};
}
inline Vec load_e4m3(const std::byte* p) {  // load-extend, shift, mask, two conversions for 16 codes
  const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(load16(p)), 7);
  return from_fp16(_mm256_and_si256(wide, _mm256_set1_epi16(static_cast<short>(0xBF80))));
}
inline __m256 from_e8m0(__m128i bytes) {  // code 0 is 2^-127, a subnormal number
  const __m256i exponent = _mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 23);
  return _mm256_castsi256_ps(_mm256_max_epu32(exponent, _mm256_set1_epi32(0x00400000)));
}
inline Vec load_e8m0(const std::byte* p) {
  const __m128i bytes = load16(p);
  return {from_e8m0(bytes), from_e8m0(_mm_unpackhi_epi64(bytes, bytes))};
}
inline __m256 widen_i8(const std::byte* p) {  // the load is part of the extension
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline Vec load_i8(const std::byte* p) {
  return {widen_i8(p), widen_i8(p + 8)};
}

struct DecodeF32 {
  static constexpr int kStep = 1, kPart = 1, kBytes = 64;
  explicit DecodeF32(const WeightView&) {}
  using State = const std::byte*;
  State prepare(const std::byte* p, int) const { return p; }
  Vec code(State p, int) const { return vload(reinterpret_cast<const float*>(p)); }
};
struct DecodeBf16 {
  static constexpr int kStep = 1, kPart = 1, kBytes = 32;
  explicit DecodeBf16(const WeightView&) {}
  using State = const std::byte*;
  State prepare(const std::byte* p, int) const { return p; }
  Vec code(State p, int) const { return load_bf16(p); }
};
struct DecodeF16 {
  static constexpr int kStep = 1, kPart = 1, kBytes = 32;
  explicit DecodeF16(const WeightView&) {}
  using State = const std::byte*;
  State prepare(const std::byte* p, int) const { return p; }
  Vec code(State p, int) const { return load_f16(p); }
};
struct DecodeE4m3 {
  static constexpr int kStep = 1, kPart = 1, kBytes = 16;
  explicit DecodeE4m3(const WeightView&) {}
  using State = const std::byte*;
  State prepare(const std::byte* p, int) const { return p; }
  Vec code(State p, int) const { return load_e4m3(p); }
};
struct DecodeE5m2 {
  static constexpr int kStep = 1, kPart = 1, kBytes = 16;
  explicit DecodeE5m2(const WeightView&) {}
  using State = const std::byte*;
  State prepare(const std::byte* p, int) const { return p; }
  Vec code(State p, int) const {
    const __m128i bytes = load16(p), zero = _mm_setzero_si128();
    return {_mm256_cvtph_ps(_mm_unpacklo_epi8(zero, bytes)), _mm256_cvtph_ps(_mm_unpackhi_epi8(zero, bytes))};
  }
};
struct DecodeI8 {  // two load-extends and two conversions for 16 codes
  static constexpr int kStep = 1, kPart = 1, kBytes = 16;
  explicit DecodeI8(const WeightView&) {}
  using State = const std::byte*;
  State prepare(const std::byte* p, int) const { return p; }
  Vec code(State p, int) const { return load_i8(p); }
};
struct DecodeLut8 {
  static constexpr int kStep = 1, kPart = 1, kBytes = 16;
  explicit DecodeLut8(const WeightView& w) : table(w.table) {}
  using State = const std::byte*;
  State prepare(const std::byte* p, int) const { return p; }
  Vec code(State p, int) const {
    Vec out;
    const __m128i bytes = load16(p);
    out.lo = _mm256_i32gather_ps(table, _mm256_cvtepu8_epi32(bytes), 4);
    out.hi = _mm256_i32gather_ps(table, _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes)), 4);
    return out;
  }
  const float* table;
};
// A mask and a conversion for 8 codes, with a look-up and a mask for 32 before them: no byte is ever moved.
struct DecodeN4i {
  static constexpr int kStep = 8, kPart = 4, kBytes = 64;
  explicit DecodeN4i(const WeightView& w)
      : table(_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w.table16)))) {}
  __m256i low(__m256i v) const { return _mm256_shuffle_epi8(table, _mm256_and_si256(v, _mm256_set1_epi8(15))); }
  __m256i high(__m256i v) const { return low(_mm256_srli_epi16(v, 4)); }
  using State = IntVec;  // the bytes of four K positions
  State prepare(const std::byte* p, int part) const {
    const __m256i a = load32(p), b = load32(p + 32);
    return part == 0 ? State{low(a), low(b)} : State{high(a), high(b)};
  }
  static __m256 place(__m256i bytes, int j) {
    return _mm256_cvtepi32_ps(j == 3 ? _mm256_srli_epi32(bytes, 24)
                                     : _mm256_and_si256(bytes, _mm256_set1_epi32(0xFF << (8 * j))));
  }
  Vec code(const State& s, int j) const { return {place(s.lo, j), place(s.hi, j)}; }
  void pairs(const std::byte* p, IntVec* out) const {
    const __m256i even = _mm256_set1_epi16(0x00FF);
    HT_UNROLL for (int part = 0; part < 2; ++part) {
      const IntVec s = prepare(p, part);
      out[2 * part] = {_mm256_and_si256(s.lo, even), _mm256_and_si256(s.hi, even)};
      out[2 * part + 1] = {_mm256_srli_epi16(s.lo, 8), _mm256_srli_epi16(s.hi, 8)};
    }
  }
  __m256i table;
};
// A mask and a conversion for 8 codes.
struct DecodeN4u {
  static constexpr int kStep = 8, kPart = 4, kBytes = 64;
  explicit DecodeN4u(const WeightView&) {}
  struct State {
    __m256i lo, hi;
    int part;
  };
  State prepare(const std::byte* p, int part) const { return {load32(p), load32(p + 32), part}; }
  static __m256 place(__m256i v, int k) {
    return _mm256_cvtepi32_ps(
        k == 7 ? _mm256_srli_epi32(v, 28)
               : _mm256_and_si256(v, _mm256_set1_epi32(k < 4 ? 0x0F << (8 * k) : 0xF0 << (8 * (k - 4)))));
  }
  Vec code(const State& s, int j) const { return {place(s.lo, 4 * s.part + j), place(s.hi, 4 * s.part + j)}; }
  void pairs(const std::byte* p, IntVec* out) const {
    const __m256i a = load32(p), b = load32(p + 32), nibble = _mm256_set1_epi16(0x000F);
    out[0] = {_mm256_and_si256(a, nibble), _mm256_and_si256(b, nibble)};
    out[1] = {_mm256_and_si256(_mm256_srli_epi16(a, 8), nibble), _mm256_and_si256(_mm256_srli_epi16(b, 8), nibble)};
    out[2] = {_mm256_and_si256(_mm256_srli_epi16(a, 4), nibble), _mm256_and_si256(_mm256_srli_epi16(b, 4), nibble)};
    out[3] = {_mm256_srli_epi16(a, 12), _mm256_srli_epi16(b, 12)};
  }
};
struct DecodeN4f {
  static constexpr int kStep = 2, kPart = 2, kBytes = 16;
  explicit DecodeN4f(const WeightView& w) : low(_mm256_loadu_ps(w.table)), high(_mm256_loadu_ps(w.table + 8)) {}
  __m256 look_up(__m256i index) const {  // bit 3 chooses the half, moved to the sign for the blend
    const __m256 chosen_high = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28));
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, index), _mm256_permutevar8x32_ps(high, index), chosen_high);
  }
  using State = IntVec;
  State prepare(const std::byte* p, int) const {
    return {_mm256_cvtepu8_epi32(load16(p)),
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8)))};
  }
  Vec code(const State& s, int j) const {  // the look-up reads the low bits alone
    return j == 0 ? Vec{look_up(s.lo), look_up(s.hi)}
                  : Vec{look_up(_mm256_srli_epi32(s.lo, 4)), look_up(_mm256_srli_epi32(s.hi, 4))};
  }
  __m256 low, high;
};
struct DecodeI8x4 {
  static constexpr int kStep = 4, kBytes = 64;
  explicit DecodeI8x4(const WeightView&) {}
  void pairs(const std::byte* p, IntVec* out) const {
    const __m256i a = load32(p), b = load32(p + 32), even = _mm256_set1_epi16(0x00FF);
    out[0] = {_mm256_and_si256(a, even), _mm256_and_si256(b, even)};
    out[1] = {_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8)};
  }
};

#include "kernels/matmul/kernel_body.h"

}  // namespace

const KernelSet& kernels() {
  return kSet;
}

}  // namespace halftone::avx2
