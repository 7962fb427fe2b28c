#include "text/pipeline_tokenizer.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "text/byte_level.h"
#include "text/unicode.h"

namespace halftone {
namespace {

constexpr std::array<std::string_view, 8> kEndTexts{
    "<|im_end|>", "<|eot_id|>",    "<|eom_id|>",      "<end_of_turn>",
    "<|end|>",    "<|endoftext|>", "<|end_of_text|>", "<\uFF5Cend\u2581of\u2581sentence\uFF5C>"};

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  if (from.empty()) return;
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

}  // namespace

std::span<const std::string_view> end_of_turn_texts() {
  return kEndTexts;
}

void check_token_id(TokenId id, std::size_t size, std::string_view key) {
  if (id < 0 || static_cast<std::size_t>(id) >= size) {
    fail(ErrorKind::bad_input, "the tokenizer's {} is {}, but the vocabulary has {} tokens", key, id, size);
  }
}

std::unordered_map<std::string_view, TokenId> index_texts(const std::vector<std::string>& texts) {
  std::unordered_map<std::string_view, TokenId> by_text;
  by_text.reserve(texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].empty()) continue;
    const auto [found, is_new] = by_text.try_emplace(texts[i], static_cast<TokenId>(i));
    if (!is_new) {
      fail(ErrorKind::bad_input, "the vocabulary has the token '{}' twice, as {} and {}",
           replace_invalid_utf8(texts[i]), found->second, i);
    }
  }
  return by_text;
}

PipelineTokenizer::PipelineTokenizer(TokenizerParts parts) : parts_(std::move(parts)) {
  const std::size_t count = parts_.texts.size();
  HT_CHECK(parts_.types.size() == count);
  BpeModel::Definition definition = std::move(parts_.model);
  definition.pieces.resize(count);
  if (parts_.byte_level) {
    raw_.resize(count);
    definition.byte_tokens.fill(-1);
    for (std::size_t i = 0; i < count; ++i) {
      if (!comes_from_text(parts_.types[i])) continue;
      std::optional<std::string> raw = from_byte_level(parts_.texts[i]);
      if (!raw) continue;
      raw_[i] = std::move(*raw);
      if (raw_[i].size() == 1) definition.byte_tokens[static_cast<unsigned char>(raw_[i][0])] = static_cast<TokenId>(i);
      definition.pieces[i] = raw_[i];
    }
  } else {
    for (std::size_t i = 0; i < count; ++i) {
      if (comes_from_text(parts_.types[i])) definition.pieces[i] = parts_.texts[i];
    }
  }
  model_ = std::make_unique<BpeModel>(std::move(definition));

  for (const bool with_control : {false, true}) {
    std::vector<AddedToken> raw, normalized;
    for (const AddedToken& token : parts_.added) {
      if (token.special && !with_control) continue;
      if (!token.normalized) {
        raw.push_back(token);
        continue;
      }
      AddedToken changed = token;
      run_normalizer(parts_.normalizer, changed.content);
      normalized.push_back(std::move(changed));
    }
    raw_matcher_[with_control ? 1 : 0] = AddedTokenMatcher(std::move(raw));
    normalized_matcher_[with_control ? 1 : 0] = AddedTokenMatcher(std::move(normalized));
  }

  for (const std::string_view text : end_of_turn_texts()) {
    const std::optional<TokenId> id = find_token(text);
    if (id && parts_.types[static_cast<std::size_t>(*id)] == TokenType::control) parts_.end_tokens.push_back(*id);
  }
  std::sort(parts_.end_tokens.begin(), parts_.end_tokens.end());
  parts_.end_tokens.erase(std::unique(parts_.end_tokens.begin(), parts_.end_tokens.end()), parts_.end_tokens.end());
}

std::size_t PipelineTokenizer::index(TokenId id) const {
  check_token_id(id, parts_.texts.size(), "token id");
  return static_cast<std::size_t>(id);
}

