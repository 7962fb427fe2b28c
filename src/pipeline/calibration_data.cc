#include "pipeline/calibration_data.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"
#include "text/chat_template.h"

namespace halftone {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kShortest = 8;  // tokens: a shorter row says next to nothing of a layer's inputs

// A text, or the first of a list of texts (PaddleNLP keeps turns in lists).
std::optional<std::string> text_of_field(const Json& row, const char* key) {
  const auto found = row.find(key);
  if (found == row.end()) return std::nullopt;
  const Json& value = found->is_array() && !found->empty() ? found->front() : *found;
  if (!value.is_string()) return std::nullopt;
  return value.get<std::string>();
}

class RowReader {
 public:
  RowReader(const Checkpoint& checkpoint, const Tokenizer& tokenizer, bool chat) : tokenizer_(tokenizer) {
    if (!chat) return;
    if (!checkpoint.chat_template) {
      fail(ErrorKind::bad_input, "{}: no chat template for the calibration rows", checkpoint.path.string());
    }
    template_.emplace(*checkpoint.chat_template);
    if (const auto bos = tokenizer.bos()) special_["bos_token"] = tokenizer.token_text(*bos);
    if (const auto eos = tokenizer.eos()) special_["eos_token"] = tokenizer.token_text(*eos);
  }

  // nullopt: a row of none of the known forms.
  std::optional<std::vector<TokenId>> tokens(const Json& row) const {
    if (!row.is_object()) return std::nullopt;
    std::vector<ChatMessage> messages;
    for (const auto& [first, second] : {std::pair{"src", "tgt"}, std::pair{"prompt", "response"}}) {
      const auto from = text_of_field(row, first), to = text_of_field(row, second);
      if (from) messages.push_back({"user", *from});
      if (from && to) messages.push_back({"assistant", *to});
      if (from) break;
    }
    if (const auto list = row.find("messages"); messages.empty() && list != row.end() && list->is_array()) {
      for (const Json& item : *list) {
        if (!item.is_object()) return std::nullopt;
        const auto role = text_of_field(item, "role"), content = text_of_field(item, "content");
        if (!role || !content) return std::nullopt;
        messages.push_back({*role, *content});
      }
    }
    if (messages.empty()) {
      std::optional<std::string> text = text_of_field(row, "text");
      if (!text) text = text_of_field(row, "content");
      if (!text) return std::nullopt;
      return tokenizer_.encode(*text);
    }
    if (template_) {
      std::vector<TokenId> ids;
      for (const ChatTemplate::Piece& piece : template_->render_pieces(messages, false, special_)) {
        const auto part = tokenizer_.encode(piece.text, {.add_special = false, .parse_control = !piece.from_content});
        ids.insert(ids.end(), part.begin(), part.end());
      }
      return ids;
    }
    std::string text;
    for (const ChatMessage& message : messages) text += (text.empty() ? "" : "\n") + message.content;
    return tokenizer_.encode(text);
  }

 private:
  const Tokenizer& tokenizer_;
  std::optional<ChatTemplate> template_;
  std::map<std::string, std::string> special_;
};

void read_rows(const std::string& text, const RowReader& reader, const CalibrationOptions& options,
               CalibrationData& data) {
  std::size_t line_number = 0;
  std::int64_t too_short = 0, not_reached = 0;
  for (std::size_t at = 0; at < text.size();) {
    throw_if_interrupted();
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    if (static_cast<std::int64_t>(data.sequences.size()) == options.samples) {
      ++not_reached;
      continue;
    }
    const Json row = Json::parse(line, nullptr, false);
    std::optional<std::vector<TokenId>> ids;
    if (!row.is_discarded()) ids = reader.tokens(row);
    if (!ids) {
      fail(ErrorKind::bad_input,
           "{} line {}: expected a JSON object with \"text\", \"src\" and \"tgt\", \"prompt\" and \"response\", or "
           "\"messages\"",
           data.origin, line_number);
    }
    if (ids->size() < kShortest) {
      ++too_short;
      continue;
    }
    if (static_cast<std::int64_t>(ids->size()) > options.length) {
      data.unused_tokens += static_cast<std::int64_t>(ids->size()) - options.length;
      ids->resize(static_cast<std::size_t>(options.length));
    }
    data.sequences.push_back(*std::move(ids));
  }
  if (too_short > 0) {
    data.dropped_rows += too_short;
    data.notes.push_back(
        fmt::format("calibration: {} rows of fewer than {} tokens are left out", too_short, kShortest));
  }
  if (not_reached > 0) {
    data.dropped_rows += not_reached;
    data.notes.push_back(fmt::format("calibration: the last {} rows are left out, {} samples are enough as asked",
                                     not_reached, options.samples));
  }
  if (data.unused_tokens > 0) {
    data.notes.push_back(
        fmt::format("calibration: {} tokens beyond the length of {} are cut off", data.unused_tokens, options.length));
  }
}

void check(const CalibrationOptions& options) {
  if (options.samples < 1)
    fail(ErrorKind::usage, "--calibration-samples {}: expected a positive number", options.samples);
  if (options.length < static_cast<std::int64_t>(kShortest)) {
    fail(ErrorKind::usage, "--calibration-length {}: expected at least {}", options.length, kShortest);
  }
}

}  // namespace

