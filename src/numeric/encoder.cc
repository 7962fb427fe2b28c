#include "numeric/encoder.h"

#include <cmath>

#include "base/error.h"

namespace halftone {

FloatEncoder::FloatEncoder(const ElementFormat& format) : format_(format) {
  HT_CHECK(format.kind == FormatKind::floating);
  const int m = format.mantissa_bits;
  shift_ = 52 - m;
  sign_shift_ = format.bits - 1;
  min_normal_ = std::bit_cast<std::uint64_t>(min_normal(format));
  // Without mantissa bits, the tie between 2^e and 2^(e+1) is n = 1.5 in the rule of encode(): it goes up.
  half_ = (std::uint64_t{1} << (shift_ - 1)) - (m > 0 ? 1U : 0U);
  odd_ = m > 0 ? 1U : 0U;
  rebias_ = static_cast<std::uint64_t>(1023 - format.bias) << m;
  max_code_ = encode(format, max_finite(format));
  magic_ = std::ldexp(1.0, 52 + 1 - format.bias - m);
  zero_sign_ = has_minus_zero(format) ? ~0U : 0U;
}

IntEncoder::IntEncoder(const ElementFormat& format, std::int32_t zero)
    : unit_(std::ldexp(1.0, format.bias)), zero_(zero) {
  HT_CHECK(format.kind == FormatKind::integer);
  const double half = std::ldexp(1.0, format.bits - 1);
  low_ = -half - zero;
  high_ = half - 1 - zero;
}

CodebookEncoder::CodebookEncoder(const ElementFormat& format) {
  HT_CHECK(format.kind == FormatKind::codebook);
  for (std::uint64_t i = 0; i + 1 < code_count(format); ++i) {
    midpoints_.push_back((double{format.codebook[i]} + double{format.codebook[i + 1]}) / 2);
  }
}

}  // namespace halftone
