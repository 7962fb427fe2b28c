#include "text/added_tokens.h"

#include <utility>

#include "text/unicode.h"

namespace halftone {
namespace {

bool word_before(std::string_view text, std::size_t at) {
  std::size_t begin = at;
  while (begin > 0 && at - begin < 4) {
    --begin;
    if ((static_cast<unsigned char>(text[begin]) & 0xC0) != 0x80) break;
  }
  if (begin == at) return false;
  const Utf8Step step = read_utf8(text, begin);
  return step.valid && begin + step.size == at && is_word(step.value);
}

bool word_after(std::string_view text, std::size_t at) {
  if (at >= text.size()) return false;
  const Utf8Step step = read_utf8(text, at);
  return step.valid && is_word(step.value);
}

std::size_t white_space_before(std::string_view text, std::size_t at, std::size_t limit) {
  std::size_t begin = at;
  for (std::size_t probe = limit; probe < at;) {
    const Utf8Step step = read_utf8(text, probe);
    if (!step.valid || !is_white_space(step.value)) {
      begin = at;
    } else if (begin == at) {
      begin = probe;
    }
    probe += step.size;
  }
  return begin;
}

std::size_t white_space_after(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    const Utf8Step step = read_utf8(text, at);
    if (!step.valid || !is_white_space(step.value)) break;
    at += step.size;
  }
  return at;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  token_of_node_.push_back(0);
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    if (tokens_[i].content.empty()) continue;
    std::uint32_t node = 0;
    first_[static_cast<unsigned char>(tokens_[i].content[0])] = true;
    for (const char c : tokens_[i].content) {
      const std::uint64_t key = std::uint64_t{node} * 256 + static_cast<unsigned char>(c);
      const auto [found, is_new] = next_.try_emplace(key, static_cast<std::uint32_t>(token_of_node_.size()));
      if (is_new) token_of_node_.push_back(0);
      node = found->second;
    }
    if (token_of_node_[node] == 0) token_of_node_[node] = static_cast<std::uint32_t>(i + 1);
  }
}

std::size_t AddedTokenMatcher::longest_at(std::string_view text, std::size_t at) const {
  std::size_t best = tokens_.size();
  std::uint32_t node = 0;
  for (std::size_t i = at; i < text.size(); ++i) {
    const auto found = next_.find(std::uint64_t{node} * 256 + static_cast<unsigned char>(text[i]));
    if (found == next_.end()) break;
    node = found->second;
    if (token_of_node_[node] == 0) continue;
    const std::size_t index = token_of_node_[node] - 1;
    best = index;
  }
  return best;
}

std::vector<AddedTokenMatcher::Part> AddedTokenMatcher::find(std::string_view text) const {
  std::vector<Part> parts;
  std::size_t last = 0;
  if (!tokens_.empty()) {
    for (std::size_t at = 0; at < text.size();) {
      if (!first_[static_cast<unsigned char>(text[at])]) {
        ++at;
        continue;
      }
      const std::size_t index = longest_at(text, at);
      if (index == tokens_.size()) {
        ++at;
        continue;
      }
      const AddedToken& token = tokens_[index];
      std::size_t begin = at, end = at + token.content.size();
      if (token.single_word && (word_before(text, begin) || word_after(text, end))) {
        at = end;  // as in tokenizers: the match is used up, though it makes no token
        continue;
      }
      if (token.lstrip) begin = white_space_before(text, begin, last);
      if (token.rstrip) end = white_space_after(text, end);
      if (begin > last) parts.push_back({last, begin, -1});
      parts.push_back({begin, end, token.id});
      last = at = end;
    }
  }
  if (last < text.size()) parts.push_back({last, text.size(), -1});
  return parts;
}

}  // namespace halftone