CalibrationData load_calibration(const Checkpoint& checkpoint, const Tokenizer& tokenizer,
                                 const std::filesystem::path& path, const CalibrationOptions& options) {
  check(options);
  CalibrationData data;
  data.origin = path.string();
  data.vocabulary = tokenizer.vocabulary_size();
  const std::string text = read_text_file(path);
  if (path.extension() == ".jsonl" || path.extension() == ".json") {
    read_rows(text, RowReader(checkpoint, tokenizer, options.chat), options, data);
    if (data.sequences.empty()) fail(ErrorKind::bad_input, "{}: no row can be used for calibration", data.origin);
    return data;
  }
  if (options.chat) fail(ErrorKind::usage, "--calibration-chat needs JSON lines, not {}", data.origin);
  const std::vector<TokenId> tokens = tokenizer.encode(text);
  const auto windows = static_cast<std::int64_t>(tokens.size()) / options.length;
  if (windows == 0) {
    fail(ErrorKind::bad_input,
         "{}: its {} tokens are fewer than one sample of {}; give more text or --calibration-length", data.origin,
         tokens.size(), options.length);
  }
  const std::int64_t taken = std::min(options.samples, windows);
  if (taken < options.samples) {
    data.notes.push_back(fmt::format("calibration: {} holds only {} samples of {} tokens, {} were asked for",
                                     data.origin, windows, options.length, options.samples));
  }
  for (std::int64_t i = 0; i < taken; ++i) {
    const auto first = tokens.begin() + windows * i / taken * options.length;
    data.sequences.emplace_back(first, first + options.length);
    if (tokenizer.adds_bos() && tokenizer.bos()) data.sequences.back().front() = *tokenizer.bos();
  }
  data.unused_tokens = static_cast<std::int64_t>(tokens.size()) - taken * options.length;
  return data;
}

CalibrationData calibration_of_tokens(std::vector<TokenId> tokens, std::int64_t length, std::int64_t vocabulary,
                                      std::string origin) {
  CalibrationData data;
  data.origin = std::move(origin);
  data.vocabulary = vocabulary;
  for (std::size_t at = 0; at + static_cast<std::size_t>(length) <= tokens.size();
       at += static_cast<std::size_t>(length)) {
    const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(at);
    data.sequences.emplace_back(first, first + length);
  }
  return data;
}

Json to_json(const CalibrationData& data) {
  std::set<TokenId> distinct;
  std::int64_t tokens = 0, shortest = 0, longest = 0;
  for (const std::vector<TokenId>& sequence : data.sequences) {
    const auto size = static_cast<std::int64_t>(sequence.size());
    tokens += size;
    shortest = shortest == 0 ? size : std::min(shortest, size);
    longest = std::max(longest, size);
    distinct.insert(sequence.begin(), sequence.end());
  }
  return Json{{"origin", data.origin},
              {"sequences", data.sequences.size()},
              {"tokens", tokens},
              {"shortest", shortest},
              {"longest", longest},
              {"distinct_tokens", distinct.size()},
              {"vocabulary_share",
               data.vocabulary > 0 ? static_cast<double>(distinct.size()) / static_cast<double>(data.vocabulary) : 0.0},
              {"unused_tokens", data.unused_tokens},
              {"dropped_rows", data.dropped_rows},
              {"notes", data.notes}};
}

}  // namespace halftone
