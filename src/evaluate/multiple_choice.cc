#include "evaluate/multiple_choice.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "kernels/activation/activation.h"

namespace halftone {
namespace {

using ChoiceJson = nlohmann::ordered_json;
constexpr double kNormal95 = 1.959963984540054;

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.find_first_not_of(" \t") != std::string_view::npos) lines.push_back(line);
  }
  return lines;
}

std::optional<std::string> first_text(const ChoiceJson& json, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const auto found = json.find(key);
    if (found != json.end() && found->is_string()) return found->get<std::string>();
  }
  return std::nullopt;
}

std::vector<std::string> texts_of(const ChoiceJson& list, const std::string& place) {
  std::vector<std::string> texts;
  if (!list.is_array()) fail(ErrorKind::bad_input, "{}: the choices must be a list of texts", place);
  for (const ChoiceJson& item : list) {
    if (!item.is_string()) fail(ErrorKind::bad_input, "{}: every choice must be a text", place);
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

// An index, the label of a choice, its letter (A, B, ...), its text, or digits: in this order.
std::int64_t answer_of(const ChoiceJson& answer, const std::vector<std::string>& choices,
                       const std::vector<std::string>& labels, const std::string& place) {
  const auto count = static_cast<std::int64_t>(choices.size());
  std::int64_t index = -1;
  if (answer.is_number_integer()) {
    index = answer.get<std::int64_t>();
  } else if (answer.is_string()) {
    const std::string text = answer.get<std::string>();
    const auto position = [&text](const std::vector<std::string>& all) {
      const auto found = std::find(all.begin(), all.end(), text);
      return found == all.end() ? std::int64_t{-1} : static_cast<std::int64_t>(found - all.begin());
    };
    index = position(labels);
    if (index < 0) index = position(choices);
    if (index < 0 && text.size() == 1 && text[0] >= 'A' && text[0] <= 'Z') index = text[0] - 'A';
    if (index < 0 && text.size() == 1 && text[0] >= '0' && text[0] <= '9') index = text[0] - '0';
  }
  if (index < 0 || index >= count) {
    fail(ErrorKind::bad_input, "{}: the answer {} is none of the {} choices", place, answer.dump(), count);
  }
  return index;
}

ChoiceItem parse_item(const ChoiceJson& json, const ChoiceJson& label, const std::string& place) {
  if (!json.is_object()) fail(ErrorKind::bad_input, "{}: must be a JSON object", place);
  ChoiceItem item;
  std::vector<std::string> labels;
  if (const auto context = first_text(json, {"context"})) {
    item.context = *context;
  } else if (const auto question = first_text(json, {"question", "query", "goal"})) {
    item.context = "Question: " + *question + "\nAnswer:";
  } else {
    fail(ErrorKind::bad_input, "{}: no 'question', 'query', 'goal' or 'context'", place);
  }
  if (const auto choices = json.find("choices"); choices != json.end()) {
    if (choices->is_object()) {
      item.choices = texts_of(choices->value("text", ChoiceJson()), place);
      if (choices->contains("label")) labels = texts_of(choices->at("label"), place);
    } else {
      item.choices = texts_of(*choices, place);
    }
  } else {
    for (int i = 1; json.contains("sol" + std::to_string(i)); ++i) {
      item.choices.push_back(first_text(json, {("sol" + std::to_string(i)).c_str()}).value_or(""));
    }
  }
  if (item.choices.size() < 2) fail(ErrorKind::bad_input, "{}: at least two choices are needed", place);
  ChoiceJson answer = label;
  for (const char* key : {"answer", "gold", "label", "answerKey"}) {
    if (answer.is_null() && json.contains(key)) answer = json.at(key);
  }
  if (answer.is_null()) fail(ErrorKind::bad_input, "{}: no 'answer', and no file of labels", place);
  item.answer = answer_of(answer, item.choices, labels, place);
  return item;
}

struct EncodedItem {
  std::vector<std::vector<TokenId>> tokens;  // context and choice
  std::vector<std::int64_t> begin;           // of the choice's own tokens
  std::int64_t shared = 0;                   // tokens computed once
  bool truncated = false;
};

EncodedItem encode_item(const Tokenizer& tokenizer, const ChoiceItem& item, std::int64_t max_tokens,
                        std::size_t number) {
  std::string context = item.context, spaces;
  while (!context.empty() && context.back() == ' ') {
    context.pop_back();
    spaces += ' ';
  }
  if (spaces.empty()) spaces = " ";
  std::vector<TokenId> front = tokenizer.encode(context);
  EncodedItem encoded;
  // With no context at all the first token of a choice is predicted from the start token, as the harness does.
  if (front.empty()) {
    const auto start = tokenizer.bos() ? tokenizer.bos() : tokenizer.eos();
    if (!start)
      fail(ErrorKind::bad_input, "item {}: an empty context needs a tokenizer with a BOS or EOS token", number);
    front.push_back(*start);
  }
  for (const std::string& choice : item.choices) {
    std::vector<TokenId> whole = tokenizer.encode(context + spaces + choice);
    if (context.empty() && !tokenizer.adds_bos()) whole.insert(whole.begin(), front[0]);
    auto begin = static_cast<std::int64_t>(front.size());
    const auto size = static_cast<std::int64_t>(whole.size());
    if (size <= begin)
      fail(ErrorKind::bad_input, "item {}: the choice '{}' adds no token to its context", number, choice);
    if (size > max_tokens) {
      if (size - begin >= max_tokens) {
        fail(ErrorKind::bad_input, "item {}: a choice of {} tokens does not fit the context of {}", number,
             size - begin, max_tokens);
      }
      whole.erase(whole.begin(), whole.begin() + (size - max_tokens));
      begin -= size - max_tokens;
      encoded.truncated = true;
    }
    encoded.tokens.push_back(std::move(whole));
    encoded.begin.push_back(begin);
  }
  // The token before a choice is computed with the choice: its hidden state predicts the choice's first token.
  encoded.shared = *std::min_element(encoded.begin.begin(), encoded.begin.end()) - 1;
  const std::vector<TokenId>& first = encoded.tokens[0];
  for (const std::vector<TokenId>& other : encoded.tokens) {
    const auto length =
        std::min({encoded.shared, static_cast<std::int64_t>(other.size()), static_cast<std::int64_t>(first.size())});
    encoded.shared = std::mismatch(first.begin(), first.begin() + length, other.begin()).first - first.begin();
  }
  return encoded;
}

void paired_difference(const std::vector<double>& differences, double& mean, double& low, double& high) {
  const auto n = static_cast<double>(differences.size());
  double sum = 0, squares = 0;
  for (const double d : differences) sum += d;
  mean = sum / n;
  for (const double d : differences) squares += (d - mean) * (d - mean);
  const double error = n > 1 ? std::sqrt(squares / (n - 1) / n) : 0;
  low = mean - kNormal95 * error;
  high = mean + kNormal95 * error;
}

}  // namespace

std::vector<ChoiceItem> parse_choice_items(std::string_view json_lines, std::string_view labels,
                                           const std::string& where) {
  const std::vector<std::string_view> lines = lines_of(json_lines), answers = lines_of(labels);
  if (lines.empty()) fail(ErrorKind::bad_input, "{}: holds no items", where);
  if (!answers.empty() && answers.size() != lines.size()) {
    fail(ErrorKind::bad_input, "{}: {} items, but {} labels", where, lines.size(), answers.size());
  }
  std::vector<ChoiceItem> items;
  items.reserve(lines.size());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string place = fmt::format("{}, item {}", where, i + 1);
    const ChoiceJson json = ChoiceJson::parse(lines[i], nullptr, false);
    if (json.is_discarded()) fail(ErrorKind::bad_input, "{}: not JSON", place);
    items.push_back(parse_item(json, answers.empty() ? ChoiceJson() : ChoiceJson(std::string(answers[i])), place));
  }
  return items;
}

