// encode() with nearest-even rounding and saturation for long runs of values: what a format needs is worked out once.
// Bit-identical to encode(); encoder_test.cc compares them over every upper half of an FP32 number.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "numeric/format.h"

namespace halftone {

// Floating formats.
class FloatEncoder {
 public:
  explicit FloatEncoder(const ElementFormat& format);

  // The rule of shared/formats.md 1.2.1 without branches: a power of two whose ulp is the grid's step is added, which
  // rounds, and its bits are taken away again.
  std::uint32_t operator()(double value) const {
    const auto bits = std::bit_cast<std::uint64_t>(value);
    std::uint64_t magnitude = bits & ~(std::uint64_t{1} << 63);
    if (magnitude > infinity_) return encode(format_, value);
    magnitude = magnitude < beyond_ ? magnitude : beyond_;
    std::uint64_t exponent = magnitude >> 52;
    exponent = exponent > min_exponent_ ? exponent : min_exponent_;
    const std::uint64_t grid = (exponent + grid_shift_) << 52;
    std::uint64_t code = std::bit_cast<std::uint64_t>(std::bit_cast<double>(magnitude) + std::bit_cast<double>(grid)) -
                         grid + ((exponent - min_exponent_) << mantissa_bits_);
    code = code < max_code_ ? code : max_code_;
    const auto sign = static_cast<std::uint32_t>(bits >> 63) << sign_shift_;
    return static_cast<std::uint32_t>(code) | (code == 0 ? sign & zero_sign_ : sign);
  }

 private:
  static constexpr std::uint64_t infinity_ = std::uint64_t{0x7FF} << 52;
  ElementFormat format_;
  std::uint64_t beyond_;        // twice the largest finite value: all that is larger saturates alike
  std::uint64_t min_exponent_;  // of the smallest normal value, as a double has it
  std::uint64_t grid_shift_, max_code_;
  std::uint32_t zero_sign_;
  int mantissa_bits_, sign_shift_;
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

// Ascending tables of at most 256 entries: nearest entry, ties to the lower index.
class CodebookEncoder {
 public:
  explicit CodebookEncoder(const ElementFormat& format);

  std::uint32_t operator()(double value) const {
    std::uint32_t code = 0;
    for (std::size_t i = 0; i < count_; ++i) code += value > midpoints_[i] ? 1U : 0U;
    return code;
  }

 private:
  std::array<double, 255> midpoints_{};
  std::size_t count_;
};

}  // namespace halftone
