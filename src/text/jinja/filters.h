// Filters and tests by name. They throw Problem.
#pragma once

#include <string_view>

#include "text/jinja/operators.h"

namespace halftone::jinja {

bool is_filter(std::string_view name);
bool is_test(std::string_view name);

Value apply_filter(std::string_view name, const Value& subject, const Arguments& arguments);
bool apply_test(std::string_view name, const Value& subject, const Arguments& arguments);

}  // namespace halftone::jinja
