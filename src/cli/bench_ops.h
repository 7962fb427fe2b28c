// Single products against what the machine can do: `halftone bench --ops`.
#pragma once

#include <cstdint>
#include <string>

#include "cli/common.h"

namespace halftone::cli {

struct OpsBench {
  std::string schemes;  // weights[/activations], comma-separated
  std::int64_t outputs, inputs;
  std::int64_t many;  // rows of x in the second measurement; the first has one
  std::int64_t repeats;
};
void bench_ops(const OpsBench& bench, const Common& common);

}  // namespace halftone::cli
