// Tokenizers from GGUF's tokenizer.ggml.* keys; formats.md 3.6.8.
#include "text/gguf_vocabulary.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "text/byte_level.h"
#include "text/pipeline_tokenizer.h"
#include "text/unicode.h"

namespace halftone {
namespace {

TokenType checked_type(std::int32_t value, std::size_t token) {
  if (value < 1 || value > 6) {
    fail(ErrorKind::bad_input, "tokenizer.ggml.token_type: token {} has the type {}, which is none of 1 to 6", token,
         value);
  }
  return static_cast<TokenType>(value);
}

// Converters have written such tokens as user-defined or normal ones; then text of a user would become a control token.
// llama.cpp overrides their type too, </s> included (Gemma has it as a piece of HTML), and ids are to equal its ids.
bool is_control_text(std::string_view text) {
  if (text == "</s>") return true;
  const auto known = end_of_turn_texts();
  return std::find(known.begin(), known.end(), text) != known.end();
}

void add_end(const std::optional<TokenId>& id, std::vector<TokenId>& ends) {
  if (id) ends.push_back(*id);
}

void check_ids(const GgufVocabulary& v) {
  const auto check = [&](const std::optional<TokenId>& id, std::string_view key) {
    if (id) check_token_id(*id, v.tokens.size(), key);
  };
  check(v.bos, "tokenizer.ggml.bos_token_id");
  check(v.eos, "tokenizer.ggml.eos_token_id");
  check(v.eot, "tokenizer.ggml.eot_token_id");
  check(v.eom, "tokenizer.ggml.eom_token_id");
  check(v.unknown, "tokenizer.ggml.unknown_token_id");
  check(v.padding, "tokenizer.ggml.padding_token_id");
}

}  // namespace

std::vector<TokenType> gguf_token_types(const GgufVocabulary& v) {
  if (!v.types.empty() && v.types.size() != v.tokens.size()) {
    fail(ErrorKind::bad_input, "tokenizer.ggml.token_type has {} entries for {} tokens", v.types.size(),
         v.tokens.size());
  }
  std::vector<TokenType> types(v.tokens.size(), TokenType::normal);
  for (std::size_t i = 0; i < types.size(); ++i) {
    if (!v.types.empty()) {
      types[i] = checked_type(v.types[i], i);
    } else if (v.model == "llama" && parse_byte_token(v.tokens[i])) {
      types[i] = TokenType::byte;
    }
    if (comes_from_text(types[i]) && is_control_text(v.tokens[i])) types[i] = TokenType::control;
  }
  return types;
}

bool gguf_adds_bos(const GgufVocabulary& v) {
  if (v.add_bos) return *v.add_bos && v.bos;
  const bool by_default = v.model == "llama" || pretokenizer_family(v.pre) == PreTokenizerFamily::llama3;
  return by_default && v.bos;
}

bool gguf_adds_eos(const GgufVocabulary& v) {
  return v.add_eos.value_or(false) && v.eos;
}

std::pair<std::string_view, std::string_view> split_merge(std::string_view merge, std::size_t index) {
  const std::size_t space = merge.size() < 2 ? std::string_view::npos : merge.find(' ', 1);
  if (space == std::string_view::npos || space + 1 == merge.size()) {
    fail(ErrorKind::bad_input, "merge {} of the tokenizer is '{}', which does not name two parts", index,
         replace_invalid_utf8(merge));
  }
  return {merge.substr(0, space), merge.substr(space + 1)};
}

PreTokenizerFamily gguf_family(const GgufVocabulary& v) {
  const std::optional<PreTokenizerFamily> family = pretokenizer_family(v.pre);
  if (!family) {
    fail(ErrorKind::unsupported,
         "tokenizer.ggml.pre is '{}', which is not known ({}): convert the model with its tokenizer.json", v.pre,
         known_pretokenizers());
  }
  return *family;
}

MergeTable read_merges(const std::vector<std::pair<std::string_view, std::string_view>>& merges,
                       const std::vector<TokenType>& types,
                       const std::unordered_map<std::string_view, TokenId>& by_text) {
  MergeTable table;
  table.reserve(merges.size());
  std::string joined;
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const auto [left, right] = merges[i];
    const auto l = by_text.find(left), r = by_text.find(right);
    joined.assign(left).append(right);
    const auto both = by_text.find(joined);
    if (l == by_text.end() || r == by_text.end() || both == by_text.end()) {
      const std::string_view missing = l == by_text.end()   ? left
                                       : r == by_text.end() ? right
                                                            : std::string_view(joined);
      fail(ErrorKind::bad_input, "merge {} of the tokenizer, '{} {}', needs the token '{}', which the vocabulary lacks",
           i, replace_invalid_utf8(left), replace_invalid_utf8(right), replace_invalid_utf8(missing));
    }
    // Text never becomes a control token by merging.
    if (!comes_from_text(types[static_cast<std::size_t>(both->second)])) continue;
    table.insert(l->second, r->second, static_cast<std::uint32_t>(i), both->second);
  }
  return table;
}

