// encode() with nearest-even rounding and saturation for long runs of values: what a format needs is worked out once.
// Bit-identical to encode(); encoder_test.cc compares them over every upper half of an FP32 number.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "numeric/format.h"

namespace halftone {

// Floating formats.
class FloatEncoder {
 public:
  explicit FloatEncoder(const ElementFormat& format);

  std::uint32_t operator()(double value) const {
    const auto bits = std::bit_cast<std::uint64_t>(value);
    const std::uint64_t magnitude = bits & ~(std::uint64_t{1} << 63);
    if (magnitude > infinity_) return encode(format_, value);
    std::uint64_t code = 0;
    if (magnitude >= min_normal_) {
      code = ((magnitude + half_ + (magnitude >> shift_ & odd_)) >> shift_) - rebias_;
    } else {
      // One ulp of `magic_` is the smallest subnormal: the addition rounds.
      code = std::bit_cast<std::uint64_t>(std::bit_cast<double>(magnitude) + magic_) -
             std::bit_cast<std::uint64_t>(magic_);
    }
    if (code > max_code_) code = max_code_;
    const auto sign = static_cast<std::uint32_t>(bits >> 63) << sign_shift_;
    return static_cast<std::uint32_t>(code) | (code == 0 ? sign & zero_sign_ : sign);
  }

 private:
  static constexpr std::uint64_t infinity_ = std::uint64_t{0x7FF} << 52;
  ElementFormat format_;
  std::uint64_t min_normal_, half_, odd_, rebias_, max_code_;
  std::uint32_t zero_sign_;
  int shift_, sign_shift_;
  double magic_;
};

// Two's complement integers with a zero point: clamp(round(value * 2^bias) + zero); the signed code, not masked.
class IntEncoder {
 public:
  explicit IntEncoder(const ElementFormat& format, std::int32_t zero = 0);

  std::int32_t operator()(double value) const {
    double v = value * unit_;
    v = v >= low_ ? (v <= high_ ? v : high_) : low_;  // NaN: low_
    // Adding 1.5 * 2^52 rounds to nearest even and leaves the integer in the low bits.
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(std::bit_cast<std::uint64_t>(v + 0x1.8p52))) + zero_;
  }

 private:
  double unit_, low_, high_;
  std::int32_t zero_;
};

// Ascending tables: nearest entry, ties to the lower index.
class CodebookEncoder {
 public:
  explicit CodebookEncoder(const ElementFormat& format);

  std::uint32_t operator()(double value) const {
    std::uint32_t code = 0;
    for (const double midpoint : midpoints_) code += value > midpoint ? 1U : 0U;
    return code;
  }

 private:
  std::vector<double> midpoints_;
};

}  // namespace halftone
