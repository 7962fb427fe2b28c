// The AVX-512 instructions that kernels_avx512.cc uses, in portable C++, so that its arithmetic is tested on every
// machine. For tests only; a translation unit that includes this must not include the compiler's own intrinsics.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "numeric/format.h"

namespace halftone::avx512_emulated {
namespace {

struct Float16Lanes {
  std::array<float, 16> v;
};
template <int kBytes>
struct Bytes {
  std::array<std::uint8_t, kBytes> v;

  template <class T>
  std::array<T, kBytes / sizeof(T)> as() const {
    std::array<T, kBytes / sizeof(T)> lanes;
    std::memcpy(lanes.data(), v.data(), kBytes);
    return lanes;
  }
  template <class T>
  static Bytes from(const std::array<T, kBytes / sizeof(T)>& lanes) {
    Bytes b;
    std::memcpy(b.v.data(), lanes.data(), kBytes);
    return b;
  }
};

// Lane by lane: To f(From).
template <class To, class From, std::size_t kCount, class F>
std::array<To, kCount> map_lanes(const std::array<From, kCount>& in, const F& f) {
  std::array<To, kCount> out;
  for (std::size_t i = 0; i < kCount; ++i) out[i] = static_cast<To>(f(in[i], i));
  return out;
}
template <int kBytes>
Bytes<kBytes> load_bytes(const void* p) {
  Bytes<kBytes> b;
  std::memcpy(b.v.data(), p, kBytes);
  return b;
}

using m128i = Bytes<16>;
using m256i = Bytes<32>;
using m512i = Bytes<64>;
using m512 = Float16Lanes;

inline m128i mm_loadu_si128(const m128i* p) {
  return load_bytes<16>(p);
}
inline m256i mm256_loadu_si256(const m256i* p) {
  return load_bytes<32>(p);
}
inline m512i mm512_loadu_si512(const void* p) {
  return load_bytes<64>(p);
}
inline void mm512_storeu_si512(void* p, const m512i& a) {
  std::memcpy(p, a.v.data(), 64);
}
inline m512i mm512_setzero_si512() {
  return {};
}
inline m512i mm512_set1_epi32(std::int32_t x) {
  std::array<std::int32_t, 16> lanes;
  lanes.fill(x);
  return m512i::from(lanes);
}
inline m256i mm256_set1_epi16(short x) {
  std::array<std::int16_t, 16> lanes;
  lanes.fill(x);
  return m256i::from(lanes);
}
inline m256i mm256_and_si256(const m256i& a, const m256i& b) {
  return m256i{map_lanes<std::uint8_t>(a.v, [&](int x, std::size_t i) { return x & b.v[i]; })};
}
inline m256i mm256_slli_epi16(const m256i& a, int n) {
  return m256i::from(map_lanes<std::uint16_t>(a.as<std::uint16_t>(), [n](int x, std::size_t) { return x << n; }));
}
inline m512i mm512_slli_epi32(const m512i& a, int n) {
  return m512i::from(map_lanes<std::uint32_t>(a.as<std::uint32_t>(), [n](auto x, std::size_t) { return x << n; }));
}
inline m512i mm512_srli_epi32(const m512i& a, int n) {
  return m512i::from(map_lanes<std::uint32_t>(a.as<std::uint32_t>(), [n](auto x, std::size_t) { return x >> n; }));
}
inline m256i mm256_cvtepi8_epi16(const m128i& a) {
  return m256i::from(map_lanes<std::int16_t>(a.as<std::int8_t>(), [](int x, std::size_t) { return x; }));
}
inline m256i mm256_cvtepu8_epi16(const m128i& a) {
  return m256i::from(map_lanes<std::int16_t>(a.v, [](int x, std::size_t) { return x; }));
}
inline m512i mm512_cvtepi8_epi32(const m128i& a) {
  return m512i::from(map_lanes<std::int32_t>(a.as<std::int8_t>(), [](int x, std::size_t) { return x; }));
}
inline m512i mm512_cvtepu8_epi32(const m128i& a) {
  return m512i::from(map_lanes<std::int32_t>(a.v, [](int x, std::size_t) { return x; }));
}
inline m512i mm512_cvtepu16_epi32(const m256i& a) {
  return m512i::from(map_lanes<std::int32_t>(a.as<std::uint16_t>(), [](int x, std::size_t) { return x; }));
}
inline m512 mm512_cvtepi32_ps(const m512i& a) {
  return {map_lanes<float>(a.as<std::int32_t>(), [](std::int32_t x, std::size_t) { return static_cast<float>(x); })};
}
inline m512 mm512_cvtph_ps(const m256i& a) {
  return {map_lanes<float>(a.as<std::uint16_t>(), [](std::uint16_t x, std::size_t) { return fp16_to_float(x); })};
}
inline m512 mm512_castsi512_ps(const m512i& a) {
  return {a.as<float>()};
}
inline m512i mm512_dpwssd_epi32(const m512i& sum, const m512i& a, const m512i& b) {
  const auto x = a.as<std::int16_t>(), y = b.as<std::int16_t>();
  return m512i::from(map_lanes<std::int32_t>(sum.as<std::int32_t>(), [&](std::int32_t s, std::size_t i) {
    return s + std::int32_t{x[2 * i]} * y[2 * i] + std::int32_t{x[2 * i + 1]} * y[2 * i + 1];
  }));
}
inline m512 mm512_permutexvar_ps(const m512i& index, const m512& a) {
  return {map_lanes<float>(index.as<std::uint32_t>(), [&](std::uint32_t x, std::size_t) { return a.v[x & 15]; })};
}
inline m512 mm512_i32gather_ps(const m512i& index, const void* base, int) {
  return {map_lanes<float>(index.as<std::int32_t>(),
                           [&](std::int32_t x, std::size_t) { return static_cast<const float*>(base)[x]; })};
}
inline m512 mm512_setzero_ps() {
  return {};
}
inline m512 mm512_set1_ps(float x) {
  m512 r;
  r.v.fill(x);
  return r;
}
inline m512 mm512_loadu_ps(const void* p) {
  m512 r;
  std::memcpy(r.v.data(), p, 64);
  return r;
}
inline void mm512_storeu_ps(void* p, const m512& a) {
  std::memcpy(p, a.v.data(), 64);
}
inline m512 mm512_mul_ps(const m512& a, const m512& b) {
  return {map_lanes<float>(a.v, [&](float x, std::size_t i) { return x * b.v[i]; })};
}
inline m512 mm512_fmadd_ps(const m512& a, const m512& b, const m512& c) {
  return {map_lanes<float>(a.v, [&](float x, std::size_t i) { return std::fma(x, b.v[i], c.v[i]); })};
}

inline m512 mm512_add_ps(const m512& a, const m512& b) {
  return {map_lanes<float>(a.v, [&](float x, std::size_t i) { return x + b.v[i]; })};
}
inline m512i mm512_and_si512(const m512i& a, const m512i& b) {
  return m512i{map_lanes<std::uint8_t>(a.v, [&](int x, std::size_t i) { return x & b.v[i]; })};
}
inline m512i mm512_broadcast_i32x4(const m128i& a) {
  return m512i{map_lanes<std::uint8_t>(m512i{}.v, [&](int, std::size_t i) { return a.v[i % 16]; })};
}
inline m512i mm512_max_epu32(const m512i& a, const m512i& b) {
  const auto y = b.as<std::uint32_t>();
  return m512i::from(map_lanes<std::uint32_t>(a.as<std::uint32_t>(),
                                              [&](std::uint32_t x, std::size_t i) { return x > y[i] ? x : y[i]; }));
}
inline m512i mm512_set1_epi16(short x) {
  std::array<std::int16_t, 32> lanes;
  lanes.fill(x);
  return m512i::from(lanes);
}
inline m512i mm512_set1_epi8(char x) {
  m512i r;
  r.v.fill(static_cast<std::uint8_t>(x));
  return r;
}
inline m512i mm512_shuffle_epi8(const m512i& a, const m512i& index) {
  return m512i{map_lanes<std::uint8_t>(index.v, [&](int x, std::size_t i) {
    return (x & 0x80) != 0 ? 0 : a.v[(i & 48) + static_cast<std::size_t>(x & 15)];
  })};
}
inline m512i mm512_srli_epi16(const m512i& a, int n) {
  return m512i::from(map_lanes<std::uint16_t>(a.as<std::uint16_t>(), [n](int x, std::size_t) { return x >> n; }));
}

}  // namespace
}  // namespace halftone::avx512_emulated

