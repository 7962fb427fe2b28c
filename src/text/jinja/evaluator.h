// Runs a parsed template.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"

namespace halftone::jinja {

// The output with the origin of its parts. Error with line and column for whatever goes wrong, and when the template
// takes more than `max_steps`, writes more than kMaxTextBytes or recurses too deep.
Text run(const Body& program, const std::vector<std::pair<std::string, Value>>& variables,
         std::int64_t max_steps = kMaxSteps);

}  // namespace halftone::jinja