std::unique_ptr<Tokenizer> make_tokenizer(const GgufVocabulary& vocabulary) {
  const GgufVocabulary& v = vocabulary;
  if (v.tokens.empty()) fail(ErrorKind::bad_input, "tokenizer.ggml.tokens is missing or empty");
  if (v.tokens.size() > static_cast<std::size_t>(kMaxTokens)) {
    fail(ErrorKind::bad_input, "tokenizer.ggml.tokens has {} entries, more than {}", v.tokens.size(), kMaxTokens);
  }
  check_ids(v);

  TokenizerParts parts;
  parts.texts = v.tokens;
  parts.by_text = index_texts(parts.texts);
  parts.types = gguf_token_types(v);
  parts.bos = v.bos;
  parts.eos = v.eos;
  add_end(v.eos, parts.end_tokens);
  add_end(v.eot, parts.end_tokens);
  add_end(v.eom, parts.end_tokens);
  if (gguf_adds_bos(v)) parts.prefix.push_back(*v.bos);
  if (gguf_adds_eos(v)) parts.suffix.push_back(*v.eos);
  for (std::size_t i = 0; i < parts.types.size(); ++i) {
    const TokenType type = parts.types[i];
    if (type != TokenType::control && type != TokenType::user_defined && type != TokenType::unknown) continue;
    AddedToken added;
    added.id = static_cast<TokenId>(i);
    added.content = parts.texts[i];
    added.special = type != TokenType::user_defined;
    parts.added.push_back(std::move(added));
  }

  if (v.model == "gpt2") {
    const PreTokenizerFamily family = gguf_family(v);
    parts.byte_level = true;
    parts.pretokenizer = make_pretokenizer(family);
    // The model's own tokenizer normalizes; llama.cpp leaves it out, which changes the ids of decomposed accents.
    if (family == PreTokenizerFamily::qwen2) parts.normalizer.push_back(unicode_form(UnicodeForm::nfc));
    parts.model.symbols = BpeModel::Symbols::bytes;
    parts.model.order = BpeModel::Order::ranks;
    parts.model.ignore_merges = family == PreTokenizerFamily::llama3;
    std::vector<std::pair<std::string_view, std::string_view>> merges;
    merges.reserve(v.merges.size());
    for (const std::string& merge : v.merges) merges.push_back(split_merge(merge, merges.size()));
    parts.model.merges = read_merges(merges, parts.types, parts.by_text);
    parts.decoder.byte_level = true;
  } else if (v.model == "llama") {
    if (v.scores.size() != v.tokens.size()) {
      fail(ErrorKind::bad_input, "tokenizer.ggml.scores has {} entries for {} tokens", v.scores.size(),
           v.tokens.size());
    }
    for (std::size_t i = 0; i < v.scores.size(); ++i) {
      if (std::isnan(v.scores[i])) fail(ErrorKind::bad_input, "tokenizer.ggml.scores: the score of token {} is NaN", i);
    }
    const bool prefix_space = v.add_space_prefix.value_or(true);
    if (prefix_space) parts.normalizer.push_back(prepend_text(kSpaceMark));
    parts.normalizer.push_back(replace_text(" ", kSpaceMark));
    parts.model.symbols = BpeModel::Symbols::characters;
    parts.model.order = BpeModel::Order::scores;
    parts.model.scores = v.scores;
    parts.model.byte_fallback = true;
    parts.model.byte_tokens.fill(-1);
    for (std::size_t i = 0; i < parts.types.size(); ++i) {
      if (parts.types[i] != TokenType::byte) continue;
      const std::optional<std::uint8_t> byte = parse_byte_token(parts.texts[i]);
      if (!byte) {
        fail(ErrorKind::bad_input, "token {} of the vocabulary has the type 'byte' but the text '{}', not <0xNN>", i,
             replace_invalid_utf8(parts.texts[i]));
      }
      parts.model.byte_tokens[*byte] = static_cast<TokenId>(i);
    }
    parts.model.unknown = v.unknown.value_or(-1);
    parts.model.fuse_unknown = true;
    parts.decoder.replace.emplace_back(kSpaceMark, " ");
    if (prefix_space) {
      parts.decoder.strip = " ";
      parts.decoder.strip_count = 1;
    }
  } else {
    fail(ErrorKind::unsupported,
         "tokenizer.ggml.model is '{}'; supported are 'gpt2' (byte-level BPE) and 'llama' (SentencePiece BPE)",
         v.model);
  }
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

}  // namespace halftone
