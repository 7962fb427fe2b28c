// halftone plan: what quantize would do; with a budget, which formats to use.
#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "base/file.h"
#include "cli/quality.h"
#include "cli/quantize_flags.h"
#include "pipeline/search.h"

namespace halftone::cli {
namespace {

struct SearchFlags {
  std::optional<double> target_bits;
  std::string text, output, sensitivity;
  std::optional<std::string> max_bytes, max_loss;
  std::vector<std::string> candidates;
  std::int64_t windows = 8;
  bool wanted() const { return target_bits || max_bytes || max_loss; }
};

// A text to hold a promise of loss against: its even windows decide, its odd ones verify.
struct LossText {
  EvaluateOptions settings;
  std::vector<TokenId> decide, verify;
};

LossText loss_text(const SearchFlags& flags, const LoadedModel& source) {
  LossText out;
  out.settings.ctx = 512;
  if (source.tokenizer->adds_bos()) out.settings.bos = source.tokenizer->bos();
  out.settings.layers = false;
  const std::vector<TokenId> tokens = source.tokenizer->encode(read_text_file(flags.text));
  const std::int64_t held = std::ssize(tokens) / out.settings.ctx, taken = std::min(held, 2 * flags.windows);
  if (taken < 2)
    fail(ErrorKind::bad_input, "{}: too short to decide and verify with windows of {} tokens", flags.text,
         out.settings.ctx);
  for (std::int64_t i = 0; i < taken; ++i) {
    const auto first = tokens.begin() + held * i / taken * out.settings.ctx;
    std::vector<TokenId>& half = i % 2 == 0 ? out.decide : out.verify;
    half.insert(half.end(), first, first + out.settings.ctx);
  }
  return out;
}

// The smallest point of the front whose perplexity, rounded to nearest, holds the loss on one half of the text; what
// the other half says is returned with it.
std::pair<Allocation, Json> smallest_within(double max_loss, const SearchFlags& flags, const LoadedModel& source,
                                            const SensitivityReport& report, const std::vector<Allocation>& front,
                                            Progress& progress) {
  const LossText text = loss_text(flags, source);
  const auto ratio = [&](const Allocation& allocation, const std::vector<TokenId>& half) {
    const auto weights = allocated_weights(source.checkpoint, report, allocation, default_pool());
    const Model candidate(*source.checkpoint.model, *weights, default_pool());
    return evaluate(candidate, source.model.get(), half, text.settings, default_pool(), progress);
  };
  std::size_t low = 0, high = front.size() - 1;  // high holds, or nothing does
  EvaluateResult best = ratio(front[high], text.decide);
  if (best.perplexity_ratio > 1 + max_loss) {
    fail(ErrorKind::quality_gate,
         "even {:.3f} bits a weight lose {:.2f} % of perplexity, allowed are {:.2f} %: give candidates with more bits",
         front[high].bits, 100 * (best.perplexity_ratio - 1), 100 * max_loss);
  }
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    const EvaluateResult result = ratio(front[middle], text.decide);
    progress.note(
        fmt::format("{:.3f} bits a weight: perplexity ratio {:.5f}", front[middle].bits, result.perplexity_ratio));
    if (result.perplexity_ratio <= 1 + max_loss) {
      high = middle;
      best = result;
    } else {
      low = middle + 1;
    }
  }
  const EvaluateResult verified = ratio(front[high], text.verify);
  Json json{{"max_loss", max_loss},
            {"perplexity_ratio", best.perplexity_ratio},
            {"held_out_perplexity_ratio", verified.perplexity_ratio},
            {"held_out_tokens", verified.tokens},
            {"text", flags.text},
            {"holds", verified.perplexity_ratio <= 1 + max_loss}};
  return {front[high], std::move(json)};
}

// From the file, if there is one already; else measured, and kept there.
SensitivityReport sensitivities(const SearchFlags& flags, const LoadedModel& source,
                                const std::vector<Scheme>& candidates, const QuantizeOptions& job, Progress& progress) {
  if (!flags.sensitivity.empty() && std::filesystem::exists(flags.sensitivity)) {
    const Json json = Json::parse(read_text_file(flags.sensitivity), nullptr, false);
    SensitivityReport report = sensitivity_from_json(json, flags.sensitivity);
    if (report.candidates != candidates) {
      fail(ErrorKind::usage, "{}: was measured for other candidates; give the same --candidates or another file",
           flags.sensitivity);
    }
    for (const Sensitivity& item : report.matrices) {
      const auto info = source.checkpoint.weights->find(item.module);
      if (!info || info->rows != item.rows || info->cols != item.cols) {
        fail(ErrorKind::usage, "{}: was measured on another model ('{}' does not fit)", flags.sensitivity, item.module);
      }
    }
    progress.note(fmt::format("sensitivities are taken from {}", flags.sensitivity));
    return report;
  }
  const CalibrationData data = job.calibration(progress);
  for (const std::string& note : data.notes) progress.note(note);
  SensitivityReport report = measure_sensitivity(source.checkpoint, data, candidates, default_pool(), progress);
  if (!flags.sensitivity.empty()) write_text_file(flags.sensitivity, to_json(report).dump() + "\n");
  return report;
}

void search(const QuantizeFlags& options, const SearchFlags& flags, const Common& common) {
  if (!options.to.empty() || !options.recipe.empty()) {
    fail(ErrorKind::usage,
         "--to and --recipe say the formats; --target-bits, --max-bytes and --max-loss search for them: leave one out");
  }
  if (int{flags.target_bits.has_value()} + int{flags.max_bytes.has_value()} + int{flags.max_loss.has_value()} != 1) {
    fail(ErrorKind::usage, "give one of --target-bits, --max-bytes and --max-loss");
  }
  std::optional<double> max_loss;
  if (flags.max_loss) {
    max_loss = parse_loss(*flags.max_loss);
    if (flags.text.empty())
      fail(ErrorKind::usage, "--max-loss is measured on a text: give --text FILE, not the one you will judge by");
  }
  std::vector<Scheme> candidates;
  for (const std::string& name : flags.candidates) candidates.push_back(parse_scheme(name));
  if (candidates.empty()) candidates = default_candidates();

  const auto progress = make_progress(common);
  const LoadedModel source = load_model(options.model, *progress);
  QuantizeFlags with_calibration = options;
  if (with_calibration.methods.empty()) with_calibration.methods = {"gptq"};
  Recipe asked;
  take_calibration(with_calibration, asked);
  QuantizeOptions job;
  job.recipe = asked;
  plan_calibration(options, source.checkpoint, job);
  const SensitivityReport report = sensitivities(flags, source, candidates, job, *progress);
  const std::vector<Allocation> front = pareto_front(report);

  Allocation chosen;
  Json verdict;
  std::string goal;
  if (max_loss) {
    std::tie(chosen, verdict) = smallest_within(*max_loss, flags, source, report, front, *progress);
    goal = fmt::format("perplexity grows by at most {:.2f} % on {}", 100 * *max_loss, flags.text);
  } else {
    const double bytes = flags.target_bits ? *flags.target_bits / 8 * static_cast<double>(report.parameters)
                                           : static_cast<double>(parse_size(*flags.max_bytes, "--max-bytes"));
    if (!(bytes > 0)) fail(ErrorKind::usage, "--target-bits {}: expected a positive number", *flags.target_bits);
    chosen = allocate(report, static_cast<std::uint64_t>(bytes));
    goal = flags.target_bits ? fmt::format("at most {} bits a weight", *flags.target_bits)
                             : fmt::format("at most {} of tensors", *flags.max_bytes);
  }
  Recipe recipe =
      recipe_of(report, chosen, fmt::format("search: {}", goal),
                fmt::format("{:.3f} bits a weight, predicted KL {:.5f}, from losses measured layer by layer",
                            chosen.bits, chosen.predicted_kl));
  recipe.methods = options.methods.empty() ? std::vector<std::string>{"gptq"} : options.methods;
  recipe.calibration = asked.calibration;
  if (!flags.output.empty()) write_text_file(flags.output, to_json(recipe).dump(2) + "\n");

  job.recipe = recipe;
  const Plan plan = plan_quantization(source.checkpoint, job);
  if (common.json) {
    Json json = to_json(plan);
    json["recipe"] = to_json(recipe);
    json["search"]["pareto"] = to_json(front);
    json["search"]["bits_per_weight"] = chosen.bits;
    json["search"]["predicted_kl"] = chosen.predicted_kl;
    json["search"]["verdict"] = verdict;
    print_json(json);
  } else {
    print(to_text(plan));
    std::vector<std::vector<std::string>> rows{{"bits per weight", "MB", "predicted KL"}};
    const std::size_t step = std::max<std::size_t>(1, front.size() / 12);
    for (std::size_t i = 0; i < front.size(); i += step) {
      rows.push_back({fmt::format("{:.3f}", front[i].bits),
                      fmt::format("{:.1f}", static_cast<double>(front[i].bytes) / 1e6),
                      fmt::format("{:.5f}", front[i].predicted_kl)});
    }
    print("\nWhat bytes buy (each matrix rounded alone, losses added; calibrated methods do better)\n" +
          format_table(rows));
    print(fmt::format("\nchosen: {:.3f} bits a weight, {}, predicted KL {:.5f}\n", chosen.bits,
                      format_bytes(static_cast<double>(chosen.bytes)), chosen.predicted_kl));
    if (!verdict.is_null()) {
      print(fmt::format(
          "perplexity ratio {:.5f} where it was decided, {:.5f} on the half that was held out: the promise {}\n",
          verdict["perplexity_ratio"].get<double>(), verdict["held_out_perplexity_ratio"].get<double>(),
          verdict["holds"].get<bool>() ? "holds" : "does not hold there"));
    }
    if (flags.output.empty())
      print("give -o FILE to write the recipe\n");
    else
      print(fmt::format("recipe written to {}: halftone quantize {} --recipe {} -o OUT\n", flags.output,
                        quoted(options.model), quoted(flags.output)));
  }
  if (!verdict.is_null() && !verdict["holds"].get<bool>()) {
    fail(ErrorKind::quality_gate,
         "the held-out half of {} loses {:.2f} %, allowed are {:.2f} %: ask for a little less, or give more text",
         flags.text, 100 * (verdict["held_out_perplexity_ratio"].get<double>() - 1), 100 * *max_loss);
  }
}

}  // namespace

