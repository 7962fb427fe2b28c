// tokenizer.json and tokenizer_config.json from GGUF metadata.
#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "text/byte_level.h"
#include "text/gguf_vocabulary.h"
#include "text/pipeline_tokenizer.h"
#include "text/unicode.h"

namespace halftone {
namespace {

using Json = nlohmann::ordered_json;

Json regex_split(std::string_view pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
}

Json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

Json sequence(const char* key, Json parts) {
  return {{"type", "Sequence"}, {key, std::move(parts)}};
}

Json pretokenizer(PreTokenizerFamily family) {
  switch (family) {
    case PreTokenizerFamily::gpt2:
      return byte_level(true);
    case PreTokenizerFamily::smollm:
      return sequence("pretokenizers",
                      Json::array({Json{{"type", "Digits"}, {"individual_digits", true}}, byte_level(true)}));
    case PreTokenizerFamily::llama3:
      return sequence("pretokenizers", Json::array({regex_split(kPatternLlama3), byte_level(false)}));
    case PreTokenizerFamily::qwen2:
      return sequence("pretokenizers", Json::array({regex_split(kPatternQwen2), byte_level(false)}));
    case PreTokenizerFamily::deepseek3:
      return sequence("pretokenizers",
                      Json::array({regex_split(kPatternDeepSeekNumbers), regex_split(kPatternDeepSeekCjk),
                                   regex_split(kPatternDeepSeekMain), byte_level(false)}));
  }
  return nullptr;
}

// The merges that make the scored pieces: every way to cut a piece into two others, in the order of the pieces' scores.
Json merges_from_scores(const GgufVocabulary& v, const std::vector<TokenType>& types) {
  std::unordered_map<std::string_view, TokenId> by_text;
  by_text.reserve(v.tokens.size());
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < v.tokens.size(); ++i) {
    if (!comes_from_text(types[i]) || v.tokens[i].empty()) continue;
    if (v.tokens[i].find(' ') != std::string::npos) continue;  // the normalizer leaves no space to merge
    by_text.try_emplace(v.tokens[i], static_cast<TokenId>(i));
    order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return v.scores[a] > v.scores[b]; });
  Json merges = Json::array();
  for (const std::size_t i : order) {
    const std::string_view piece = v.tokens[i];
    for (std::size_t at = read_utf8(piece, 0).size; at < piece.size(); at += read_utf8(piece, at).size) {
      const std::string_view left = piece.substr(0, at), right = piece.substr(at);
      if (by_text.contains(left) && by_text.contains(right)) merges.push_back(Json::array({left, right}));
    }
  }
  return merges;
}

Json template_processing(const GgufVocabulary& v) {
  const bool bos = gguf_adds_bos(v), eos = gguf_adds_eos(v);
  const auto special = [&](TokenId id, int type) {
    return Json{{"SpecialToken", {{"id", v.tokens[static_cast<std::size_t>(id)]}, {"type_id", type}}}};
  };
  const auto text = [](const char* name, int type) { return Json{{"Sequence", {{"id", name}, {"type_id", type}}}}; };
  Json single = Json::array(), pair = Json::array(), tokens = Json::object();
  for (const int type : {0, 1}) {
    Json part = Json::array();
    if (bos) part.push_back(special(*v.bos, type));
    part.push_back(text(type == 0 ? "A" : "B", type));
    if (eos) part.push_back(special(*v.eos, type));
    if (type == 0) single = part;
    pair.insert(pair.end(), part.begin(), part.end());
  }
  const auto declare = [&](TokenId id) {
    const std::string& name = v.tokens[static_cast<std::size_t>(id)];
    tokens[name] = {{"id", name}, {"ids", Json::array({id})}, {"tokens", Json::array({name})}};
  };
  if (bos) declare(*v.bos);
  if (eos) declare(*v.eos);
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", tokens}};
}

}  // namespace