#define __m128i ::halftone::avx512_emulated::m128i
#define __m256i ::halftone::avx512_emulated::m256i
#define __m512i ::halftone::avx512_emulated::m512i
#define __m512 ::halftone::avx512_emulated::m512
#define _mm256_and_si256 ::halftone::avx512_emulated::mm256_and_si256
#define _mm256_cvtepi8_epi16 ::halftone::avx512_emulated::mm256_cvtepi8_epi16
#define _mm256_cvtepu8_epi16 ::halftone::avx512_emulated::mm256_cvtepu8_epi16
#define _mm256_loadu_si256 ::halftone::avx512_emulated::mm256_loadu_si256
#define _mm256_set1_epi16 ::halftone::avx512_emulated::mm256_set1_epi16
#define _mm256_slli_epi16 ::halftone::avx512_emulated::mm256_slli_epi16
#define _mm512_castsi512_ps ::halftone::avx512_emulated::mm512_castsi512_ps
#define _mm512_cvtepi32_ps ::halftone::avx512_emulated::mm512_cvtepi32_ps
#define _mm512_cvtepi8_epi32 ::halftone::avx512_emulated::mm512_cvtepi8_epi32
#define _mm512_cvtepu16_epi32 ::halftone::avx512_emulated::mm512_cvtepu16_epi32
#define _mm512_cvtepu8_epi32 ::halftone::avx512_emulated::mm512_cvtepu8_epi32
#define _mm512_cvtph_ps ::halftone::avx512_emulated::mm512_cvtph_ps
#define _mm512_dpwssd_epi32 ::halftone::avx512_emulated::mm512_dpwssd_epi32
#define _mm512_fmadd_ps ::halftone::avx512_emulated::mm512_fmadd_ps
#define _mm512_i32gather_ps ::halftone::avx512_emulated::mm512_i32gather_ps
#define _mm512_loadu_ps ::halftone::avx512_emulated::mm512_loadu_ps
#define _mm512_loadu_si512 ::halftone::avx512_emulated::mm512_loadu_si512
#define _mm512_mul_ps ::halftone::avx512_emulated::mm512_mul_ps
#define _mm512_permutexvar_ps ::halftone::avx512_emulated::mm512_permutexvar_ps
#define _mm512_set1_epi32 ::halftone::avx512_emulated::mm512_set1_epi32
#define _mm512_set1_ps ::halftone::avx512_emulated::mm512_set1_ps
#define _mm512_setzero_ps ::halftone::avx512_emulated::mm512_setzero_ps
#define _mm512_setzero_si512 ::halftone::avx512_emulated::mm512_setzero_si512
#define _mm512_slli_epi32 ::halftone::avx512_emulated::mm512_slli_epi32
#define _mm512_srli_epi32 ::halftone::avx512_emulated::mm512_srli_epi32
#define _mm512_storeu_ps ::halftone::avx512_emulated::mm512_storeu_ps
#define _mm512_storeu_si512 ::halftone::avx512_emulated::mm512_storeu_si512
#define _mm_loadu_si128 ::halftone::avx512_emulated::mm_loadu_si128
#define _mm512_add_ps ::halftone::avx512_emulated::mm512_add_ps
#define _mm512_and_si512 ::halftone::avx512_emulated::mm512_and_si512
#define _mm512_broadcast_i32x4 ::halftone::avx512_emulated::mm512_broadcast_i32x4
#define _mm512_max_epu32 ::halftone::avx512_emulated::mm512_max_epu32
#define _mm512_set1_epi16 ::halftone::avx512_emulated::mm512_set1_epi16
#define _mm512_set1_epi8 ::halftone::avx512_emulated::mm512_set1_epi8
#define _mm512_shuffle_epi8 ::halftone::avx512_emulated::mm512_shuffle_epi8
#define _mm512_srli_epi16 ::halftone::avx512_emulated::mm512_srli_epi16
#define _mm_prefetch(p, hint) static_cast<void>(p)
