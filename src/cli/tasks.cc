#include "cli/tasks.h"

#include "base/error.h"
#include "base/file.h"
#include "evaluate/multiple_choice.h"

namespace halftone::cli {
namespace {

Json proportion_json(const Proportion& p) {
  return {{"value", p.value}, {"low", p.low}, {"high", p.high}};
}

Json choice_json(const ChoiceResult& result) {
  return {{"acc", proportion_json(result.acc)},
          {"acc_norm", proportion_json(result.acc_norm)},
          {"truncated", result.truncated}};
}

std::string proportion_text(const Json& p) {
  return fmt::format("{:.4f} [{:.4f}, {:.4f}]", p.at("value").get<double>(), p.at("low").get<double>(),
                     p.at("high").get<double>());
}

}  // namespace

Json tasks_json(const TaskFlags& flags, const LoadedModel& candidate, const LoadedModel* reference,
                Progress& progress) {
  if (flags.limit < 0) fail(ErrorKind::usage, "--limit {}: expected a positive number", flags.limit);
  // PIQA's way: NAME.jsonl and NAME-labels.lst side by side.
  std::filesystem::path labels = flags.labels;
  if (labels.empty()) {
    const std::filesystem::path items = flags.file;
    const std::filesystem::path beside = items.parent_path() / (items.stem().string() + "-labels.lst");
    std::error_code ignored;
    if (std::filesystem::is_regular_file(beside, ignored)) labels = beside;
  }
  const std::vector<ChoiceItem> items =
      parse_choice_items(read_text_file(flags.file), labels.empty() ? "" : read_text_file(labels.string()), flags.file);
  ChoiceOptions options;
  options.limit = flags.limit;
  options.max_tokens = flags.ctx;
  options.kv_format = kv_format_or_fail(flags.kv);
  const ChoiceResult result =
      score_choices(*candidate.model, *candidate.tokenizer, items, options, default_pool(), progress);
  Json json{{"task", flags.file}, {"items", result.items}};
  if (!labels.empty()) json["labels"] = labels.string();
  json.update(choice_json(result));
  if (reference == nullptr) return json;
  options.kv_format = fp32_format();
  const ChoiceResult other =
      score_choices(*reference->model, *reference->tokenizer, items, options, default_pool(), progress);
  const ChoiceComparison comparison = compare_choices(result, other);
  json["reference"] = choice_json(other);
  json["acc_difference"] = proportion_json({comparison.acc_difference, comparison.acc_low, comparison.acc_high});
  json["acc_norm_difference"] =
      proportion_json({comparison.acc_norm_difference, comparison.acc_norm_low, comparison.acc_norm_high});
  json["choice_agreement"] = comparison.agreement;
  return json;
}

std::string tasks_text(const Json& json) {
  std::string text = fmt::format("{} ({} items; 95 % intervals)\n", json.at("task").get<std::string>(),
                                 json.at("items").get<std::int64_t>());
  for (const char* key : {"acc", "acc_norm"}) text += fmt::format("{:<22}{}\n", key, proportion_text(json.at(key)));
  if (const auto truncated = json.at("truncated").get<std::int64_t>(); truncated > 0) {
    text += fmt::format("{} items lost tokens at the front: longer than --task-ctx\n", truncated);
  }
  if (!json.contains("reference")) return text;
  for (const char* key : {"acc", "acc_norm"})
    text += fmt::format("{:<22}{}\n", fmt::format("reference {}", key), proportion_text(json.at("reference").at(key)));
  for (const char* key : {"acc", "acc_norm"}) {
    text += fmt::format("{:<22}{}\n", fmt::format("{} - reference", key),
                        proportion_text(json.at(fmt::format("{}_difference", key))));
  }
  text += fmt::format("{:<22}{:.2f} %\n", "same choice", 100 * json.at("choice_agreement").get<double>());
  return text;
}

}  // namespace halftone::cli
