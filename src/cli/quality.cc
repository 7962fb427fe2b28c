#include "cli/quality.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "base/error.h"

namespace halftone::cli {

Json quality_json(const EvaluateResult& result) {
  Json json{{"perplexity", result.perplexity},
            {"nll_standard_error", result.nll_standard_error},
            {"tokens", result.tokens},
            {"ctx", result.ctx},
            {"windows", result.windows},
            {"unused_tokens", result.unused_tokens}};
  if (!result.compared) return json;
  json["reference_perplexity"] = result.reference_perplexity;
  json["perplexity_ratio"] = result.perplexity_ratio;
  json["kl_mean"] = result.kl_mean;
  json["kl_p99"] = result.kl_p99;
  json["top1_agreement"] = result.top1_agreement;
  json["logit_cosine"] = result.logit_cosine;
  json["layers"] = Json::array();
  for (const LayerDivergence& layer : result.layers) {
    json["layers"].push_back({{"name", layer.name}, {"output_cosine", layer.output_cosine}, {"sqnr_db", layer.sqnr_db}});
  }
  return json;
}

std::string quality_text(const EvaluateResult& result) {
  std::string text = fmt::format("perplexity          {:.4f} ({} tokens scored in {} windows of {}; nll ± {:.4f})\n",
                                 result.perplexity, result.tokens, result.windows, result.ctx, result.nll_standard_error);
  if (!result.compared) return text;
  text += fmt::format("reference           {:.4f}\n", result.reference_perplexity);
  text += fmt::format("perplexity ratio    {:.5f}\n", result.perplexity_ratio);
  text += fmt::format("KL mean, 99 %       {:.6f}, {:.6f}\n", result.kl_mean, result.kl_p99);
  text += fmt::format("top-1 agreement     {:.2f} %\n", 100 * result.top1_agreement);
  text += fmt::format("logit cosine        {:.6f}\n", result.logit_cosine);
  if (!result.layers.empty()) {
    const auto worst = std::min_element(result.layers.begin(), result.layers.end(), [](const auto& a, const auto& b) {
      return a.output_cosine < b.output_cosine;
    });
    text += fmt::format("worst layer         {} (output cosine {:.6f}, SQNR {:.1f} dB)\n", worst->name,
                        worst->output_cosine, worst->sqnr_db);
  }
  return text;
}

double parse_loss(const std::string& text) {
  const bool percent = text.ends_with('%');
  const char* end = text.data() + text.size() - (percent ? 1 : 0);
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || !std::isfinite(value) || value < 0) {
    fail(ErrorKind::usage, "--max-loss '{}': expected a share such as 1% or 0.01", text);
  }
  return percent ? value / 100 : value;
}

std::string blamed_layers(const EvaluateResult& result) {
  // A block hands its input's error on, so what counts is how far each one falls below the one before.
  struct Fall {
    double loss;
    const LayerDivergence* layer;
  };
  std::vector<Fall> falls;
  double before = 1;
  for (const LayerDivergence& layer : result.layers) {
    falls.push_back({before - layer.output_cosine, &layer});
    before = layer.output_cosine;
  }
  std::stable_sort(falls.begin(), falls.end(), [](const Fall& a, const Fall& b) { return a.loss > b.loss; });
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, falls.size()); ++i) {
    const LayerDivergence& layer = *falls[i].layer;
    text += fmt::format("{}{} (cosine {:.5f}, SQNR {:.1f} dB)", text.empty() ? "" : ", ", layer.name, layer.output_cosine, layer.sqnr_db);
  }
  return text;
}

void hold_loss(double max_loss, const EvaluateResult& result) {
  if (!result.compared || result.perplexity_ratio <= 1 + max_loss) return;
  const std::string layers = blamed_layers(result);
  const std::string worst =
      layers.empty() ? "; keep more layers in a better format"
                     : fmt::format("; most is lost in {}; a --recipe with a rule {{\"match\": \"{}.*\", \"keep\": true}} spares the worst of them",
                                   layers, layers.substr(0, layers.find(' ')));
  fail(ErrorKind::quality_gate, "quality gate: perplexity grew by {:.2f} %, allowed are {:.2f} %{}",
       100 * (result.perplexity_ratio - 1), 100 * max_loss, worst);
}

}  // namespace halftone::cli
