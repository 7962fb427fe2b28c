// AVX-512 F/BW/VL/DQ/VNNI: a tile's 16 outputs are one register. Everything lives in halftone::avx512.
#ifndef HALFTONE_EMULATED_AVX512  // see avx512_emulated_test.cc
#include <immintrin.h>
#endif

#include "kernels/matmul/packed.h"

namespace halftone::avx512 {
namespace {

using Vec = __m512;
using IntVec = __m512i;

// The small arrays of sums are registers only if the loops over them are unrolled, at any optimization level.
#define HT_UNROLL _Pragma("GCC unroll 16")

constexpr std::int64_t kPanelSegment = kLongestPanel;
constexpr std::int64_t kPanelRows = 256;
constexpr int kMicroRows = 12;  // sums of 32 registers; enough to cover the latency of two FMA units
constexpr int kDirectRows = 8, kIntegerRows = 12;

inline Vec vzero() {
  return _mm512_setzero_ps();
}
inline Vec vset(float x) {
  return _mm512_set1_ps(x);
}
inline Vec vload(const float* p) {
  return _mm512_loadu_ps(p);
}
inline void vstore(float* p, Vec a) {
  _mm512_storeu_ps(p, a);
}
inline Vec vadd(Vec a, Vec b) {
  return _mm512_add_ps(a, b);
}
inline Vec vmul(Vec a, Vec b) {
  return _mm512_mul_ps(a, b);
}
inline Vec vfma(Vec a, Vec b, Vec c) {
  return _mm512_fmadd_ps(a, b, c);
}
inline void vprefetch(const std::byte* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
}

inline IntVec izero() {
  return _mm512_setzero_si512();
}
inline IntVec iset_pair(const std::int16_t* p) {
  int pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return _mm512_set1_epi32(pair);
}
inline IntVec imadd(IntVec x, IntVec w, IntVec sum) {
  return _mm512_dpwssd_epi32(sum, x, w);
}
inline Vec ifloat(IntVec a) {
  return _mm512_cvtepi32_ps(a);
}

inline __m128i load16(const std::byte* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
inline __m256i load32(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline __m512i load64(const std::byte* p) {
  return _mm512_loadu_si512(p);
}
inline IntVec iload(const std::int16_t* p) {
  return _mm512_loadu_si512(p);
}
inline void istore(std::int16_t* p, IntVec a) {
  _mm512_storeu_si512(p, a);
}

inline Vec load_bf16(const std::byte* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load32(p)), 16));
}
inline Vec load_f16(const std::byte* p) {
  return _mm512_cvtph_ps(load32(p));
}
inline Vec load_e4m3(const std::byte* p) {
  const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(load16(p)), 7);
  return _mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16(static_cast<short>(0xBF80))));
}
inline Vec load_e8m0(const std::byte* p) {  // code 0 is 2^-127, a subnormal number
  const __m512i exponent = _mm512_slli_epi32(_mm512_cvtepu8_epi32(load16(p)), 23);
  return _mm512_castsi512_ps(_mm512_max_epu32(exponent, _mm512_set1_epi32(0x00400000)));
}
inline Vec load_i8(const std::byte* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load16(p)));
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
  Vec code(State p, int) const { return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(load16(p)), 8)); }
};
struct DecodeI8 {
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
  Vec code(State p, int) const { return _mm512_i32gather_ps(_mm512_cvtepu8_epi32(load16(p)), table, 4); }
  const float* table;
};
struct DecodeN4i {
  static constexpr int kStep = 8, kPart = 4, kBytes = 64;
  explicit DecodeN4i(const WeightView& w)
      : table(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w.table16)))) {}
  __m512i low(__m512i v) const { return _mm512_shuffle_epi8(table, _mm512_and_si512(v, _mm512_set1_epi8(15))); }
  using State = IntVec;  // the bytes of four K positions
  State prepare(const std::byte* p, int part) const {
    const __m512i v = load64(p);
    return part == 0 ? low(v) : low(_mm512_srli_epi16(v, 4));
  }
  Vec code(const State& s, int j) const {
    return _mm512_cvtepi32_ps(j == 3 ? _mm512_srli_epi32(s, 24)
                                     : _mm512_and_si512(s, _mm512_set1_epi32(0xFF << (8 * j))));
  }
  void pairs(const std::byte* p, IntVec* out) const {
    HT_UNROLL for (int part = 0; part < 2; ++part) {
      const __m512i s = prepare(p, part);
      out[2 * part] = _mm512_and_si512(s, _mm512_set1_epi16(0x00FF));
      out[2 * part + 1] = _mm512_srli_epi16(s, 8);
    }
  }
  __m512i table;
};
struct DecodeN4u {
  static constexpr int kStep = 8, kPart = 4, kBytes = 64;
  explicit DecodeN4u(const WeightView&) {}
  struct State {
    __m512i v;
    int part;
  };
  State prepare(const std::byte* p, int part) const { return {load64(p), part}; }
  Vec code(const State& s, int j) const {
    const int k = 4 * s.part + j;
    return _mm512_cvtepi32_ps(
        k == 7 ? _mm512_srli_epi32(s.v, 28)
               : _mm512_and_si512(s.v, _mm512_set1_epi32(k < 4 ? 0x0F << (8 * k) : 0xF0 << (8 * (k - 4)))));
  }
  void pairs(const std::byte* p, IntVec* out) const {
    const __m512i v = load64(p), nibble = _mm512_set1_epi16(0x000F);
    out[0] = _mm512_and_si512(v, nibble);
    out[1] = _mm512_and_si512(_mm512_srli_epi16(v, 8), nibble);
    out[2] = _mm512_and_si512(_mm512_srli_epi16(v, 4), nibble);
    out[3] = _mm512_srli_epi16(v, 12);
  }
};
struct DecodeN4f {
  static constexpr int kStep = 2, kPart = 2, kBytes = 16;
  explicit DecodeN4f(const WeightView& w) : table(_mm512_loadu_ps(w.table)) {}
  using State = IntVec;
  State prepare(const std::byte* p, int) const { return _mm512_cvtepu8_epi32(load16(p)); }
  Vec code(const State& s, int j) const {  // the look-up reads the low four bits alone
    return _mm512_permutexvar_ps(j == 0 ? s : _mm512_srli_epi32(s, 4), table);
  }
  __m512 table;
};
struct DecodeI8x4 {
  static constexpr int kStep = 4, kBytes = 64;
  explicit DecodeI8x4(const WeightView&) {}
  void pairs(const std::byte* p, IntVec* out) const {
    const __m512i v = load64(p);
    out[0] = _mm512_and_si512(v, _mm512_set1_epi16(0x00FF));
    out[1] = _mm512_srli_epi16(v, 8);
  }
};

#include "kernels/matmul/kernel_body.h"

}  // namespace

const KernelSet& kernels() {
  return kSet;
}

}  // namespace halftone::avx512
