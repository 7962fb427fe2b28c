// Text to token ids and back: byte-level BPE and SentencePiece-style BPE with byte fallback, from GGUF metadata or from
// tokenizer.json. Text is bytes: line ends and invalid UTF-8 come through untouched where the model has byte tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace halftone {

using TokenId = std::int32_t;

enum class TokenType : std::uint8_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

// Plain data of GGUF's tokenizer.ggml.* keys (whoever reads the file fills it).
struct GgufVocabulary {
  std::string model;  // "gpt2" (byte-level BPE) or "llama" (SentencePiece BPE)
  std::string pre;    // "smollm", "llama-bpe", "qwen2", "gpt-2", "deepseek-v3", "default", ...
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<std::int32_t> types;
  std::vector<std::string> merges;
  std::optional<TokenId> bos, eos, eot, eom, unknown, padding;
  std::optional<bool> add_bos, add_eos, add_space_prefix;
};

// (numeric/format.h has an EncodeOptions of its own, hence the name)
struct TokenizeOptions {
  bool add_special = true;     // BOS/EOS where the tokenizer adds them
  bool parse_control = false;  // true: "<|im_end|>" in the text becomes the control token; false: it stays text
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::vector<TokenId> encode(std::string_view text, const TokenizeOptions& options = {}) const = 0;
  // The bytes of one token as it stands in the middle of a text; control tokens give "" unless show_control.
  virtual std::string token_bytes(TokenId id, bool show_control = false) const = 0;
  // Whole sequence; applies what the tokenizer says of the first token (Llama's prefixed space).
  virtual std::string decode(std::span<const TokenId> ids, bool show_control = false) const = 0;

  virtual std::int64_t vocabulary_size() const = 0;
  virtual std::string_view token_text(TokenId id) const = 0;  // as in the vocabulary
  virtual TokenType token_type(TokenId id) const = 0;
  virtual std::optional<TokenId> find_token(std::string_view text) const = 0;
  virtual std::optional<TokenId> bos() const = 0;
  virtual std::optional<TokenId> eos() const = 0;
  virtual bool adds_bos() const = 0;
  virtual std::vector<TokenId> end_tokens() const = 0;  // all that end a turn: eos, eot, <|im_end|>, ...
};

// Error(unsupported) names the unknown model or pre-tokenizer; Error(bad_input) for inconsistent vocabularies.
std::unique_ptr<Tokenizer> make_tokenizer(const GgufVocabulary& vocabulary);
// From the bytes of tokenizer.json and, where there is one, tokenizer_config.json and generation_config.json ("" if
// not).
std::unique_ptr<Tokenizer> make_tokenizer(std::string_view tokenizer_json, std::string_view tokenizer_config_json,
                                          std::string_view generation_config_json = "");

// The files that Hugging Face tools need, made from GGUF metadata. Encodes exactly as make_tokenizer(vocabulary) does.
struct TokenizerFiles {
  std::string tokenizer_json, tokenizer_config_json;
};
TokenizerFiles tokenizer_files(const GgufVocabulary& vocabulary, std::string_view chat_template);

// Streaming detokenizer: gives only whole UTF-8 characters, holds the rest back.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  std::string push(TokenId id);  // the new complete characters, maybe ""
  std::string finish();          // what was held back; an unfinished character becomes U+FFFD

 private:
  const Tokenizer& tokenizer_;
  std::string held_;
  bool first_ = true;
};

}  // namespace halftone
