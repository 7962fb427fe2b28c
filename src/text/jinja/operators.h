// Operators, attribute and item access, and calls of the methods of built-in types, as Python computes them.
// All throw Problem.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace halftone::jinja {

Value binary(std::string_view op, const Value& a, const Value& b);  // + - * / // % **
Value negate(const Value& value, bool negative);                    // -value or +value
bool contains(const Value& needle, const Value& where);
bool compare(std::string_view op, const Value& a, const Value& b);  // == != < <= > >= in, not in
Value slice(const Value& value, const Value& start, const Value& stop, const Value& step);  // None where left out
Text percent_format(const Text& format, const Value& arguments);

// object.name: an attribute or method first, then an item. object[key]: the item first.
Value get_attribute(const Value& object, const std::string& name);
Value get_item(const Value& object, const Value& key);

// The arguments of a call.
struct Arguments {
  Values positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Arguments matched to the names of parameters; the first `required` must be given.
class Bound {
 public:
  // Refers to `arguments`, which must live as long.
  Bound(std::string_view callee, const Arguments& arguments, std::initializer_list<std::string_view> names,
        std::size_t required = 0);
  Bound(std::string_view, Arguments&&, std::initializer_list<std::string_view>, std::size_t = 0) = delete;
  const Value* operator[](std::size_t i) const { return values_[i]; }  // null if not given
  Value get(std::size_t i, Value fallback) const { return values_[i] != nullptr ? *values_[i] : std::move(fallback); }
  bool flag(std::size_t i, bool fallback) const { return values_[i] != nullptr ? truth(*values_[i]) : fallback; }
  std::int64_t integer(std::size_t i, std::int64_t fallback) const;  // Problem if it is not an integer
  const Text& text(std::size_t i) const;                             // Problem if it is not a string

 private:
  std::string callee_;
  std::vector<const Value*> values_;
};

Value call_method(const Method& method, const Arguments& arguments);

// Shared with the filters of the same name.
Text strip(const Text& text, const std::string* characters, bool left, bool right);  // null: white space
Text replace(const Text& text, const Text& old_part, const Text& new_part, std::int64_t count);
std::vector<Text> split_lines(const Text& text, bool keep_ends = false);
std::optional<std::int64_t> parse_integer(std::string_view text, int base);  // int(text, base)
std::optional<double> parse_float(std::string_view text);                    // float(text)

}  // namespace halftone::jinja