std::optional<TokenId> PipelineTokenizer::find_token(std::string_view text) const {
  const auto found = parts_.by_text.find(text);
  if (found == parts_.by_text.end()) return std::nullopt;
  return found->second;
}

bool PipelineTokenizer::adds_bos() const {
  return parts_.bos && std::find(parts_.prefix.begin(), parts_.prefix.end(), *parts_.bos) != parts_.prefix.end();
}

void PipelineTokenizer::encode_plain(std::string_view text, bool at_start, bool parse_control,
                                     BpeModel::Session& session, std::vector<TokenId>& out) const {
  std::string normalized;
  if (!parts_.normalizer.empty()) {
    normalized = text;
    run_normalizer(parts_.normalizer, normalized);
    text = normalized;
  }
  const auto pieces = [&](std::string_view part, bool part_at_start) {
    PieceList list;
    list.pieces.push_back({part, part_at_start});
    run_pretokenizer(parts_.pretokenizer, list);
    for (const PieceList::Piece& piece : list.pieces) session.encode(piece.text, out);
  };
  const AddedTokenMatcher& matcher = normalized_matcher_[parse_control ? 1 : 0];
  if (matcher.empty()) {
    if (!text.empty()) pieces(text, at_start);
    return;
  }
  for (const AddedTokenMatcher::Part& part : matcher.find(text)) {
    if (part.id >= 0) {
      out.push_back(part.id);
    } else {
      pieces(text.substr(part.begin, part.end - part.begin), at_start && part.begin == 0);
    }
  }
}

std::vector<TokenId> PipelineTokenizer::encode(std::string_view text, const TokenizeOptions& options) const {
  std::vector<TokenId> out;
  if (options.add_special) out = parts_.prefix;
  BpeModel::Session session(*model_);
  for (const AddedTokenMatcher::Part& part : raw_matcher_[options.parse_control ? 1 : 0].find(text)) {
    if (part.id >= 0) {
      out.push_back(part.id);
    } else {
      encode_plain(text.substr(part.begin, part.end - part.begin), part.begin == 0, options.parse_control, session,
                   out);
    }
  }
  if (options.add_special) out.insert(out.end(), parts_.suffix.begin(), parts_.suffix.end());
  return out;
}

std::string PipelineTokenizer::token_bytes(TokenId id, bool show_control) const {
  const std::size_t i = index(id);
  const std::string& text = parts_.texts[i];
  switch (parts_.types[i]) {
    case TokenType::control:
    case TokenType::unknown:
    case TokenType::unused:
      return show_control ? text : std::string();
    case TokenType::user_defined:
      return text;
    case TokenType::byte:
      if (const std::optional<std::uint8_t> byte = parse_byte_token(text))
        return std::string(1, static_cast<char>(*byte));
      return text;
    case TokenType::normal:
      break;
  }
  if (parts_.decoder.byte_level) {
    // A text outside the alphabet cannot come from encode; it stands for itself.
    if (!raw_.empty()) return raw_[i].empty() ? text : raw_[i];
    return from_byte_level(text).value_or(text);
  }
  if (parts_.decoder.byte_fallback) {
    if (const std::optional<std::uint8_t> byte = parse_byte_token(text))
      return std::string(1, static_cast<char>(*byte));
  }
  std::string out = text;
  for (const auto& [from, to] : parts_.decoder.replace) replace_all(out, from, to);
  return out;
}

std::string PipelineTokenizer::decode(std::span<const TokenId> ids, bool show_control) const {
  std::string out;
  for (const TokenId id : ids) out += token_bytes(id, show_control);
  if (!parts_.decoder.strip.empty()) {
    std::size_t begin = 0;
    for (std::size_t n = 0; n < parts_.decoder.strip_count; ++n) {
      if (!std::string_view(out).substr(begin).starts_with(parts_.decoder.strip)) break;
      begin += parts_.decoder.strip.size();
    }
    out.erase(0, begin);
  }
  return out;
}

}  // namespace halftone
