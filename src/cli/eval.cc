#include "base/error.h"
#include "base/file.h"
#include "cli/common.h"
#include "cli/quality.h"
#include "cli/tasks.h"
#include "evaluate/divergence.h"
#include "pipeline/report_html.h"

namespace halftone::cli {

void add_eval(CLI::App& app, Common& common) {
  struct Options {
    std::string model, reference, text, html, kv = "fp32";
    std::optional<std::string> max_loss;
    std::int64_t ctx = 512, chunks = 0;
    std::uint64_t seed = 1;
    TaskFlags tasks;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("eval", "Perplexity, and the divergence from a reference model, side by side");
  command->add_option("MODEL,-m,--model", options->model, "A checkpoint")->required();
  command->add_option("--reference", options->reference, "The model to compare with: KL, top-1 agreement, cosines");
  command->add_option("--text", options->text, "A text file, its bytes as they are (default: a text sampled from the reference, or the model)");
  command->add_option("-c,--ctx", options->ctx, "Tokens a window")->capture_default_str();
  command->add_option("--chunks", options->chunks, "At most this many windows (default: all; 4 for a sampled text)");
  command->add_option("--kv", options->kv, "Format of the KV cache")->capture_default_str();
  command->add_option("-s,--seed", options->seed, "Seed of the sampled text")->capture_default_str();
  command->add_option("--tasks", options->tasks.file, "Multiple choice by log-likelihood instead: JSON lines of question, choices, answer (or PIQA's)");
  command->add_option("--labels", options->tasks.labels, "Answers of --tasks, one a line (default: NAME-labels.lst beside NAME.jsonl)");
  command->add_option("--limit", options->tasks.limit, "At most this many items of --tasks (default: all)");
  command->add_option("--task-ctx", options->tasks.ctx, "Longer items of --tasks lose tokens at the front (default: 2048)");
  command->add_option("--html", options->html, "Also write the result as a page");
  command->add_option("--max-loss", options->max_loss, "Exit code 6 if perplexity grows by more than this against --reference, such as 1%");
  add_common(*command, common);
  command->callback([options, &common] {
    apply(common);
    std::optional<double> max_loss;
    if (options->max_loss) {
      max_loss = parse_loss(*options->max_loss);
      if (options->reference.empty()) fail(ErrorKind::usage, "--max-loss compares with a model: give --reference");
      if (!options->tasks.file.empty()) fail(ErrorKind::usage, "--max-loss is about perplexity: leave out --tasks");
    }
    if (!options->html.empty() && !options->tasks.file.empty()) fail(ErrorKind::usage, "--html is not written for --tasks: use --json");
    if (options->chunks < 0) fail(ErrorKind::usage, "--chunks {}: expected a positive number", options->chunks);
    const auto progress = make_progress(common);
    const LoadedModel candidate = load_model(options->model, *progress);
    std::optional<LoadedModel> reference;
    if (!options->reference.empty()) reference = load_model(options->reference, *progress);
    const LoadedModel& source = reference ? *reference : candidate;

    if (!options->tasks.file.empty()) {
      options->tasks.kv = options->kv;
      const Json json = tasks_json(options->tasks, candidate, reference ? &*reference : nullptr, *progress);
      return common.json ? print_json(json) : print(tasks_text(json));
    }
    EvaluateOptions settings;
    settings.ctx = options->ctx;
    settings.windows = options->chunks;
    settings.kv_format = kv_format_or_fail(options->kv);
    std::vector<TokenId> text;
    if (options->text.empty()) {
      if (settings.windows == 0) settings.windows = 4;
      text = sample_text(*source.model, start_token(source), settings.windows, settings.ctx, options->seed, default_pool(), *progress);
    } else {
      text = candidate.tokenizer->encode(read_text_file(options->text));
      if (reference && reference->tokenizer->vocabulary_size() != candidate.tokenizer->vocabulary_size()) {
        fail(ErrorKind::bad_input, "{} and {} have different tokenizers", options->model, options->reference);
      }
    }
    if (candidate.tokenizer->adds_bos()) settings.bos = candidate.tokenizer->bos();
    const EvaluateResult result = evaluate(*candidate.model, reference ? reference->model.get() : nullptr, text, settings,
                                           default_pool(), *progress);
    Json json = quality_json(result);
    json["text"] = options->text.empty() ? fmt::format("sampled (seed {})", options->seed) : options->text;
    json["weight_bytes"] = stored_bytes(candidate.checkpoint);
    json["bits_per_weight"] = 8.0 * static_cast<double>(stored_bytes(candidate.checkpoint)) /
                              static_cast<double>(candidate.model->parameter_count());
    if (!options->html.empty()) write_text_file(options->html, evaluation_html(json, common.command_line));
    if (common.json) {
      print_json(json);
    } else {
      print(quality_text(result));
      print(fmt::format("bits per weight     {:.3f} ({})\n", json["bits_per_weight"].get<double>(),
                        format_bytes(static_cast<double>(stored_bytes(candidate.checkpoint)))));
    }
    if (max_loss) hold_loss(*max_loss, result);
  });
}

}  // namespace halftone::cli
