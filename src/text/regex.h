// Patterns of tokenizers (Oniguruma's syntax as tokenizer.json uses it), run by PCRE2 with its compiler.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace halftone {

struct TextRange {
  std::size_t begin = 0, end = 0;
};

class Regex {
 public:
  // \s and \S mean Unicode's White_Space. Error(unsupported) names the pattern if PCRE2 cannot compile it, or if it
  // uses what the two syntaxes read differently (a set inside a set, && in a set).
  explicit Regex(std::string_view pattern);
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  const std::string& pattern() const { return pattern_; }

 private:
  friend class RegexMatcher;
  struct Compiled;
  std::string pattern_;
  std::unique_ptr<Compiled> compiled_;
};

std::string escape_regex(std::string_view literal);

// One user of a Regex (a Regex is shared by threads, a matcher is not).
class RegexMatcher {
 public:
  explicit RegexMatcher(const Regex& regex);
  ~RegexMatcher();
  RegexMatcher(const RegexMatcher&) = delete;
  RegexMatcher& operator=(const RegexMatcher&) = delete;

  // Appends the non-empty matches, in order. Invalid UTF-8 is never inside a match, and text ends at it for lookahead.
  void find_all(std::string_view text, std::vector<TextRange>& matches);

 private:
  void find_in_valid(std::string_view text, std::size_t offset, std::vector<TextRange>& matches);
  struct State;
  const Regex& regex_;
  std::unique_ptr<State> state_;
};

}  // namespace halftone
