// AVX2 + FMA + F16C. Two registers hold the 16 rows of a tile. Instructions for 16 weights at one k (without the
// broadcast of x, which the tiles in flight share): fp32 2 FMA from memory; bf16 2 widen + 2 shift + 2 FMA; fp16
// 2 convert + 2 FMA; fp8 widen, shift, mask, extract, 2 convert, 2 FMA; table4_fp16 about 9 (see there).
#include <immintrin.h>

#include "kernels/matmul/kernel_view.h"

namespace halftone::avx2 {
namespace {

using namespace matmul_detail;

constexpr Isa kIsa = Isa::avx2;

struct Lanes {
  __m256 a, b;
};
struct Wide {
  __m256i a, b;
};

inline Lanes lanes_zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Lanes lanes_set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Lanes lanes_load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void lanes_store(float* p, Lanes v) {
  _mm256_storeu_ps(p, v.a);
  _mm256_storeu_ps(p + 8, v.b);
}
inline Lanes lanes_mul(Lanes x, Lanes y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline Lanes lanes_fma(Lanes x, Lanes y, Lanes z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline __m128i load128(const std::uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
inline __m256i load256(const std::uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline __m256 widen_bf16(const std::uint8_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16));
}
inline Lanes lanes_load_bf16(const std::uint8_t* p) { return {widen_bf16(p), widen_bf16(p + 16)}; }
inline Lanes lanes_load_fp16(const std::uint8_t* p) {
  return {_mm256_cvtph_ps(load128(p)), _mm256_cvtph_ps(load128(p + 16))};
}
inline Lanes halves_to_lanes(__m256i h) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}

struct FloatDomain {
  using X = float;
  using Panel = float;
  using Weights = Lanes;
  using Sum = Lanes;
  static constexpr int kPer = 1, kPanelStep = kTileRows, kMicroRows = 6, kMicroTiles = 1;
  static inline Sum zero() { return lanes_zero(); }
  static inline __m256 broadcast(const float* x) { return _mm256_broadcast_ss(x); }
  static inline Sum mac(__m256 x, Weights w, Sum sum) {
    return {_mm256_fmadd_ps(x, w.a, sum.a), _mm256_fmadd_ps(x, w.b, sum.b)};
  }
  static inline Lanes result(Sum sum) { return sum; }
  static inline void store_panel(float* p, Weights w) { lanes_store(p, w); }
  static inline Weights load_panel(const float* p) { return lanes_load(p); }
};

struct IntDomain {
  using X = std::int16_t;
  using Panel = std::int16_t;
  using Weights = Wide;  // 16 rows of two int16
  using Sum = Wide;
  static constexpr int kPer = 2, kPanelStep = 2 * kTileRows, kMicroRows = 6, kMicroTiles = 1;
  static inline Sum zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static inline __m256i broadcast(const std::int16_t* x) {
    return _mm256_castps_si256(_mm256_broadcast_ss(reinterpret_cast<const float*>(x)));
  }
  static inline Sum mac(__m256i x, Weights w, Sum sum) {
    return {_mm256_add_epi32(sum.a, _mm256_madd_epi16(x, w.a)), _mm256_add_epi32(sum.b, _mm256_madd_epi16(x, w.b))};
  }
  static inline Lanes result(Sum sum) { return {_mm256_cvtepi32_ps(sum.a), _mm256_cvtepi32_ps(sum.b)}; }
  static inline void store_panel(std::int16_t* p, Weights w) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), w.a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 16), w.b);
  }
  static inline Weights load_panel(const std::int16_t* p) {
    const auto* q = reinterpret_cast<const std::uint8_t*>(p);
    return {load256(q), load256(q + 32)};
  }
};

struct NoContext {
  explicit NoContext(const MatrixView&) {}
};

struct Fp32 {
  using Domain = FloatDomain;
  static constexpr int kSteps = 1, kBytes = 64, kVectorTiles = 2;
  struct Context : NoContext {
    using NoContext::NoContext;
    inline void decode(const std::uint8_t* p, Lanes (&w)[1]) const {
      w[0] = lanes_load(reinterpret_cast<const float*>(p));
    }
  };
};

