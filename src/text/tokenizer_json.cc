// Tokenizers from tokenizer.json (the format of Hugging Face's `tokenizers`); formats.md 4.1.
// What is not supported is Error(unsupported) that names the component; nothing is skipped in silence.
#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "text/byte_level.h"
#include "text/gguf_vocabulary.h"
#include "text/pipeline_tokenizer.h"
#include "text/tokenizer_json_reader.h"
#include "text/unicode.h"

namespace halftone {
namespace {

using nlohmann::json;

constexpr int kDeepest = 16;  // Sequences inside Sequences

[[noreturn]] void unsupported(std::string_view component, std::string_view what) {
  fail(ErrorKind::unsupported, "tokenizer.json: {} '{}' is not supported", component, what);
}

const json& member(const json& object, const char* key) {
  static const json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

std::string text_of(const json& object, const char* key, std::string_view component) {
  const json& value = member(object, key);
  if (!value.is_string()) fail(ErrorKind::bad_input, "tokenizer.json: {} has no text '{}'", component, key);
  return value.get<std::string>();
}

bool flag_of(const json& object, const char* key, bool otherwise) {
  const json& value = member(object, key);
  return value.is_boolean() ? value.get<bool>() : otherwise;
}

std::string type_of(const json& object, std::string_view component) {
  return text_of(object, "type", component);
}

const json& list_of(const json& object, const char* key, std::string_view component, int depth) {
  if (depth > kDeepest) fail(ErrorKind::bad_input, "tokenizer.json: {} is nested too deeply", component);
  const json& list = member(object, key);
  if (!list.is_array())
    fail(ErrorKind::bad_input, "tokenizer.json: a Sequence of the {} has no list '{}'", component, key);
  return list;
}

// {"String": s} or {"Regex": r}; first is true for a regular expression.
std::pair<bool, std::string> pattern_of(const json& object, std::string_view component) {
  const json& pattern = member(object, "pattern");
  if (pattern.is_string()) return {false, pattern.get<std::string>()};
  if (member(pattern, "String").is_string()) return {false, pattern["String"].get<std::string>()};
  if (member(pattern, "Regex").is_string()) return {true, pattern["Regex"].get<std::string>()};
  fail(ErrorKind::bad_input, "tokenizer.json: a pattern of the {} is neither String nor Regex", component);
}

void add_normalizer(const json& node, Normalizer& steps, int depth) {
  if (node.is_null()) return;
  const std::string type = type_of(node, "normalizer");
  if (type == "Sequence") {
    for (const json& part : list_of(node, "normalizers", "normalizer", depth)) add_normalizer(part, steps, depth + 1);
  } else if (type == "NFC") {
    steps.push_back(unicode_form(UnicodeForm::nfc));
  } else if (type == "NFD") {
    steps.push_back(unicode_form(UnicodeForm::nfd));
  } else if (type == "NFKC") {
    steps.push_back(unicode_form(UnicodeForm::nfkc));
  } else if (type == "NFKD") {
    steps.push_back(unicode_form(UnicodeForm::nfkd));
  } else if (type == "Prepend") {
    steps.push_back(prepend_text(text_of(node, "prepend", "the normalizer Prepend")));
  } else if (type == "Replace") {
    const auto [is_regex, pattern] = pattern_of(node, "normalizer Replace");
    const std::string to = text_of(node, "content", "the normalizer Replace");
    steps.push_back(is_regex ? replace_regex(pattern, to) : replace_text(pattern, to));
  } else if (type == "Lowercase") {
    steps.push_back(lowercase());
  } else if (type == "Strip") {
    steps.push_back(strip_white_space(flag_of(node, "strip_left", true), flag_of(node, "strip_right", true)));
  } else {
    unsupported("normalizer", type);
  }
}

SplitBehavior behavior_of(const json& node, std::string_view component) {
  const std::string name = text_of(node, "behavior", component);
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  unsupported("split behavior", name);
}

PrependScheme scheme_of(const json& node) {
  const json& scheme = member(node, "prepend_scheme");
  if (scheme.is_null()) return flag_of(node, "add_prefix_space", true) ? PrependScheme::always : PrependScheme::never;
  if (scheme == "always") return PrependScheme::always;
  if (scheme == "first") return PrependScheme::first;
  if (scheme == "never") return PrependScheme::never;
  unsupported("prepend_scheme", scheme.dump());
}

// True once ByteLevel has been seen: it must come last, because later steps would see its alphabet.
void add_pretokenizer(const json& node, PreTokenizer& steps, bool& byte_level, int depth) {
  if (node.is_null()) return;
  const std::string type = type_of(node, "pre_tokenizer");
  if (type == "Sequence") {
    for (const json& part : list_of(node, "pretokenizers", "pre_tokenizer", depth)) {
      add_pretokenizer(part, steps, byte_level, depth + 1);
    }
    return;
  }
  if (byte_level) unsupported("pre_tokenizer", type + " after ByteLevel");
  if (type == "ByteLevel") {
    if (flag_of(node, "add_prefix_space", true)) steps.push_back(prefix_space());
    if (flag_of(node, "use_regex", true)) steps.push_back(split_by_regex(kPatternGpt2, SplitBehavior::isolated));
    byte_level = true;
  } else if (type == "Split") {
    const auto [is_regex, pattern] = pattern_of(node, "pre_tokenizer Split");
    steps.push_back(split_by_regex(is_regex ? pattern : escape_regex(pattern),
                                   behavior_of(node, "the pre_tokenizer Split"), flag_of(node, "invert", false)));
  } else if (type == "Digits") {
    steps.push_back(split_by_class(
        is_number, flag_of(node, "individual_digits", false) ? SplitBehavior::isolated : SplitBehavior::contiguous));
  } else if (type == "Punctuation") {
    const bool named = member(node, "behavior").is_string();
    steps.push_back(split_by_class(
        is_punctuation, named ? behavior_of(node, "the pre_tokenizer Punctuation") : SplitBehavior::isolated));
  } else if (type == "Whitespace") {
    steps.push_back(split_by_regex(R"(\w+|[^\w\s]+)", SplitBehavior::removed, true));
  } else if (type == "WhitespaceSplit") {
    steps.push_back(split_by_class(is_white_space, SplitBehavior::removed));
  } else if (type == "CharDelimiterSplit") {
    const std::string delimiter = text_of(node, "delimiter", "the pre_tokenizer CharDelimiterSplit");
    const Utf8Step step = delimiter.empty() ? Utf8Step{} : read_utf8(delimiter, 0);
    if (!step.valid || step.size != delimiter.size()) {
      fail(ErrorKind::bad_input, "tokenizer.json: the delimiter of CharDelimiterSplit is not one character");
    }
    steps.push_back(split_by_character(step.value, SplitBehavior::removed));
  } else if (type == "Metaspace") {
    const std::string replacement = text_of(node, "replacement", "the pre_tokenizer Metaspace");
    if (replacement.empty()) fail(ErrorKind::bad_input, "tokenizer.json: the replacement of Metaspace is empty");
    steps.push_back(metaspace(replacement, scheme_of(node), flag_of(node, "split", true)));
  } else {
    unsupported("pre_tokenizer", type);
  }
}

void add_decoder(const json& node, TokenDecoder& decoder, bool& fused, int depth) {
  if (node.is_null()) return;
  const std::string type = type_of(node, "decoder");
  if (type == "Sequence") {
    for (const json& part : list_of(node, "decoders", "decoder", depth)) add_decoder(part, decoder, fused, depth + 1);
  } else if (type == "ByteLevel") {
    decoder.byte_level = true;
  } else if (type == "ByteFallback") {
    decoder.byte_fallback = true;
  } else if (type == "Fuse") {
    fused = true;
  } else if (type == "Replace") {
    const auto [is_regex, pattern] = pattern_of(node, "decoder Replace");
    if (is_regex) unsupported("decoder", "Replace by Regex");
    if (fused) unsupported("decoder", "Replace after Fuse");
    decoder.replace.emplace_back(pattern, text_of(node, "content", "the decoder Replace"));
  } else if (type == "Strip") {
    const json& start = member(node, "start");
    const json& stop = member(node, "stop");
    if (stop.is_number_integer() && stop != 0) unsupported("decoder", "Strip at the end");
    if (!fused) unsupported("decoder", "Strip before Fuse");
    decoder.strip = text_of(node, "content", "the decoder Strip");
    decoder.strip_count =
        start.is_number_integer() ? static_cast<std::size_t>(std::max<std::int64_t>(0, start.get<std::int64_t>())) : 0;
  } else if (type == "Metaspace") {
    decoder.replace.emplace_back(text_of(node, "replacement", "the decoder Metaspace"), " ");
    if (scheme_of(node) != PrependScheme::never) {
      decoder.strip = " ";
      decoder.strip_count = 1;
    }
  } else {
    unsupported("decoder", type);
  }
}

void add_post_processor(const json& node, TokenizerParts& parts, int depth) {
  if (node.is_null()) return;
  const std::string type = type_of(node, "post_processor");
  const std::size_t count = parts.texts.size();
  if (type == "Sequence") {
    for (const json& part : list_of(node, "processors", "post_processor", depth)) {
      add_post_processor(part, parts, depth + 1);
    }
  } else if (type == "ByteLevel") {
    return;  // moves offsets, which we do not have; the ids stay
  } else if (type == "TemplateProcessing") {
    const json& single = member(node, "single");
    if (!single.is_array()) unsupported("post_processor", "TemplateProcessing without a list 'single'");
    bool after = false;
    for (const json& item : single) {
      if (item.contains("Sequence")) {
        if (after) unsupported("post_processor", "TemplateProcessing with the text twice");
        after = true;
        continue;
      }
      const std::string name = text_of(member(item, "SpecialToken"), "id", "the post_processor TemplateProcessing");
      const json& ids = member(member(member(node, "special_tokens"), name.c_str()), "ids");
      if (!ids.is_array()) {
        fail(ErrorKind::bad_input, "tokenizer.json: TemplateProcessing uses '{}' without giving its ids", name);
      }
      for (const json& id : ids) {
        if (!id.is_number_integer()) fail(ErrorKind::bad_input, "tokenizer.json: an id of '{}' is no number", name);
        const auto value = id.get<std::int64_t>();
        const auto token = static_cast<TokenId>(std::clamp<std::int64_t>(value, -1, kMaxTokens));
        check_token_id(token, count, "post_processor id");
        (after ? parts.suffix : parts.prefix).push_back(token);
      }
    }
    if (!after) fail(ErrorKind::bad_input, "tokenizer.json: TemplateProcessing leaves the text out");
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    for (const bool front : {true, false}) {
      const json& pair = member(node, front ? "cls" : "sep");
      if (!pair.is_array() || pair.size() != 2 || !pair[1].is_number_integer()) {
        fail(ErrorKind::bad_input, "tokenizer.json: {} lacks cls or sep", type);
      }
      const auto token = static_cast<TokenId>(std::clamp<std::int64_t>(pair[1].get<std::int64_t>(), -1, kMaxTokens));
      check_token_id(token, count, "post_processor id");
      (front ? parts.prefix : parts.suffix).push_back(token);
    }
  } else {
    unsupported("post_processor", type);
  }
}

std::vector<AddedToken> read_added_tokens(const json& root) {
  std::vector<AddedToken> added;
  const json& list = member(root, "added_tokens");
  if (list.is_null()) return added;
  if (!list.is_array()) fail(ErrorKind::bad_input, "tokenizer.json: added_tokens is not a list");
  for (const json& item : list) {
    const json& id = member(item, "id");
    AddedToken token;
    token.content = text_of(item, "content", "an added token");
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() >= kMaxTokens) {
      fail(ErrorKind::bad_input, "tokenizer.json: the added token '{}' has no valid id", token.content);
    }
    token.id = static_cast<TokenId>(id.get<std::int64_t>());
    token.single_word = flag_of(item, "single_word", false);
    token.lstrip = flag_of(item, "lstrip", false);
    token.rstrip = flag_of(item, "rstrip", false);
    token.special = flag_of(item, "special", false);
    token.normalized = flag_of(item, "normalized", !token.special);
    added.push_back(std::move(token));
  }
  return added;
}

void place(std::vector<std::string>& texts, std::vector<bool>& taken, TokenId id, std::string text) {
  const auto i = static_cast<std::size_t>(id);
  if (taken[i] && texts[i] != text) {
    fail(ErrorKind::bad_input, "tokenizer.json: the tokens '{}' and '{}' have the same id {}", texts[i], text, id);
  }
  texts[i] = std::move(text);
  taken[i] = true;
}

// A special token of tokenizer_config.json: "text", {"content": "text"} or null.
std::optional<TokenId> config_token(const json& config, const char* key, const std::vector<std::string>& texts) {
  const json& value = member(config, key);
  const json& name = value.is_object() ? member(value, "content") : value;
  if (!name.is_string()) return std::nullopt;
  const auto found = std::find(texts.begin(), texts.end(), name.get<std::string>());
  if (found == texts.end()) {
    fail(ErrorKind::bad_input, "tokenizer_config.json: {} is '{}', which is no token of tokenizer.json", key,
         name.get<std::string>());
  }
  return static_cast<TokenId>(found - texts.begin());
}

std::vector<TokenId> generation_ids(const json& generation, const char* key, std::size_t count) {
  std::vector<TokenId> ids;
  const json& value = member(generation, key);
  const auto add = [&](const json& id) {
    if (!id.is_number_integer()) fail(ErrorKind::bad_input, "generation_config.json: {} is not a token id", key);
    const auto token = static_cast<TokenId>(std::clamp<std::int64_t>(id.get<std::int64_t>(), -1, kMaxTokens));
    check_token_id(token, count, key);
    ids.push_back(token);
  };
  if (value.is_array()) {
    for (const json& id : value) add(id);
  } else if (!value.is_null()) {
    add(value);
  }
  return ids;
}

void set_ends(std::vector<TokenId>& around, bool front, const json& wanted, std::optional<TokenId> token) {
  if (!wanted.is_boolean() || !token) return;
  const auto found = std::find(around.begin(), around.end(), *token);
  if (wanted.get<bool>() && found == around.end()) {
    around.insert(front ? around.begin() : around.end(), *token);
  } else if (!wanted.get<bool>() && found != around.end()) {
    around.erase(found);
  }
}

json parse_config(std::string_view text, std::string_view name) {
  if (text.empty()) return json::object();
  json config = json::parse(text, nullptr, false, true);
  if (config.is_discarded()) fail(ErrorKind::bad_input, "{} is not valid JSON", name);
  if (!config.is_object()) fail(ErrorKind::bad_input, "{} is not a JSON object", name);
  return config;
}

std::unique_ptr<Tokenizer> read(std::string_view tokenizer_json, const json& config, const json& generation) {
  TokenizerJson file = parse_tokenizer_json(tokenizer_json);
  const json& root = file.rest;
  const json& model = member(root, "model");
  std::string model_type = member(model, "type").is_string() ? model["type"].get<std::string>() : "";
  if (model_type.empty() && !file.merges.empty()) model_type = "BPE";  // files from before 2020 name no type
  if (model_type != "BPE") unsupported("model", model_type.empty() ? "without a type" : model_type);
  if (file.vocabulary.empty()) fail(ErrorKind::bad_input, "tokenizer.json: model.vocab is missing or empty");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const json& value = member(model, key);
    if (value.is_string() && !value.get<std::string>().empty()) unsupported("model option", key);
  }
  const json& dropout = member(model, "dropout");
  if (dropout.is_number() && dropout.get<double>() != 0.0) unsupported("model option", "dropout");

