#include "quantize/code_grid.h"

#include "base/error.h"

namespace halftone {

CodeGrid::CodeGrid(const ElementFormat& element) : integer_(element.kind == FormatKind::integer) {
  HT_CHECK(element.bits <= 8 && element.kind != FormatKind::exponent);
  if (integer_) {
    unit_ = std::ldexp(1.0F, element.bias);
    high_ = std::ldexp(1.0F, element.bits - 1) - 1;
    low_ = -high_ - 1;
  } else if (element.kind == FormatKind::floating) {
    floats_.emplace(element);
  } else {
    codebook_.emplace(element);
  }
  const auto mask = static_cast<std::uint32_t>(code_count(element) - 1);
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    values_[byte] = static_cast<float>(decode(element, byte & mask));
  }
}

}  // namespace halftone
