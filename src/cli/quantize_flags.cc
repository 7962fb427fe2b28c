#include "cli/quantize_flags.h"

#include "base/error.h"
#include "base/file.h"
#include "cli/quality.h"
#include "evaluate/divergence.h"
#include "quantize/calibrated_method.h"

namespace halftone::cli {

void add_plan_flags(CLI::App& command, QuantizeFlags& options) {
  command.add_option("MODEL,-m,--model", options.model, "A checkpoint")->required();
  command.add_option("--recipe", options.recipe, "A recipe file, or the name of a preset");
  command.add_option("--to", options.to,
                     "A preset (fp8, w8a8, int4, mxfp4, nvfp4, ...) or one scheme for every linear layer");
  command.add_flag("--weights-only", options.weights_only, "Leave activations in full precision");
  command.add_flag("--strict", options.strict, "Any substitution or lossy drop is an error");
  command.add_option("--max-memory", options.max_memory, "Never be larger than this in memory, such as 512M or 2G");
  command
      .add_option("--method", options.methods, "How codes are chosen: rtn, or calibrated: gptq; gptaq,gptq,quantease")
      ->delimiter(',');
  command.add_option("--calibration", options.calibration,
                     "Text or JSON lines for calibrated methods (default: sampled from the model)");
  command.add_option("--calibration-samples", options.calibration_samples,
                     "Sequences (default: 48 of a file, 16 sampled)");
  command.add_option("--calibration-length", options.calibration_length, "Tokens a sequence (default: 512)");
  command.add_flag("--calibration-chat", options.calibration_chat, "Put JSON lines into the chat template");
  command.add_option("--storage", options.storage, "How the output is written: auto, compressed-tensors or halftone")
      ->check(CLI::IsMember({"auto", "compressed-tensors", "halftone"}))
      ->capture_default_str();
}

void take_calibration(const QuantizeFlags& options, Recipe& recipe) {
  if (!options.methods.empty()) {
    make_calibrated_methods(options.methods);  // Error(usage)
    recipe.methods = options.methods;
  }
  const bool said = !options.calibration.empty() || options.calibration_samples != 0 ||
                    options.calibration_length != 0 || options.calibration_chat;
  if (!needs_calibration(recipe.methods)) {
    if (said) fail(ErrorKind::usage, "--calibration has no use: method rtn only rounds (give --method, such as gptq)");
    return;
  }
  Recipe::Calibration& calibration = recipe.calibration;
  if (options.calibration_samples < 0 || options.calibration_length < 0) {
    fail(ErrorKind::usage, "--calibration-samples and --calibration-length: expected positive numbers");
  }
  if (!options.calibration.empty()) calibration.dataset = options.calibration;
  if (calibration.dataset == "self") calibration.dataset.clear();
  if (options.calibration_samples > 0) calibration.samples = options.calibration_samples;
  if (options.calibration_length > 0) calibration.length = options.calibration_length;
  calibration.chat = calibration.chat || options.calibration_chat;
  if (calibration.samples == 0) calibration.samples = calibration.dataset.empty() ? 16 : 48;
  if (calibration.length == 0) calibration.length = 512;
}

void plan_calibration(const QuantizeFlags& options, const Checkpoint& source, QuantizeOptions& job) {
  if (!needs_calibration(job.recipe.methods)) return;
  const Recipe::Calibration calibration = job.recipe.calibration;
  if (!calibration.dataset.empty()) {
    job.calibration_identity = read_text_file(calibration.dataset);
    job.calibration = [&source, calibration](Progress&) {
      return load_calibration(source, *open_tokenizer(source), calibration.dataset,
                              {.samples = calibration.samples, .length = calibration.length, .chat = calibration.chat});
    };
    return;
  }
  job.calibration_identity = "sampled";
  job.calibration = [&options, calibration](Progress& progress) {
    const LoadedModel model = load_model(options.model, progress);
    std::vector<TokenId> tokens = sample_text(*model.model, start_token(model), calibration.samples, calibration.length,
                                              calibration.seed, default_pool(), progress);
    return calibration_of_tokens(std::move(tokens), calibration.length, model.tokenizer->vocabulary_size(),
                                 fmt::format("sampled from the model (seed {})", calibration.seed));
  };
}

QuantizeOptions job_options(const QuantizeFlags& options) {
  if (options.recipe.empty() == options.to.empty()) {
    fail(ErrorKind::usage, "give --recipe FILE or --to SCHEME, one of them (halftone quantize --help)");
  }
  QuantizeOptions job;
  job.recipe = options.recipe.empty() ? recipe_for(options.to) : load_recipe(options.recipe);
  if (options.max_kl) job.recipe.gate.max_kl = options.max_kl;
  if (options.max_loss) job.recipe.gate.max_perplexity_ratio = 1 + parse_loss(*options.max_loss);
  if (options.max_ratio) job.recipe.gate.max_perplexity_ratio = options.max_ratio;
  take_calibration(options, job.recipe);
  job.weights_only = options.weights_only;
  job.strict = options.strict;
  job.force = options.force;
  job.allow_lossy_f16 = options.lossy_f16;
  job.storage = options.storage;
  job.version = HALFTONE_VERSION;
  if (!options.max_memory.empty()) {
    job.max_memory = static_cast<std::uint64_t>(parse_size(options.max_memory, "--max-memory"));
  }
  return job;
}

void show_plan(const Plan& plan, const Common& common) {
  if (common.json) return print_json(to_json(plan));
  print(to_text(plan));
}

}  // namespace halftone::cli
