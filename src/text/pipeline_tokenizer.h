// The one tokenizer: added tokens, normalizer, pre-tokenizer, byte-pair model, special tokens around the text; and
// back. GGUF metadata and tokenizer.json differ only in how they fill TokenizerParts.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"

namespace halftone {

// How token texts become bytes again.
struct TokenDecoder {
  bool byte_level = false;                                   // texts are in the byte-level alphabet
  bool byte_fallback = false;                                // "<0x0A>" is the byte 0A
  std::vector<std::pair<std::string, std::string>> replace;  // in order, in every token
  std::string strip;                                         // taken off the start of the whole text,
  std::size_t strip_count = 0;                               // at most so many times
};

struct TokenizerParts {
  std::vector<std::string> texts;                         // as in the vocabulary
  std::unordered_map<std::string_view, TokenId> by_text;  // index_texts(texts); its keys move with `texts`
  std::vector<TokenType> types;
  bool byte_level = false;
  BpeModel::Definition model;  // `pieces` is filled by the tokenizer from texts and types
  Normalizer normalizer;
  PreTokenizer pretokenizer;
  std::vector<AddedToken> added;
  std::vector<TokenId> prefix, suffix;  // around every text where the caller wants them
  TokenDecoder decoder;
  std::optional<TokenId> bos, eos;
  std::vector<TokenId> end_tokens;  // well-known names among the control tokens are added
};

class PipelineTokenizer : public Tokenizer {
 public:
  explicit PipelineTokenizer(TokenizerParts parts);

  std::vector<TokenId> encode(std::string_view text, const TokenizeOptions& options) const override;
  std::string token_bytes(TokenId id, bool show_control) const override;
  std::string decode(std::span<const TokenId> ids, bool show_control) const override;

  std::int64_t vocabulary_size() const override { return static_cast<std::int64_t>(parts_.texts.size()); }
  std::string_view token_text(TokenId id) const override { return parts_.texts[index(id)]; }
  TokenType token_type(TokenId id) const override { return parts_.types[index(id)]; }
  std::optional<TokenId> find_token(std::string_view text) const override;
  std::optional<TokenId> bos() const override { return parts_.bos; }
  std::optional<TokenId> eos() const override { return parts_.eos; }
  bool adds_bos() const override;
  std::vector<TokenId> end_tokens() const override { return parts_.end_tokens; }

 private:
  std::size_t index(TokenId id) const;  // Error(bad_input) for ids outside the vocabulary
  void encode_plain(std::string_view text, bool at_start, bool parse_control, BpeModel::Session& session,
                    std::vector<TokenId>& out) const;

  TokenizerParts parts_;
  std::vector<std::string> raw_;  // byte-level: what the texts stand for; else empty
  // Tokens found in raw text and in normalized text; [0] without control tokens, [1] with them.
  AddedTokenMatcher raw_matcher_[2], normalized_matcher_[2];
  std::unique_ptr<BpeModel> model_;
};

// Token ids by text; empty texts are left out. Error(bad_input) if two tokens have the same text.
std::unordered_map<std::string_view, TokenId> index_texts(const std::vector<std::string>& texts);

// Whether text may become this token by merging (control, unknown, byte and unused tokens never come from text).
inline bool comes_from_text(TokenType type) {
  return type == TokenType::normal || type == TokenType::user_defined;
}

// Texts by which models end their turn; they count only where the vocabulary has them as control tokens.
std::span<const std::string_view> end_of_turn_texts();

// Error(bad_input) that names `key` if the id is outside [0, size).
void check_token_id(TokenId id, std::size_t size, std::string_view key);

}  // namespace halftone