  TokenizerParts parts;
  parts.added = read_added_tokens(root);
  std::int64_t largest = 0;
  for (const auto& [text, id] : file.vocabulary) largest = std::max<std::int64_t>(largest, id);
  for (const AddedToken& token : parts.added) largest = std::max<std::int64_t>(largest, token.id);
  const auto entries = static_cast<std::int64_t>(file.vocabulary.size() + parts.added.size());
  if (largest > 4 * entries + 65536) {
    fail(ErrorKind::bad_input, "tokenizer.json: the id {} is far outside a vocabulary of {} tokens", largest, entries);
  }
  const auto count = static_cast<std::size_t>(largest) + 1;
  parts.texts.resize(count);
  std::vector<bool> taken(count);
  for (auto& [text, id] : file.vocabulary) place(parts.texts, taken, id, std::move(text));
  for (const AddedToken& token : parts.added) place(parts.texts, taken, token.id, token.content);
  parts.types.assign(count, TokenType::normal);
  for (std::size_t i = 0; i < count; ++i) {
    if (!taken[i]) parts.types[i] = TokenType::unused;
  }
  for (const AddedToken& token : parts.added) {
    parts.types[static_cast<std::size_t>(token.id)] = token.special ? TokenType::control : TokenType::user_defined;
  }