void add_plan(CLI::App& app, Common& common) {
  auto options = std::make_shared<QuantizeFlags>();
  auto flags = std::make_shared<SearchFlags>();
  CLI::App* command =
      app.add_subcommand("plan", "What quantize would do, from headers only; with a budget: which formats to use");
  add_plan_flags(*command, *options);
  command->add_option("--target-bits", flags->target_bits,
                      "Search: the best formats with so many bits a weight, all tensors counted");
  command->add_option("--max-bytes", flags->max_bytes,
                      "Search: the best formats within so many bytes of tensors, such as 80M");
  command->add_option("--max-loss", flags->max_loss,
                      "Search: the smallest formats whose perplexity grows by at most this, such as 1%");
  command->add_option("--text", flags->text, "Text that --max-loss is decided and verified on");
  command->add_option("--windows", flags->windows, "Windows of 512 tokens to decide on, and as many to verify")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--candidates", flags->candidates, "Schemes to choose from (default: int2 to int8 in groups of 64)")
      ->delimiter(',');
  command->add_option("--sensitivity", flags->sensitivity,
                      "Keep what was measured in this file, or take it from there");
  command->add_option("-o,--output", flags->output, "Write the recipe that was found to this file");
  add_common(*command, common);
  command->callback([options, flags, &common] {
    apply(common);
    if (flags->wanted()) return search(*options, *flags, common);
    if (!flags->output.empty() || !flags->text.empty() || !flags->candidates.empty() || !flags->sensitivity.empty()) {
      fail(ErrorKind::usage,
           "-o, --text, --candidates and --sensitivity belong to a search: give --target-bits, --max-bytes or "
           "--max-loss");
    }
    show_plan(plan_quantization(open_checkpoint(options->model), job_options(*options)), common);
  });
}

}  // namespace halftone::cli
