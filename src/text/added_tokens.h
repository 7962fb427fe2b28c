// Added tokens: texts that become one token before the model sees the rest. Leftmost, then longest.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer.h"

namespace halftone {

struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space on its left (right) with it
  bool rstrip = false;
  bool normalized = false;  // found in the normalized text, else in the raw text
  bool special = false;     // a control token: found only if the caller asks for control tokens
};

class AddedTokenMatcher {
 public:
  AddedTokenMatcher() = default;
  // Tokens with empty content are ignored; of equal contents the first one counts.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  struct Part {
    std::size_t begin = 0, end = 0;  // bytes of the text
    TokenId id = -1;                 // -1: plain text
  };
  // Cuts the text into tokens and what is between them. Calls that find nothing give one plain part (none for "").
  std::vector<Part> find(std::string_view text) const;

  bool empty() const { return tokens_.empty(); }

 private:
  std::size_t longest_at(std::string_view text, std::size_t at) const;  // index into tokens_, or its size

  std::vector<AddedToken> tokens_;
  std::array<bool, 256> first_{};
  std::unordered_map<std::uint64_t, std::uint32_t> next_;  // node * 256 + byte -> node
  std::vector<std::uint32_t> token_of_node_;               // index + 1 into tokens_
};

}  // namespace halftone