  parts.by_text = index_texts(parts.texts);
  const auto& by_text = parts.by_text;

  parts.model.order = BpeModel::Order::ranks;
  parts.model.ignore_merges = flag_of(model, "ignore_merges", false);
  parts.model.byte_fallback = flag_of(model, "byte_fallback", false);
  parts.model.fuse_unknown = flag_of(model, "fuse_unk", false);
  parts.model.byte_tokens.fill(-1);
  if (parts.model.byte_fallback) {
    for (int b = 0; b < 256; ++b) {
      const auto found = by_text.find(byte_token(static_cast<std::uint8_t>(b)));
      if (found == by_text.end()) continue;
      parts.model.byte_tokens[static_cast<std::size_t>(b)] = found->second;
      parts.types[static_cast<std::size_t>(found->second)] = TokenType::byte;
    }
  }
  const json& unknown = member(model, "unk_token");
  if (unknown.is_string()) {
    const auto found = by_text.find(unknown.get<std::string>());
    if (found == by_text.end()) {
      fail(ErrorKind::bad_input, "tokenizer.json: unk_token '{}' is no token", unknown.get<std::string>());
    }
    parts.model.unknown = found->second;
    parts.types[static_cast<std::size_t>(found->second)] = TokenType::unknown;
  }
  parts.model.merges = read_merges({file.merges.begin(), file.merges.end()}, parts.types, by_text);

