#include "numeric/encoder.h"

#include <cmath>

#include "base/error.h"

namespace halftone {

FloatEncoder::FloatEncoder(const ElementFormat& format) : format_(format) {
  HT_CHECK(format.kind == FormatKind::floating);
  mantissa_bits_ = format.mantissa_bits;
  sign_shift_ = format.bits - 1;
  beyond_ = std::bit_cast<std::uint64_t>(2 * max_finite(format));
  min_exponent_ = static_cast<std::uint64_t>(1 - format.bias + 1023);
  grid_shift_ = static_cast<std::uint64_t>(52 - mantissa_bits_);
  max_code_ = encode(format, max_finite(format));
  zero_sign_ = has_minus_zero(format) ? ~0U : 0U;
}

IntEncoder::IntEncoder(const ElementFormat& format, std::int32_t zero)
    : unit_(std::ldexp(1.0, format.bias)), zero_(zero) {
  HT_CHECK(format.kind == FormatKind::integer);
  const double half = std::ldexp(1.0, format.bits - 1);
  low_ = -half - zero;
  high_ = half - 1 - zero;
}

CodebookEncoder::CodebookEncoder(const ElementFormat& format) : count_(code_count(format) - 1) {
  HT_CHECK(format.kind == FormatKind::codebook && count_ <= midpoints_.size());
  for (std::size_t i = 0; i < count_; ++i) {
    midpoints_[i] = (double{format.codebook[i]} + double{format.codebook[i + 1]}) / 2;
  }
}

}  // namespace halftone
