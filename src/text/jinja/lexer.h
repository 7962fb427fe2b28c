// Template text to tokens, with the whitespace rules of trim_blocks and lstrip_blocks applied.
// Source of the rules: Jinja2 3.1 documentation, "Whitespace Control".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace halftone::jinja {

struct Position {
  int line = 1, column = 1;  // the column counts characters
};

// Error with the place in the template.
[[noreturn]] void fail_at(ErrorKind kind, Position where, std::string_view message);

enum class TokenKind {
  data,
  block_begin,
  block_end,
  variable_begin,
  variable_end,
  name,
  string,
  integer,
  real,
  symbol,
  end
};

struct Token {
  TokenKind kind = TokenKind::end;
  std::string text;  // data, names, symbols and numbers as written; strings decoded
  Position where;
};

std::vector<Token> tokenize(std::string_view source);  // Error(bad_input) with line and column

}  // namespace halftone::jinja
