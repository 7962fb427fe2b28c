#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "cli/common.h"
#include "cli/quality.h"
#include "cli/quantize_flags.h"
#include "pipeline/quantize_job.h"
#include "pipeline/report_html.h"

namespace halftone::cli {
namespace {

// Throws Error(quality_gate) with the first figure that is worse than the gate allows.
void hold_against(const QualityGate& gate, const EvaluateResult& result) {
  if (gate.max_kl && result.kl_mean > *gate.max_kl) {
    fail(ErrorKind::quality_gate, "quality gate: mean KL {:.5f} is above {:.5f}: keep the worst layers in a better format",
         result.kl_mean, *gate.max_kl);
  }
  if (gate.max_perplexity_ratio) hold_loss(*gate.max_perplexity_ratio - 1, result);
  if (gate.min_top1_agreement && result.top1_agreement < *gate.min_top1_agreement) {
    fail(ErrorKind::quality_gate, "quality gate: top-1 agreement {:.4f} is below {:.4f}: keep the worst layers in a better format",
         result.top1_agreement, *gate.min_top1_agreement);
  }
}

// Source and staged output side by side; the source is also the author of the text unless a file is given.
Json measure_quality(const QuantizeFlags& options, const std::filesystem::path& staged, const QualityGate& gate, Progress& progress) {
  const LoadedModel source = load_model(options.model, progress);
  EvaluateOptions settings;
  settings.ctx = options.gate_ctx;
  settings.windows = options.gate_windows;
  std::vector<TokenId> text;
  if (options.text.empty()) {
    text = sample_text(*source.model, start_token(source), settings.windows, settings.ctx, options.seed, default_pool(), progress);
  } else {
    text = source.tokenizer->encode(read_text_file(options.text));
  }
  if (source.tokenizer->adds_bos()) settings.bos = source.tokenizer->bos();
  const LoadedModel candidate = load_model(staged.string(), progress);
  const EvaluateResult result = evaluate(*candidate.model, source.model.get(), text, settings, default_pool(), progress);
  Json json = quality_json(result);
  json["text"] = options.text.empty() ? fmt::format("sampled from the source (seed {})", options.seed) : options.text;
  hold_against(gate, result);
  return json;
}

// --max-memory bounds the job; two models in memory would break the promise, so the gate needs room for both.
void plan_quality(const QuantizeFlags& options, const Checkpoint& source, QuantizeOptions& job, Progress& progress) {
  if (options.no_quality) {
    if (!job.recipe.gate.empty()) fail(ErrorKind::usage, "--no-quality with a quality gate in the recipe: leave one of them out");
    return;
  }
  if (!source.model) {
    if (!job.recipe.gate.empty()) fail(source.model_refusal_kind, "the quality gate needs to run the model: {}", source.model_refusal);
    progress.note("quality is not measured: " + source.model_refusal);
    return;
  }
  if (job.max_memory > 0) {
    const std::uint64_t needed = 2 * stored_bytes(source) + (std::uint64_t{256} << 20);
    if (needed > job.max_memory) {
      if (!job.recipe.gate.empty()) {
        fail(ErrorKind::resources, "the quality gate needs {} for both models, --max-memory is {}: raise it or drop the gate",
             format_bytes(static_cast<double>(needed)), format_bytes(static_cast<double>(job.max_memory)));
      }
      progress.note(fmt::format("quality is not measured: both models need {}, --max-memory is {}",
                                format_bytes(static_cast<double>(needed)), format_bytes(static_cast<double>(job.max_memory))));
      return;
    }
  }
  job.quality = [&options, gate = job.recipe.gate, &progress](const std::filesystem::path& staged) {
    return measure_quality(options, staged, gate, progress);
  };
}

void show_result(const QuantizeResult& result, const Common& common) {
  if (common.json) {
    Json json = result.report;
    json["output"] = result.output.string();
    json["already_complete"] = result.already_complete;
    json["resumed_tensors"] = result.resumed_tensors;
    json["seconds"] = result.seconds;
    json["peak_memory_bytes"] = result.peak_memory_bytes;
    return print_json(json);
  }
  const Plan& plan = result.plan;
  std::string text;
  if (result.already_complete) text += fmt::format("{} is already there, made by this very job\n", result.output.string());
  text += fmt::format("{}: {} -> {} ({:.3f} bits per weight, {})\n", result.output.string(),
                      format_bytes(static_cast<double>(plan.source_bytes)), format_bytes(static_cast<double>(plan.output_bytes)),
                      plan.bits_per_weight, plan.storage);
  if (!plan.storage_reason.empty()) text += fmt::format("stored as {} because {}\n", plan.storage, plan.storage_reason);
  for (const Substitution& s : plan.substitutions) {
    text += fmt::format("substituted: {} {} -> {}: {}\n", s.tensor, s.asked, s.given, s.reason);
  }
  for (const DroppedTensor& d : plan.dropped) text += fmt::format("dropped: {}: {}\n", d.tensor, d.reason);
  std::int64_t clipped = 0, zero_cells = 0;
  for (const TensorOutcome& tensor : result.tensors) {
    clipped += tensor.clipped;
    zero_cells += tensor.zero_cells;
  }
  text += fmt::format("clipped values {}, all-zero scale cells {}\n", clipped, zero_cells);
  for (const std::string& worst : result.verification.worst(5)) text += "worst tensor: " + worst + "\n";
  if (const auto quality = result.report.find("quality"); quality != result.report.end() && quality->is_object() && quality->contains("kl_mean")) {
    text += fmt::format("quality ({}): perplexity ratio {:.5f}, mean KL {:.6f}, top-1 agreement {:.2f} %\n",
                        quality->at("text").get<std::string>(), quality->at("perplexity_ratio").get<double>(),
                        quality->at("kl_mean").get<double>(), 100 * quality->at("top1_agreement").get<double>());
  }
  text += fmt::format("{:.1f} s, {} at most in memory{}\n", result.seconds, format_bytes(static_cast<double>(result.peak_memory_bytes)),
                      result.resumed_tensors > 0 ? fmt::format(", {} tensors taken over from an earlier run", result.resumed_tensors) : "");
  print(text);
}

}  // namespace

void add_quantize(CLI::App& app, Common& common) {
  auto options = std::make_shared<QuantizeFlags>();
  CLI::App* command = app.add_subcommand("quantize", "Quantize, verify, measure; resumes after a kill");
  add_plan_flags(*command, *options);
  command->add_option("-o,--output", options->output, "The folder to make");
  command->add_flag("--force", options->force, "Replace a finished output; discard a partial one of another job");
  command->add_flag("--dry-run", options->dry_run, "Print the plan and stop");
  command->add_flag("--no-quality", options->no_quality, "Do not compare the output with the source by running both");
  command->add_option("--text", options->text, "Text for the quality measurement (default: sampled from the source)");
  command->add_option("--quality-ctx", options->gate_ctx, "Tokens a window of the quality measurement")->capture_default_str();
  command->add_option("--quality-windows", options->gate_windows, "Windows of the quality measurement")->capture_default_str();
  command->add_option("--max-kl", options->max_kl, "Quality gate: the largest mean KL that is accepted");
  command->add_option("--max-perplexity-ratio", options->max_ratio, "Quality gate: the largest perplexity ratio that is accepted");
  command->add_option("--max-loss", options->max_loss, "Quality gate: perplexity may grow by this much, such as 1%")
      ->excludes("--max-perplexity-ratio");
  command->add_option("-s,--seed", options->seed, "Seed of the sampled text")->capture_default_str();
  add_common(*command, common);
  command->callback([options, &common] {
    apply(common);
    QuantizeOptions job = job_options(*options);
    const Checkpoint source = open_checkpoint(options->model);
    if (options->dry_run) return show_plan(plan_quantization(source, job), common);
    if (options->output.empty()) fail(ErrorKind::usage, "quantize: give the output folder with -o");
    const auto progress = make_progress(common);
    plan_calibration(*options, source, job);
    plan_quality(*options, source, job, *progress);
    const QuantizeResult result = quantize_checkpoint(source, options->output, job, default_pool(), *progress);
    // Not part of the job: it holds the command, and the same job gives the same report.json whatever the command was.
    write_text_file(result.output / "report.html", quantize_html(result.report, common.command_line));
    show_result(result, common);
  });
}

void add_convert(CLI::App& app, Common& common) {
  auto options = std::make_shared<QuantizeFlags>();
  CLI::App* command = app.add_subcommand("convert", "Write a checkpoint in plain bf16, fp16 or fp32 (dequantizes)");
  command->add_option("MODEL,-m,--model", options->model, "A checkpoint")->required();
  command->add_option("-o,--output", options->output, "The folder to make")->required();
  command->add_option("--to", options->to, "bf16, fp16 or fp32")->required();
  command->add_option("--max-memory", options->max_memory, "Never be larger than this in memory, such as 512M or 2G");
  command->add_flag("--strict", options->strict, "Any substitution or lossy drop is an error");
  command->add_flag("--force", options->force, "Replace a finished output; discard a partial one of another job");
  command->add_flag("--allow-lossy-f16", options->lossy_f16, "Let values beyond FP16's range be saturated (they are counted)");
  add_common(*command, common);
  command->callback([options, &common] {
    apply(common);
    QuantizeOptions job;
    job.recipe = dense_recipe(options->to);
    job.strict = options->strict;
    job.force = options->force;
    job.allow_lossy_f16 = options->lossy_f16;
    job.version = HALFTONE_VERSION;
    if (!options->max_memory.empty()) job.max_memory = static_cast<std::uint64_t>(parse_size(options->max_memory, "--max-memory"));
    const auto progress = make_progress(common);
    show_result(quantize_checkpoint(open_checkpoint(options->model), options->output, job, default_pool(), *progress), common);
  });
}

}  // namespace halftone::cli
