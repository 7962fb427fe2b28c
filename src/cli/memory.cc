#include <cmath>

#include "base/error.h"
#include "cli/common.h"
#include "numeric/scheme.h"

namespace halftone::cli {
namespace {

double parse_parameters(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const std::string suffix = end;
  double factor = 0;
  if (suffix.empty()) factor = 1;
  if (suffix == "K" || suffix == "k") factor = 1e3;
  if (suffix == "M" || suffix == "m") factor = 1e6;
  if (suffix == "B" || suffix == "b") factor = 1e9;
  if (suffix == "T" || suffix == "t") factor = 1e12;
  if (end == text.c_str() || factor == 0 || !(number > 0) || number * factor > 1e18) {
    fail(ErrorKind::usage, "--params {}: expected a number of parameters such as 135M, 7B or 1.6T", text);
  }
  return number * factor;
}

// Bits a weight of a large matrix (rows long enough that scales a row cost nothing worth saying).
double bits_of(const std::string& scheme) { return bits_per_weight(parse_scheme(scheme), 16384, 16384); }

struct Row {
  const char* label;
  const char* scheme;
};
constexpr Row kRows[] = {{"fp32", "fp32"}, {"bf16", "bf16"}, {"fp16", "fp16"}, {"fp8 (channel)", "fp8_e4m3:channel"},
                         {"int8 (channel)", "int8:channel"}, {"mxfp8", "mxfp8"}, {"q8_0", "q8_0"}, {"int6:g64", "int6:g64"},
                         {"int4:g128", "int4:g128"}, {"int4:g64:asym", "int4:g64:asym"}, {"nvfp4", "nvfp4"}, {"mxfp4", "mxfp4"},
                         {"int3:g64", "int3:g64"}, {"int2:g64", "int2:g64"}};

// Largest set of FP32 buffers that live together while `batch` rows go through a layer: residual, normed, q, k, v,
// attention output, gate, up, and the block of logits.
double activation_bytes(const ModelConfig& c, double rows) {
  const double q = static_cast<double>(c.heads * c.head_dim), kv = static_cast<double>(c.kv_heads * c.head_dim);
  const double layer = 2.0 * static_cast<double>(c.hidden) + 2.0 * q + 2.0 * kv + 2.0 * static_cast<double>(c.ffn);
  return 4.0 * (rows * layer + static_cast<double>(c.vocabulary));
}

}  // namespace

void add_memory(CLI::App& app, Common& common) {
  struct Options {
    std::string model, parameters, kv = "bf16";
    std::int64_t ctx = 0, batch = 1;
    bool optimizer = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("memory", "Weights, KV cache, activations, optimizer, by format");
  command->add_option("MODEL", options->model, "A checkpoint: adds KV cache and activations");
  command->add_option("--params", options->parameters, "A number of parameters, such as 175B, instead of a checkpoint");
  command->add_option("-c,--ctx", options->ctx, "Context of one sequence (default: the model's)");
  command->add_option("-b,--batch", options->batch, "Sequences at once")->capture_default_str();
  command->add_option("--kv", options->kv, "Format of the KV cache")->capture_default_str();
  add_common(*command, common);
  command->callback([options, &common] {
    if (options->model.empty() == options->parameters.empty()) {
      fail(ErrorKind::usage, "memory: give a MODEL or --params N, one of them");
    }
    Json json;
    double parameters = 0;
    std::string extra;
    if (!options->parameters.empty()) {
      parameters = parse_parameters(options->parameters);
    } else {
      const Checkpoint checkpoint = open_checkpoint(options->model);
      for (const TensorInfo& info : checkpoint.tensors->tensors()) parameters += static_cast<double>(info.elements());
      const ModelConfig& config = runnable_config(checkpoint);
      const std::int64_t ctx = options->ctx > 0 ? options->ctx : config.context;
      if (options->batch < 1) fail(ErrorKind::usage, "--batch {}: expected a positive number", options->batch);
      const auto stored = static_cast<double>(stored_bytes(checkpoint));
      const double kv = static_cast<double>(KvCache::bytes_for(config, kv_format_or_fail(options->kv), ctx)) *
                        static_cast<double>(options->batch);
      const double activations = activation_bytes(config, static_cast<double>(std::max<std::int64_t>(256, options->batch)));
      json["stored_bytes"] = stored;
      json["ctx"] = ctx;
      json["batch"] = options->batch;
      json["kv_format"] = options->kv;
      json["kv_cache_bytes"] = kv;
      json["activation_bytes"] = activations;
      json["total_bytes_as_stored"] = stored + kv + activations;
      extra = fmt::format("\nas stored        {}\nKV cache         {} ({}, {} tokens x {} sequences)\nactivations      {} (prefill of 256 rows)\ntogether         {}\n",
                          format_bytes(stored), format_bytes(kv), options->kv, ctx, options->batch, format_bytes(activations),
                          format_bytes(stored + kv + activations));
    }
    json["parameters"] = parameters;
    Json weights = Json::object();
    std::vector<std::vector<std::string>> rows{{"weights", "bits/weight", "size"}};
    for (const Row& row : kRows) {
      const double bits = bits_of(row.scheme);
      const double bytes = parameters * bits / 8.0;
      weights[row.label] = {{"bits_per_weight", bits}, {"bytes", bytes}};
      rows.push_back({row.label, fmt::format("{:.3g}", bits), format_bytes(bytes)});
    }
    json["weights"] = weights;
    // Mixed-precision AdamW: BF16 weights and gradients, FP32 master weights and two FP32 moments.
    const double optimizer = parameters * (2 + 2 + 4 + 8);
    json["training_adamw_bytes"] = optimizer;
    if (common.json) return print_json(json);
    print(fmt::format("{:.4g} parameters\n\n{}{}\ntraining         {} (AdamW: BF16 weights and gradients, FP32 master weights and moments; without activations)\n",
                      parameters, format_table(rows), extra, format_bytes(optimizer)));
  });
}

}  // namespace halftone::cli