TokenizerFiles tokenizer_files(const GgufVocabulary& vocabulary, std::string_view chat_template) {
  const GgufVocabulary& v = vocabulary;
  make_tokenizer(v);  // every check of the vocabulary, with its messages
  for (std::size_t i = 0; i < v.tokens.size(); ++i) {
    if (!is_valid_utf8(v.tokens[i])) {
      fail(ErrorKind::unsupported, "token {} of the vocabulary is not UTF-8, which tokenizer.json cannot hold", i);
    }
  }
  if (!is_valid_utf8(chat_template)) fail(ErrorKind::bad_input, "tokenizer.chat_template is not UTF-8");
  const std::vector<TokenType> types = gguf_token_types(v);
  const bool is_byte_level = v.model == "gpt2";

  Json added = Json::array();
  Json::object_t added_decoder;
  for (std::size_t i = 0; i < types.size(); ++i) {
    const TokenType type = types[i];
    if (type != TokenType::control && type != TokenType::user_defined && type != TokenType::unknown) continue;
    if (v.tokens[i].empty()) continue;
    Json token{{"content", v.tokens[i]}, {"lstrip", false},      {"normalized", false},
               {"rstrip", false},        {"single_word", false}, {"special", type != TokenType::user_defined}};
    added_decoder.emplace_back(std::to_string(i), token);
    Json entry{{"id", i}};
    entry.update(token);
    added.push_back(std::move(entry));
  }

  // Filled as vectors: looking each key up, as operator[] of an ordered object does, is quadratic.
  Json::object_t vocab;
  vocab.reserve(v.tokens.size());
  for (std::size_t i = 0; i < v.tokens.size(); ++i) {
    vocab.emplace_back(v.tokens[i].empty() ? "[EMPTY_" + std::to_string(i) + "]" : v.tokens[i], i);
  }

  Json model{{"type", "BPE"},
             {"dropout", nullptr},
             {"unk_token", nullptr},
             {"continuing_subword_prefix", nullptr},
             {"end_of_word_suffix", nullptr}};
  Json normalizer, pre, decoder, post = gguf_adds_bos(v) || gguf_adds_eos(v) ? template_processing(v) : Json();
  Json merges = Json::array();
  if (is_byte_level) {
    const PreTokenizerFamily family = gguf_family(v);
    model["fuse_unk"] = false;
    model["byte_fallback"] = false;
    model["ignore_merges"] = family == PreTokenizerFamily::llama3;
    std::unordered_map<std::string_view, TokenType> type_of;
    type_of.reserve(v.tokens.size());
    for (std::size_t i = 0; i < v.tokens.size(); ++i) type_of.try_emplace(v.tokens[i], types[i]);
    std::string joined;
    for (std::size_t i = 0; i < v.merges.size(); ++i) {
      const auto [left, right] = split_merge(v.merges[i], i);
      joined.assign(left).append(right);
      if (comes_from_text(type_of.at(joined))) merges.push_back(Json::array({left, right}));
    }
    if (family == PreTokenizerFamily::qwen2) normalizer = {{"type", "NFC"}};
    pre = pretokenizer(family);
    decoder = byte_level(true);
    if (post.is_null()) post = byte_level(true);
  } else {
    const bool prefix_space = v.add_space_prefix.value_or(true);
    if (v.unknown) model["unk_token"] = v.tokens[static_cast<std::size_t>(*v.unknown)];
    model["fuse_unk"] = true;
    model["byte_fallback"] = true;
    model["ignore_merges"] = false;
    merges = merges_from_scores(v, types);
    const Json replace{{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpaceMark}};
    normalizer = replace;
    if (prefix_space) {
      normalizer = sequence("normalizers", Json::array({Json{{"type", "Prepend"}, {"prepend", kSpaceMark}}, replace}));
    }
    Json steps = Json::array({Json{{"type", "Replace"}, {"pattern", {{"String", kSpaceMark}}}, {"content", " "}},
                              Json{{"type", "ByteFallback"}}, Json{{"type", "Fuse"}}});
    if (prefix_space) steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    decoder = sequence("decoders", std::move(steps));
  }
  model["vocab"] = std::move(vocab);
  model["merges"] = std::move(merges);

  Json root{{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
  root["added_tokens"] = std::move(added);
  root["normalizer"] = std::move(normalizer);
  root["pre_tokenizer"] = std::move(pre);
  root["post_processor"] = std::move(post);
  root["decoder"] = std::move(decoder);
  root["model"] = std::move(model);

  Json config{{"tokenizer_class", "PreTrainedTokenizerFast"}};
  const auto name = [&](const char* key, const std::optional<TokenId>& id) {
    if (id) config[key] = v.tokens[static_cast<std::size_t>(*id)];
  };
  name("bos_token", v.bos);
  name("eos_token", v.eos);
  name("unk_token", v.unknown);
  name("pad_token", v.padding);
  config["add_bos_token"] = gguf_adds_bos(v);
  config["add_eos_token"] = gguf_adds_eos(v);
  config["clean_up_tokenization_spaces"] = false;
  config["model_max_length"] = 1000000000000000019884624838656.0;  // transformers' way to say: no limit
  config["added_tokens_decoder"] = std::move(added_decoder);
  if (!chat_template.empty()) config["chat_template"] = chat_template;
  return {root.dump() + "\n", config.dump(2) + "\n"};
}

}  // namespace halftone
