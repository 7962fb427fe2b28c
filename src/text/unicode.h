// UTF-8 read as bytes that may be wrong, and the character classes that tokenizers ask for.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace halftone {

// One step through bytes that should be UTF-8 (RFC 3629: no surrogates, no overlong forms, at most U+10FFFF).
struct Utf8Step {
  char32_t value = 0;    // the character, or the byte itself if it is not part of a valid character
  std::size_t size = 1;  // bytes of the character; for invalid bytes, of the longest start of a valid one (at least 1)
  bool valid = false;
  bool cut = false;  // the text ends inside what could still become a valid character
};
Utf8Step read_utf8(std::string_view text, std::size_t at);

void append_utf8(std::string& out, char32_t value);
bool is_valid_utf8(std::string_view text);
// Valid text as it is; each invalid byte sequence (longest start of a valid character, or one byte) becomes U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

// Calls body(stretch, valid) for the longest valid and invalid stretches of the text, in order.
template <class Body>
void for_each_stretch(std::string_view text, Body&& body) {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t begin = at;
    bool valid = true;
    while (at < text.size()) {
      if (static_cast<unsigned char>(text[at]) < 0x80) {
        if (!valid) break;
        ++at;
        continue;
      }
      const Utf8Step step = read_utf8(text, at);
      if (at == begin) valid = step.valid;
      if (step.valid != valid) break;
      at += step.valid ? step.size : 1;
    }
    body(text.substr(begin, at - begin), valid);
  }
}

bool is_white_space(char32_t c);  // the Unicode property White_Space
bool is_number(char32_t c);       // general categories Nd, Nl, No
bool is_punctuation(char32_t c);  // general categories P*, and ASCII punctuation
bool is_word(char32_t c);         // letters, marks, decimal and letter numbers, connector punctuation

}  // namespace halftone