Proportion wilson_interval(std::int64_t hits, std::int64_t count) {
  HT_CHECK(count > 0 && hits >= 0 && hits <= count);
  const auto n = static_cast<double>(count);
  const double p = static_cast<double>(hits) / n, z2 = kNormal95 * kNormal95;
  const double centre = (p + z2 / (2 * n)) / (1 + z2 / n);
  const double half = kNormal95 / (1 + z2 / n) * std::sqrt(p * (1 - p) / n + z2 / (4 * n * n));
  return {p, std::max(0.0, centre - half), std::min(1.0, centre + half)};
}

ChoiceResult score_choices(const Model& model, const Tokenizer& tokenizer, const std::vector<ChoiceItem>& items,
                           const ChoiceOptions& options, ThreadPool& pool, Progress& progress) {
  if (items.empty()) fail(ErrorKind::bad_input, "there are no items to score");
  const std::int64_t max_tokens = options.max_tokens > 0 ? options.max_tokens : 2048;
  const std::size_t count =
      options.limit > 0 ? std::min<std::size_t>(items.size(), static_cast<std::size_t>(options.limit)) : items.size();
  const std::int64_t vocabulary = model.config().vocabulary, width = model.config().hidden;
  KvCache cache(model.config(), options.kv_format, max_tokens);
  std::vector<float> hidden, logits;
  ChoiceResult result;
  std::int64_t hits = 0, hits_norm = 0;
  progress.begin("score choices", count, "items");
  for (std::size_t i = 0; i < count; ++i) {
    throw_if_interrupted();
    const EncodedItem encoded = encode_item(tokenizer, items[i], max_tokens, i + 1);
    result.truncated += encoded.truncated ? 1 : 0;
    cache.truncate(0);
    if (encoded.shared > 0) {
      model.forward(std::span(encoded.tokens[0]).first(static_cast<std::size_t>(encoded.shared)), cache, hidden, pool);
    }
    ItemScore score;
    double best = 0, best_norm = 0;
    for (std::size_t c = 0; c < encoded.tokens.size(); ++c) {
      const std::vector<TokenId>& tokens = encoded.tokens[c];
      cache.truncate(encoded.shared);
      model.forward(std::span(tokens).subspan(static_cast<std::size_t>(encoded.shared)), cache, hidden, pool);
      const std::int64_t first = encoded.begin[c] - 1;  // the position that predicts the choice's first token
      const std::int64_t rows = static_cast<std::int64_t>(tokens.size()) - 1 - first;
      constexpr std::int64_t kRows = 32;
      double sum = 0;
      for (std::int64_t row = 0; row < rows; row += kRows) {
        const std::int64_t part = std::min(kRows, rows - row);
        logits.resize(static_cast<std::size_t>(part * vocabulary));
        model.logits(
            std::span<const float>(hidden).subspan(static_cast<std::size_t>((first - encoded.shared + row) * width),
                                                   static_cast<std::size_t>(part * width)),
            part, logits, pool);
        for (std::int64_t r = 0; r < part; ++r) {
          const float* values = logits.data() + r * vocabulary;
          sum += values[tokens[static_cast<std::size_t>(first + row + r + 1)]] - log_sum_exp(values, vocabulary);
        }
      }
      if (!std::isfinite(sum))
        fail(ErrorKind::bad_input, "the model gives logits that are not finite (item {}, choice {})", i + 1, c + 1);
      const double norm = sum / static_cast<double>(std::max<std::size_t>(1, items[i].choices[c].size()));
      if (c == 0 || sum > best) {
        best = sum;
        score.chosen = static_cast<std::int64_t>(c);
      }
      if (c == 0 || norm > best_norm) {
        best_norm = norm;
        score.chosen_norm = static_cast<std::int64_t>(c);
      }
      score.log_likelihood.push_back(sum);
    }
    score.right = score.chosen == items[i].answer;
    score.right_norm = score.chosen_norm == items[i].answer;
    hits += score.right ? 1 : 0;
    hits_norm += score.right_norm ? 1 : 0;
    result.scores.push_back(std::move(score));
    progress.advance(1, fmt::format("acc {:.3f}", static_cast<double>(hits) / static_cast<double>(i + 1)));
  }
  progress.end();
  result.items = static_cast<std::int64_t>(count);
  result.acc = wilson_interval(hits, result.items);
  result.acc_norm = wilson_interval(hits_norm, result.items);
  return result;
}

ChoiceComparison compare_choices(const ChoiceResult& candidate, const ChoiceResult& reference) {
  HT_CHECK(candidate.scores.size() == reference.scores.size() && !candidate.scores.empty());
  std::vector<double> acc, norm;
  double same = 0;
  for (std::size_t i = 0; i < candidate.scores.size(); ++i) {
    const ItemScore &a = candidate.scores[i], &b = reference.scores[i];
    acc.push_back(static_cast<double>(a.right) - static_cast<double>(b.right));
    norm.push_back(static_cast<double>(a.right_norm) - static_cast<double>(b.right_norm));
    same += a.chosen == b.chosen ? 1 : 0;
  }
  ChoiceComparison comparison;
  paired_difference(acc, comparison.acc_difference, comparison.acc_low, comparison.acc_high);
  paired_difference(norm, comparison.acc_norm_difference, comparison.acc_norm_low, comparison.acc_norm_high);
  comparison.agreement = same / static_cast<double>(candidate.scores.size());
  return comparison;
}

}  // namespace halftone
