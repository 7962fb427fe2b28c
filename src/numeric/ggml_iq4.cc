// Encoders of IQ4_NL and IQ4_XS (shared/formats.md 2.6.1, 2.6.3): 16 uneven levels, scale by weighted least squares
// with weights x^2.
#include <algorithm>

#include "numeric/ggml_detail.h"

namespace halftone::ggml_detail {
namespace {

constexpr float kSmallest = 1e-15F;  // blocks below this have no scale

// Index of the nearest level; halfway goes up.
std::uint8_t nearest_level(float v) {
  if (!(v > static_cast<float>(kIq4Levels.front()))) return 0;
  if (v >= static_cast<float>(kIq4Levels.back())) return 15;
  std::size_t upper = 1;
  while (v >= static_cast<float>(kIq4Levels[upper])) ++upper;
  const float below = v - static_cast<float>(kIq4Levels[upper - 1]);
  const float above = static_cast<float>(kIq4Levels[upper]) - v;
  return static_cast<std::uint8_t>(below < above ? upper - 1 : upper);
}

// The least-squares terms of one trial inverse scale; the codes go to `codes` unless it is null.
struct Fit {
  float xq = 0.0F, qq = 0.0F;
};
Fit fit(const float* x, float inverse, std::uint8_t* codes) {
  Fit f;
  for (int j = 0; j < 32; ++j) {
    const std::uint8_t code = nearest_level(inverse * x[j]);
    if (codes != nullptr) codes[j] = code;
    const auto q = static_cast<float>(kIq4Levels[code]);
    const float w = x[j] * x[j];
    f.xq += w * q * x[j];
    f.qq += w * q * q;
  }
  return f;
}

// Scale of 32 values; `trials` on each side of the first guess (0: the first guess alone). Writes the first guess's
// codes.
float level_scale(const float* x, int trials, std::uint8_t* codes) {
  const float peak = signed_peak(x, 32);
  if (std::fabs(peak) < kSmallest) {
    std::fill_n(codes, 32, std::uint8_t{0});
    return 0.0F;
  }
  const auto lowest = static_cast<float>(kIq4Levels[0]);
  const float guess = trials > 0 ? -peak / lowest : peak / lowest;
  const Fit first = fit(x, 1.0F / guess, codes);
  float scale = first.xq / first.qq;
  float best = scale * first.xq;
  for (int t = -trials; trials > 0 && t <= trials; ++t) {
    const Fit f = fit(x, (static_cast<float>(t) + lowest) / peak, nullptr);
    if (f.qq > 0.0F && f.xq * f.xq > best * f.qq) {
      scale = f.xq / f.qq;
      best = scale * f.xq;
    }
  }
  return scale;
}

void pack_halves(const std::uint8_t* codes, std::uint8_t* out) {
  for (int j = 0; j < 16; ++j) out[j] = static_cast<std::uint8_t>(codes[j] | codes[j + 16] << 4);
}

}  // namespace

void encode_iq4_nl(const float* x, std::uint8_t* block) {
  std::array<std::uint8_t, 32> codes;
  store_half(block, level_scale(x, 0, codes.data()));
  pack_halves(codes.data(), block + 2);
}

void encode_iq4_xs(const float* x, std::uint8_t* block) {
  std::array<std::uint8_t, 32> codes;
  std::array<float, 8> scales;
  for (std::size_t s = 0; s < 8; ++s) scales[s] = level_scale(x + 32 * s, 7, codes.data());
  const float d = -signed_peak(scales.data(), 8) / 32.0F;
  const float inverse = inverse_or_zero(d);
  std::memset(block, 0, 8);
  store_half(block, d);
  unsigned high = 0;
  for (std::size_t s = 0; s < 8; ++s) {
    const int scale = round_clamped(inverse * scales[s], -32, 31);
    const float inverse_sub = inverse_or_zero(d * static_cast<float>(scale));
    for (std::size_t j = 0; j < 32; ++j) codes[j] = nearest_level(inverse_sub * x[32 * s + j]);
    pack_halves(codes.data(), block + 8 + 16 * s);
    const int stored = scale + 32;
    block[4 + s / 2] = static_cast<std::uint8_t>(block[4 + s / 2] | (stored & 15) << (4 * (s % 2)));
    high |= static_cast<unsigned>(stored >> 4) << (2 * s);
  }
  const auto high16 = static_cast<std::uint16_t>(high);
  std::memcpy(block + 2, &high16, sizeof high16);
}

}  // namespace halftone::ggml_detail
