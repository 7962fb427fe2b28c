// Code points of UTF-8 text as Python's str sees them. Bytes that are not valid UTF-8 count as one character each and
// come through unchanged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace halftone::jinja {

struct CodePoint {
  std::int32_t value = -1;  // -1: a byte that is not valid UTF-8
  std::size_t size = 1;     // bytes
};

CodePoint decode_at(std::string_view text, std::size_t at);       // at < text.size()
CodePoint decode_before(std::string_view text, std::size_t end);  // the character that ends at `end`, end > 0
void append_utf8(std::string& out, std::int32_t code_point);      // a valid scalar value
std::int64_t count_code_points(std::string_view text);

// Where `needle` begins at or after `from`, or npos; linear time for every input, which std::string::find is not.
std::size_t find_bytes(std::string_view text, std::string_view needle, std::size_t from = 0);

bool is_space(std::int32_t c);      // str.isspace of one character
bool is_line_end(std::int32_t c);   // what str.splitlines splits at
bool is_printable(std::int32_t c);  // str.isprintable
bool is_upper(std::int32_t c);
bool is_lower(std::int32_t c);
bool is_alpha(std::int32_t c);
bool is_digit(std::int32_t c);
bool is_cased(std::int32_t c);

enum class Case { upper, lower, title };
void append_case(std::string& out, std::int32_t c, Case to);
std::string change_case(std::string_view text, Case to);  // every character (Case::title is not str.title)
std::string capitalize(std::string_view text);            // str.capitalize
std::string title_words(std::string_view text);           // str.title

}  // namespace halftone::jinja