struct Bf16 {
  using Domain = FloatDomain;
  static constexpr int kSteps = 1, kBytes = 32, kVectorTiles = 2;
  struct Context : NoContext {
    using NoContext::NoContext;
    inline void decode(const std::uint8_t* p, Lanes (&w)[1]) const { w[0] = lanes_load_bf16(p); }
  };
};

struct Fp16 {
  using Domain = FloatDomain;
  static constexpr int kSteps = 1, kBytes = 32, kVectorTiles = 2;
  struct Context : NoContext {
    using NoContext::NoContext;
    inline void decode(const std::uint8_t* p, Lanes (&w)[1]) const { w[0] = lanes_load_fp16(p); }
  };
};

// Sign-extended to 16 bits and shifted, exponent and mantissa lie where FP16 has them; the copies of the sign between
// them are masked away. The exponent never reaches FP16's infinities; F16C converts subnormals exactly.
template <int kMantissa>
struct Fp8Small {
  using Domain = FloatDomain;
  static constexpr int kSteps = 1, kBytes = 16, kVectorTiles = 2;
  struct Context {
    __m256i mask;
    explicit Context(const MatrixView&)
        : mask(_mm256_set1_epi16(static_cast<short>(0x8000 | (0x7F << (10 - kMantissa))))) {}
    inline void decode(const std::uint8_t* p, Lanes (&w)[1]) const {
      const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(load128(p)), 10 - kMantissa);
      w[0] = halves_to_lanes(_mm256_and_si256(wide, mask));
    }
  };
};

struct Fp8E5M2 {
  using Domain = FloatDomain;
  static constexpr int kSteps = 1, kBytes = 16, kVectorTiles = 2;
  struct Context : NoContext {
    using NoContext::NoContext;
    inline void decode(const std::uint8_t* p, Lanes (&w)[1]) const {
      const __m128i v = load128(p), zero = _mm_setzero_si128();
      w[0] = {_mm256_cvtph_ps(_mm_unpacklo_epi8(zero, v)), _mm256_cvtph_ps(_mm_unpackhi_epi8(zero, v))};
    }
  };
};

struct Int8 {
  using Domain = FloatDomain;
  static constexpr int kSteps = 1, kBytes = 16, kVectorTiles = 2;
  struct Context : NoContext {
    using NoContext::NoContext;
    static inline __m256 widen(const std::uint8_t* p) {
      return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
    }
    inline void decode(const std::uint8_t* p, Lanes (&w)[1]) const { w[0] = {widen(p), widen(p + 8)}; }
  };
};

struct Table8 {
  using Domain = FloatDomain;
  static constexpr int kSteps = 1, kBytes = 16, kVectorTiles = 2;
  struct Context {
    const float* table;
    explicit Context(const MatrixView& v) : table(v.table) {}
    inline __m256 look_up(const std::uint8_t* p) const {
      const __m256i index = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
      return _mm256_i32gather_ps(table, index, 4);
    }
    inline void decode(const std::uint8_t* p, Lanes (&w)[1]) const { w[0] = {look_up(p), look_up(p + 8)}; }
  };
};

