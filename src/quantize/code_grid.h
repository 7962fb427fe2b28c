// The values that the codes of a scheme reach, in units of the scale: what a method that chooses codes itself rounds
// to.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>

#include "numeric/encoder.h"
#include "numeric/scheme.h"

namespace halftone {

// Element formats of at most 8 bits.
class CodeGrid {
 public:
  explicit CodeGrid(const ElementFormat& element);

  // The code (a byte: integers sign-extended) of the value nearest to x = value / scale. `zero`: integers only.
  std::uint8_t nearest(float x, std::int32_t zero) const {
    if (integer_) {
      const float code = std::nearbyint(x * unit_) + static_cast<float>(zero);
      return static_cast<std::uint8_t>(static_cast<std::int32_t>(code < low_ ? low_ : code > high_ ? high_ : code));
    }
    return static_cast<std::uint8_t>(floats_ ? (*floats_)(static_cast<double>(x))
                                             : (*codebook_)(static_cast<double>(x)));
  }
  // In units of the scale, as dequantize_value has it.
  float value(std::uint8_t code, std::int32_t zero) const {
    return integer_ && zero != 0 ? static_cast<float>(static_cast<std::int8_t>(code) - zero) : values_[code];
  }

 private:
  bool integer_ = false;
  float unit_ = 1, low_ = 0, high_ = 0;
  std::optional<FloatEncoder> floats_;
  std::optional<CodebookEncoder> codebook_;
  std::array<float, 256> values_{};
};

}  // namespace halftone
