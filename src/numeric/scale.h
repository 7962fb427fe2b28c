// The one place where scales are computed: zero-safe, floored, non-finite input is named by the caller.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "numeric/encoder.h"
#include "numeric/scheme.h"

namespace halftone {

struct Range {
  float low = 0, high = 0;  // of the values; low <= 0 <= high after include_zero
};

// Smallest and largest of the values and zero. NaN is passed over.
Range values_range(std::span<const float> values);

struct ScaleZero {
  float scale = 0;        // exactly representable in the scheme's scale format; never NaN, never 0
  std::int32_t zero = 0;  // in the code's own signed range; 0 if symmetric
};

// The scale (and zero point) under which [range.low, range.high] fits the element format. Symmetric integers follow
// compressed-tensors: amax / ((2^b - 1) / 2), codes -2^(b-1) .. 2^(b-1)-1; floats and codebooks amax / largest finite;
// asymmetric integers (high - low) / (2^b - 1) over a range that includes zero, zero = round(-2^(b-1) - low / scale)
// with the rounded scale. E8M0 scales follow scheme.scale_rule, whose element maximum is that of both signs
// (2^(b-1) - 1 for integers). An all-zero range gives scale 1 (code 0 decodes to exact zero). A scale is rounded to
// nearest even into its format; one that would round to zero, or whose inverse would overflow FP32, is raised: the
// floor is the larger of the format's smallest positive value and 2^-126 (E8M0: 2^-127). One above the format's range
// is its largest finite value, and the codes clip. `global` is the two-level multiplier (1 otherwise): value = code *
// (scale * global). Precondition: finite range.
ScaleZero choose_scale(const Scheme& scheme, Range range, float global = 1.0F);

// As above for the values of one block; ScaleRule::search takes the smaller squared error of 2^E (the rule ceil) and
// 2^(E-1), the larger scale where they are equal. (With a range alone, search is ceil.)
ScaleZero choose_scale(const Scheme& scheme, std::span<const float> values, float global = 1.0F);

// The multiplier of a two-level scheme: amax / (scale max * element max), which is 448 * 6 for NVFP4; 1 if amax is 0,
// at least 2^-117 so that no product with a block scale is zero.
float choose_global_scale(const Scheme& scheme, float tensor_amax);

// Codes of values under a chosen scale: integers round(x/s)+z clamped, floats and codebooks encode(x/s) saturating,
// with s = fl(scale * global) and the quotient in double. Two's complement codes in the low bits.
std::uint32_t quantize_value(const Scheme& scheme, float value, ScaleZero sz, float global = 1.0F);
// fl((code - zero) * s), s = fl(scale * global); the products are FP32.
float dequantize_value(const Scheme& scheme, std::uint32_t code, ScaleZero sz, float global = 1.0F);

// choose_scale for many blocks of one scheme: the facts of the formats are worked out once.
class ScaleChooser {
 public:
  explicit ScaleChooser(const Scheme& scheme, float global = 1.0F);
  ScaleZero choose(Range range) const;
  ScaleZero choose(std::span<const float> values) const;
  bool needs_values() const { return searches_; }  // the range alone does not decide

 private:
  float e8m0(float amax) const;
  float rounded(double wanted) const;
  double squared_error(std::span<const float> values, float scale) const;

  Scheme scheme_;
  float global_;
  bool searches_;
  double limit_;                                 // the magnitude that amax is mapped to
  double largest_ = 0;                           // the largest element of both signs
  int emax_ = 0;                                 // its exponent
  int kept_bits_ = 1;                            // ScaleRule::ct_round
  float smallest_ = 0;                           // floor of the scale
  std::optional<FloatEncoder> scale_encoder_;    // scale formats below 16 bits
  std::optional<FloatEncoder> element_encoder_;  // searching: floats of at most 8 bits, whose values are the table
  std::vector<float> element_values_;
};

}  // namespace halftone
