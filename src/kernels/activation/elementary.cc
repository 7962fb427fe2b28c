#include "kernels/activation/elementary.h"

#include <bit>
#include <cmath>
#include <cstdint>

namespace halftone::scalar {

float exp_f32(float x) {
  // Both comparisons let NaN through.
  float v = kExpLow > x ? kExpLow : x;
  v = kExpHigh < v ? kExpHigh : v;
  const float shifted = std::fma(v, kLog2E, kRoundShift);
  const float n = shifted - kRoundShift;
  const auto exponent =
      static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(kRoundShift));
  float r = std::fma(n, -kLn2High, v);
  r = std::fma(n, -kLn2Low, r);
  float p = std::fma(kExp4, r, kExp3);
  p = std::fma(p, r, kExp2);
  p = std::fma(p, r, kExp1);
  p = std::fma(p, r, kExp0);
  p = std::fma(p, r * r, r);
  p = p + 1.0F;
  const std::int32_t half = exponent >> 1;
  const auto power = [](std::int32_t e) { return std::bit_cast<float>((static_cast<std::uint32_t>(e) + 127U) << 23); };
  return p * power(half) *
         power(static_cast<std::int32_t>(static_cast<std::uint32_t>(exponent) - static_cast<std::uint32_t>(half)));
}

float tanh_f32(float x) {
  const float a = std::fabs(x);
  if (a < kTanhSplit) {
    const float z = a * a;
    float q = std::fma(kTanh4, z, kTanh3);
    q = std::fma(q, z, kTanh2);
    q = std::fma(q, z, kTanh1);
    q = std::fma(q, z, kTanh0);
    return std::copysign(std::fma(q, z * a, a), x);
  }
  const float y = 1.0F - 2.0F / (exp_f32(a + a) + 1.0F);
  return std::copysign(y, x);
}

float fold_lanes(const float* l) {
  return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}
double fold_lanes(const double* l) {
  return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

}  // namespace halftone::scalar
