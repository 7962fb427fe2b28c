// Whole-number arithmetic on sizes.
#pragma once

#include <cstdint>

namespace halftone {

// a / b rounded up; a >= 0, b > 0. Never overflows.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

}  // namespace halftone
