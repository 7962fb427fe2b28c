// The one place where scales are computed: zero-safe, floored, non-finite input is named by the caller.
#pragma once

#include <cstdint>
#include <span>

#include "numeric/scheme.h"

namespace halftone {

struct Range {
  float low = 0, high = 0;  // of the values; low <= 0 <= high after include_zero
};

struct ScaleZero {
  float scale = 0;        // exactly representable in the scheme's scale format; never NaN, never 0 unless all is zero
  std::int32_t zero = 0;  // in the code's own signed range; 0 if symmetric
};

// The scale (and zero point) under which [range.low, range.high] fits the element format. Symmetric integers follow
// compressed-tensors: amax / ((2^b - 1) / 2), codes -2^(b-1) .. 2^(b-1)-1. An all-zero range gives scale 1 (code 0
// decodes to exact zero). A scale that would round to zero is raised to the smallest positive value of its format.
// `global` is the two-level multiplier (1 otherwise): value = code * scale * global. Precondition: finite range.
ScaleZero choose_scale(const Scheme& scheme, Range range, float global = 1.0F);

// As above for the values of one block; for ScaleRule::search compares the candidates' squared errors.
ScaleZero choose_scale(const Scheme& scheme, std::span<const float> values, float global = 1.0F);

// The multiplier of a two-level scheme: amax / (448 * element max); 1 if amax is 0.
float choose_global_scale(const Scheme& scheme, float tensor_amax);

// Codes of values under a chosen scale: integers round(x/s)+z clamped, floats encode(x/s) saturating. `inverse` is
// computed once as 1/(scale*global) in double. Two's complement codes in the low bits.
std::uint32_t quantize_value(const Scheme& scheme, float value, ScaleZero sz, float global = 1.0F);
float dequantize_value(const Scheme& scheme, std::uint32_t code, ScaleZero sz, float global = 1.0F);

}  // namespace halftone
