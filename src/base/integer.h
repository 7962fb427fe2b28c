// Whole-number arithmetic on sizes.
#pragma once

#include <cstdint>

namespace halftone {

// a / b rounded up; a >= 0, b > 0. Never overflows.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// The smallest multiple of `multiple` that is not below n; n >= 0, multiple > 0.
constexpr std::int64_t round_up(std::int64_t n, std::int64_t multiple) { return ceil_div(n, multiple) * multiple; }

}  // namespace halftone
