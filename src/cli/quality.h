// How an evaluation is printed and written, the same in `eval` and in the quality gate of `quantize`.
#pragma once

#include "cli/common.h"
#include "evaluate/divergence.h"

namespace halftone::cli {

Json quality_json(const EvaluateResult& result);
std::string quality_text(const EvaluateResult& result);

// "1%" or "0.01" -> 0.01: how much perplexity may grow. Error(usage) for anything else.
double parse_loss(const std::string& text);
// Error(quality_gate) with the blocks that lose most if the perplexity ratio is above 1 + max_loss.
void hold_loss(double max_loss, const EvaluateResult& result);
// "model.layers.3 (cosine 0.98123, SQNR 14.2 dB), ...": the blocks where the error grows most, "" without layers.
std::string blamed_layers(const EvaluateResult& result);

}  // namespace halftone::cli
