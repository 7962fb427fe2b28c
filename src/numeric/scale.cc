#include "numeric/scale.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"

namespace halftone {
namespace {

// Below 2^-126 the inverse of a scale is no FP32 number.
constexpr double kSmallestScale = 0x1p-126;

// The magnitude that amax is mapped to.
double element_limit(const ElementFormat& element) {
  if (element.kind != FormatKind::integer) return max_finite(element);
  return (std::ldexp(1.0, element.bits) - 1) / 2 * std::ldexp(1.0, -element.bias);
}

double element_max(const ElementFormat& element) {
  if (element.kind != FormatKind::integer) return max_finite(element);
  return (std::ldexp(1.0, element.bits - 1) - 1) * std::ldexp(1.0, -element.bias);
}

// E8M0 code 0 is 2^-127, an FP32 subnormal whose inverse is still finite.
float power_scale(int e) {
  return std::ldexp(1.0F, std::clamp(e, -127, 127));
}

float cell_scale(ScaleZero sz, float global) {
  return sz.scale * global;
}

}  // namespace

Range values_range(std::span<const float> values) {
  // Four chains, because one waits for its own last comparison.
  float low[4] = {}, high[4] = {};
  const std::size_t n = values.size();
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (std::size_t k = 0; k < 4; ++k) {
      const float x = values[i + k];
      low[k] = x < low[k] ? x : low[k];
      high[k] = x > high[k] ? x : high[k];
    }
  }
  for (; i < n; ++i) {
    low[0] = values[i] < low[0] ? values[i] : low[0];
    high[0] = values[i] > high[0] ? values[i] : high[0];
  }
  return {std::min({low[0], low[1], low[2], low[3]}), std::max({high[0], high[1], high[2], high[3]})};
}

ScaleChooser::ScaleChooser(const Scheme& scheme, float global)
    : scheme_(scheme),
      global_(global),
      searches_(scheme.scale == e8m0_format() && scheme.scale_rule == ScaleRule::search),
      limit_(element_limit(scheme.element)) {
  HT_CHECK(!scheme.ggml && scheme.element.kind != FormatKind::exponent);
  if (scheme.scale == e8m0_format()) {
    largest_ = element_max(scheme.element);
    emax_ = std::ilogb(largest_);
    // compressed-tensors keeps one mantissa bit of amax, three where the element is E2M3 (shared/formats.md 2.1).
    kept_bits_ = scheme.element.exponent_bits == 2 && scheme.element.mantissa_bits == 3 ? 3 : 1;
    if (searches_ && scheme.element.kind == FormatKind::floating && scheme.element.bits <= 8) {
      element_encoder_.emplace(scheme.element);
      for (std::uint32_t code = 0; code < code_count(scheme.element); ++code) {
        element_values_.push_back(static_cast<float>(decode(scheme.element, code)));
      }
    }
    return;
  }
  smallest_ = static_cast<float>(std::max(min_subnormal(scheme.scale), kSmallestScale));
  if (scheme.scale.bits < 16) scale_encoder_.emplace(scheme.scale);
}

float ScaleChooser::e8m0(float amax) const {
  switch (scheme_.scale_rule) {
    case ScaleRule::floor:
      return power_scale(std::ilogb(amax) - emax_);
    case ScaleRule::search:
    case ScaleRule::ceil: {
      int exponent = 0;
      const double fraction = std::frexp(double{amax} / largest_, &exponent);  // [0.5, 1) * 2^exponent
      return power_scale(fraction > 0.5 ? exponent : exponent - 1);
    }
    case ScaleRule::ct_round: {
      const std::uint32_t half_step = 1U << (22 - kept_bits_);
      const float rounded = std::bit_cast<float>(std::bit_cast<std::uint32_t>(amax) + half_step);
      return power_scale((std::isfinite(rounded) ? std::ilogb(rounded) : 128) - emax_);
    }
  }
  return 1.0F;
}

