#include <string_view>

#include "text/tokenizer.h"
#include "text/unicode.h"

namespace halftone {

std::string StreamDecoder::push(TokenId id) {
  if (first_) {
    // The rule for the start of a text belongs to the first token that shows anything (not to BOS).
    if (tokenizer_.token_bytes(id).empty()) return {};
    held_ += tokenizer_.decode(std::span<const TokenId>(&id, 1));
    first_ = false;
  } else {
    held_ += tokenizer_.token_bytes(id);
  }
  std::string out;
  std::size_t at = 0;
  while (at < held_.size()) {
    const Utf8Step step = read_utf8(held_, at);
    if (step.cut) break;  // later tokens may complete it
    if (step.valid) {
      out.append(held_, at, step.size);
    } else {
      append_utf8(out, 0xFFFD);
    }
    at += step.size;
  }
  held_.erase(0, at);
  return out;
}

std::string StreamDecoder::finish() {
  std::string out = replace_invalid_utf8(held_);
  held_.clear();
  first_ = true;
  return out;
}

}  // namespace halftone
