// Tokens to syntax tree. Source of the grammar: Jinja2 3.1 documentation, "Template Designer Documentation".
#pragma once

#include <string_view>

#include "text/jinja/ast.h"

namespace halftone::jinja {

// Error(bad_input) for syntax errors, Error(unsupported) for constructs, filters and tests outside the subset; both
// with line and column.
Body parse(std::string_view source);

}  // namespace halftone::jinja