float ScaleChooser::rounded(double wanted) const {
  float scale = 0;
  if (scale_encoder_) {
    scale = static_cast<float>(decode(scheme_.scale, (*scale_encoder_)(wanted)));
  } else {
    scale = static_cast<float>(round_to(scheme_.scale, wanted));
  }
  return std::max(scale, smallest_);
}

ScaleZero ScaleChooser::choose(Range range) const {
  const float low = std::min(range.low, 0.0F), high = std::max(range.high, 0.0F);
  const float amax = std::max(-low, high);
  HT_CHECK(std::isfinite(amax));
  ScaleZero result;
  if (amax == 0) {
    result.scale = 1.0F;
    return result;
  }
  if (scheme_.scale.kind == FormatKind::exponent) {
    result.scale = e8m0(amax);
    return result;
  }
  if (scheme_.symmetric) {
    result.scale = rounded(double{amax} / limit_ / global_);
    return result;
  }
  const double levels = std::ldexp(1.0, scheme_.element.bits) - 1;
  result.scale = rounded((double{high} - low) / levels / global_);
  const double bottom = -std::ldexp(1.0, scheme_.element.bits - 1);
  const double zero = std::nearbyint(bottom - double{low} / cell_scale(result, global_));
  result.zero = static_cast<std::int32_t>(std::clamp(zero, bottom, bottom + levels));
  return result;
}

double ScaleChooser::squared_error(std::span<const float> values, float scale) const {
  const ScaleZero sz{scale, 0};
  const float cell = cell_scale(sz, global_);
  double error = 0;
  for (const float x : values) {
    const float back = element_encoder_
                           ? element_values_[(*element_encoder_)(double{x} / cell)] * cell
                           : dequantize_value(scheme_, quantize_value(scheme_, x, sz, global_), sz, global_);
    const double d = double{x} - back;
    error += d * d;
  }
  return error;
}

ScaleZero ScaleChooser::choose(std::span<const float> values) const {
  const Range range = values_range(values);
  ScaleZero chosen = choose(range);
  if (searches_ && (range.low != 0 || range.high != 0) && chosen.scale > 0x1p-127F) {
    ScaleZero smaller = chosen;
    smaller.scale = chosen.scale / 2;
    if (squared_error(values, smaller.scale) < squared_error(values, chosen.scale)) chosen = smaller;
  }
  return chosen;
}

ScaleZero choose_scale(const Scheme& scheme, Range range, float global) {
  return ScaleChooser(scheme, global).choose(range);
}

ScaleZero choose_scale(const Scheme& scheme, std::span<const float> values, float global) {
  return ScaleChooser(scheme, global).choose(values);
}

float choose_global_scale(const Scheme& scheme, float tensor_amax) {
  if (tensor_amax == 0) return 1.0F;
  const double wanted = double{tensor_amax} / (max_finite(scheme.scale) * element_limit(scheme.element));
  return static_cast<float>(std::max(wanted, kSmallestScale / std::min(1.0, min_subnormal(scheme.scale))));
}

std::uint32_t quantize_value(const Scheme& scheme, float value, ScaleZero sz, float global) {
  const double quotient = double{value} / cell_scale(sz, global);
  if (scheme.element.kind != FormatKind::integer || sz.zero == 0) return encode(scheme.element, quotient);
  const double low = -std::ldexp(1.0, scheme.element.bits - 1);
  const double code = std::clamp(std::nearbyint(quotient) + sz.zero, low, -low - 1);
  return static_cast<std::uint32_t>(static_cast<std::int32_t>(code)) &
         static_cast<std::uint32_t>(code_count(scheme.element) - 1);
}

float dequantize_value(const Scheme& scheme, std::uint32_t code, ScaleZero sz, float global) {
  return static_cast<float>(decode(scheme.element, code) - sz.zero) * cell_scale(sz, global);
}

}  // namespace halftone
