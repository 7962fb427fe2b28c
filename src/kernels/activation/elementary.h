// Inside kernels/ only: exp and tanh of FP32, written so that every instruction set rounds in the same places: the same
// polynomials, the same explicit fused multiply-adds. The AVX2 twins are in elementary_avx2.h.
//
// exp: x = n ln 2 + r with |r| <= ln(2)/2, ln 2 in two parts (Cody and Waite 1980); e^r = 1 + r + r^2 P(r), P a
// relative minimax fit of degree 4 (error 3e-9); 2^n applied as two exact factors, so that subnormal results are
// rounded once. Below kExpLow the result is 0, above kExpHigh infinity. Error: under 2 ulp (tested). tanh: x + x^3
// Q(x^2) with a fit of degree 4 below kTanhSplit, 1 - 2 / (e^(2x) + 1) above it. Error: under 4 ulp.
#pragma once

namespace halftone {

constexpr float kExpLow = -104.0F;
constexpr float kExpHigh = 89.0F;
constexpr float kLog2E = 0x1.715476p+0F;
constexpr float kLn2High = 0x1.63p-1F;  // nine bits: a product with n is exact
constexpr float kLn2Low = -0x1.bd0106p-13F;
constexpr float kRoundShift = 12582912.0F;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
constexpr float kExp0 = 0x1.fffffcp-2F, kExp1 = 0x1.55549p-3F, kExp2 = 0x1.5558f6p-5F, kExp3 = 0x1.123a8ep-7F,
                kExp4 = 0x1.6a2318p-10F;

constexpr float kTanhSplit = 0.625F;
constexpr float kTanh0 = -0x1.555534p-2F, kTanh1 = 0x1.110768p-3F, kTanh2 = -0x1.b84448p-5F, kTanh3 = 0x1.5256d2p-6F,
                kTanh4 = -0x1.76abfep-8F;

constexpr float kGeluTanhScale = 0.7978845608028654F;  // sqrt(2 / pi)
constexpr float kGeluTanhCubic = 0.044715F;

namespace scalar {

float exp_f32(float x);
float tanh_f32(float x);

// Sum of eight lanes in the order in which halves of a register fold: ((0+4)+(2+6)) + ((1+5)+(3+7)).
float fold_lanes(const float* lanes);
double fold_lanes(const double* lanes);

}  // namespace scalar
}  // namespace halftone
