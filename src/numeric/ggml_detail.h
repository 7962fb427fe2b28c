// Inside numeric/ only: what the codecs of GGUF block types share.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "numeric/format.h"
#include "numeric/ggml.h"

namespace halftone::ggml_detail {

inline constexpr std::array<std::int8_t, 16> kIq4Levels = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                           1,    13,   25,  38,  53,  69,  89,  113};
// Twice the values of e2m1.
inline constexpr std::array<std::int8_t, 16> kFp4Doubled = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// v cut to [low, high] and truncated; NaN gives low, so that no input converts out of range.
inline int truncate_clamped(float v, int low, int high) {
  if (!(v > static_cast<float>(low))) return low;
  if (v >= static_cast<float>(high)) return high;
  return static_cast<int>(v);
}

// Nearest integer, ties to even, cut to [low, high] (within +-2^22); NaN gives low.
inline int round_clamped(float v, int low, int high) {
  if (!(v > static_cast<float>(low))) return low;
  if (v >= static_cast<float>(high)) return high;
  constexpr float kShift = 12582912.0F;  // 1.5 * 2^23: the sum has no fraction bits left
  return static_cast<int>((v + kShift) - kShift);
}

inline float inverse_or_zero(float v) {
  return v != 0.0F ? 1.0F / v : 0.0F;
}

inline void store_half(std::uint8_t* p, float v) {
  const std::uint16_t code = float_to_fp16(v);
  std::memcpy(p, &code, sizeof code);
}
inline float load_half(const std::uint8_t* p) {
  std::uint16_t code = 0;
  std::memcpy(&code, p, sizeof code);
  return fp16_to_float(code);
}

// The element of largest magnitude, the first of equals; 0 if there is none above 0.
inline float signed_peak(const float* x, int n) {
  float magnitude = 0.0F;
  float peak = 0.0F;
  for (int i = 0; i < n; ++i) {
    if (std::fabs(x[i]) > magnitude) {
      magnitude = std::fabs(x[i]);
      peak = x[i];
    }
  }
  return peak;
}

// Blocks of 256 (ggml_kquants.cc) and the IQ4 family (ggml_iq4.cc): one block each.
void encode_q2_k(const float* x, std::uint8_t* block);
void encode_q3_k(const float* x, std::uint8_t* block);
void encode_q4_k(const float* x, std::uint8_t* block);
void encode_q5_k(const float* x, std::uint8_t* block);
void encode_q6_k(const float* x, std::uint8_t* block);
void encode_iq4_nl(const float* x, std::uint8_t* block);
void encode_iq4_xs(const float* x, std::uint8_t* block);

}  // namespace halftone::ggml_detail