// 64 weights: shift, 2 masks, 4 byte look-ups (low and high byte of the FP16 entry), 4 unpacks, 4 extracts, 8 converts.
struct Table4Fp16 {
  using Domain = FloatDomain;
  static constexpr int kSteps = 4, kBytes = 32, kVectorTiles = 2;
  struct Context {
    __m256i low, high;
    explicit Context(const MatrixView& v)
        : low(_mm256_broadcastsi128_si256(load128(v.table_bytes))),
          high(_mm256_broadcastsi128_si256(load128(v.table_bytes + 16))) {}
    inline void expand(__m256i nibbles, Lanes& first, Lanes& second) const {
      const __m256i l = _mm256_shuffle_epi8(low, nibbles), h = _mm256_shuffle_epi8(high, nibbles);
      const __m256i front = _mm256_unpacklo_epi8(l, h), back = _mm256_unpackhi_epi8(l, h);
      first = {_mm256_cvtph_ps(_mm256_castsi256_si128(front)), _mm256_cvtph_ps(_mm256_castsi256_si128(back))};
      second = {_mm256_cvtph_ps(_mm256_extracti128_si256(front, 1)), _mm256_cvtph_ps(_mm256_extracti128_si256(back, 1))};
    }
    inline void decode(const std::uint8_t* p, Lanes (&w)[4]) const {
      const __m256i v = load256(p), mask = _mm256_set1_epi8(15);
      expand(_mm256_and_si256(v, mask), w[0], w[2]);
      expand(_mm256_and_si256(_mm256_srli_epi16(v, 4), mask), w[1], w[3]);
    }
  };
};

// 8 weights: two 8-entry permutes by the low three bits, a blend by the fourth (moved to the sign bit).
struct Table4Fp32 {
  using Domain = FloatDomain;
  static constexpr int kSteps = 4, kBytes = 32, kVectorTiles = 2;
  struct Context {
    __m256 low, high;
    explicit Context(const MatrixView& v) : low(_mm256_loadu_ps(v.table)), high(_mm256_loadu_ps(v.table + 8)) {}
    inline __m256 look_up(__m256i codes, __m256i top) const {
      return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, codes), _mm256_permutevar8x32_ps(high, codes),
                              _mm256_castsi256_ps(top));
    }
    inline void decode(const std::uint8_t* p, Lanes (&w)[4]) const {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const auto* q = reinterpret_cast<const __m128i*>(p + 16 * half);
        const __m256i a = _mm256_cvtepu8_epi32(_mm_loadl_epi64(q));
        const __m256i b = _mm256_cvtepu8_epi32(_mm_loadl_epi64(
            reinterpret_cast<const __m128i*>(p + 16 * half + 8)));
        w[2 * half] = {look_up(a, _mm256_slli_epi32(a, 28)), look_up(b, _mm256_slli_epi32(b, 28))};
        w[2 * half + 1] = {look_up(_mm256_srli_epi32(a, 4), _mm256_slli_epi32(a, 24)),
                           look_up(_mm256_srli_epi32(b, 4), _mm256_slli_epi32(b, 24))};
      }
    }
  };
};

// Products of two INT8 codes reach 2^14, so a pair of them fits madd's int32 for every code, -128 included.
struct Int8ByInt8 {
  using Domain = IntDomain;
  static constexpr int kSteps = 1, kBytes = 32, kVectorTiles = 2;
  struct Context : NoContext {
    using NoContext::NoContext;
    inline void decode(const std::uint8_t* p, Wide (&w)[1]) const {
      w[0] = {_mm256_cvtepi8_epi16(load128(p)), _mm256_cvtepi8_epi16(load128(p + 16))};
    }
  };
};

struct Int4ByInt8 {
  using Domain = IntDomain;
  static constexpr int kSteps = 2, kBytes = 32, kVectorTiles = 2;
  struct Context {
    __m256i table;
    explicit Context(const MatrixView& v) : table(_mm256_broadcastsi128_si256(load128(v.table_bytes))) {}
    static inline Wide widen(__m256i v) {
      return {_mm256_cvtepi8_epi16(_mm256_castsi256_si128(v)), _mm256_cvtepi8_epi16(_mm256_extracti128_si256(v, 1))};
    }
    inline void decode(const std::uint8_t* p, Wide (&w)[2]) const {
      const __m256i v = load256(p), mask = _mm256_set1_epi8(15);
      w[0] = widen(_mm256_shuffle_epi8(table, _mm256_and_si256(v, mask)));
      w[1] = widen(_mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(v, 4), mask)));
    }
  };
};

#include "kernels/matmul/matmul_loops.inc"

}  // namespace

matmul_detail::KernelTable matmul_table() { return all_kernels(); }

}  // namespace halftone::avx2
