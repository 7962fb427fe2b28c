#include "cli/quality.h"

#include <fmt/format.h>

#include <algorithm>

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

}  // namespace halftone::cli