  add_normalizer(member(root, "normalizer"), parts.normalizer, 0);
  add_pretokenizer(member(root, "pre_tokenizer"), parts.pretokenizer, parts.byte_level, 0);
  parts.model.symbols = parts.byte_level ? BpeModel::Symbols::bytes : BpeModel::Symbols::characters;
  bool fused = false;
  add_decoder(member(root, "decoder"), parts.decoder, fused, 0);
  add_post_processor(member(root, "post_processor"), parts, 0);

  parts.bos = config_token(config, "bos_token", parts.texts);
  if (!parts.bos && !parts.prefix.empty()) parts.bos = parts.prefix.front();
  parts.eos = config_token(config, "eos_token", parts.texts);
  set_ends(parts.prefix, true, member(config, "add_bos_token"), parts.bos);
  set_ends(parts.suffix, false, member(config, "add_eos_token"), parts.eos);
  parts.end_tokens = generation_ids(generation, "eos_token_id", count);
  if (!parts.eos && !parts.end_tokens.empty()) parts.eos = parts.end_tokens.front();
  if (parts.eos) parts.end_tokens.push_back(*parts.eos);
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(std::string_view tokenizer_json, std::string_view tokenizer_config_json,
                                          std::string_view generation_config_json) {
  const json config = parse_config(tokenizer_config_json, "tokenizer_config.json");
  const json generation = parse_config(generation_config_json, "generation_config.json");
  try {
    return read(tokenizer_json, config, generation);
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorKind::bad_input, "tokenizer.json or a file beside it has a value of the wrong kind: {}", error.what());
  }
}

}  // namespace halftone
