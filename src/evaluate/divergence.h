// How far a model's predictions are from the text and from a reference model's predictions, window by window, both
// models side by side: no file of logits.
//
// Protocol (that of llama.cpp's perplexity tool, so that figures compare): the whole text tokenized at once, windows of
// ctx tokens that do not overlap, the first token of a window replaced by BOS only where the tokenizer adds one; scored
// are the predictions made at positions ctx/2 .. ctx-2.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/threads.h"
#include "model/model.h"

namespace halftone {

struct EvaluateOptions {
  std::int64_t ctx = 512;
  std::int64_t windows = 0;                 // at most this many; 0 = all that the text holds
  std::optional<std::int32_t> bos;          // replaces the first token of each window
  ElementFormat kv_format = fp32_format();  // of the candidate; the reference runs with fp32
  bool layers = true;                       // output cosine and SQNR of every block, over the first window
};

struct LayerDivergence {
  std::string name;          // "model.layers.3"
  double output_cosine = 1;  // mean over positions of cos(reference output, candidate output)
  double sqnr_db = 0;        // 10 log10(sum of squares of the reference / of the difference)
};

struct EvaluateResult {
  std::int64_t ctx = 0, windows = 0, tokens = 0;  // tokens: predictions scored
  std::int64_t unused_tokens = 0;                 // of the text, after the last window
  double perplexity = 0;                          // exp of the mean negative log-likelihood
  double nll_standard_error = 0;                  // of the mean negative log-likelihood

  bool compared = false;  // the rest is set only with a reference
  double reference_perplexity = 0, perplexity_ratio = 0;
  double kl_mean = 0, kl_p99 = 0;  // KL(reference || candidate) in nats, over scored positions
  double top1_agreement = 0;       // share of positions with the same arg max
  double logit_cosine = 0;         // mean cosine of the logit vectors
  std::vector<LayerDivergence> layers;
};

// Error(bad_input) if the text holds no whole window (both counts), Error(usage) for a senseless ctx.
// Error(bad_input) if a logit is not finite, with window and position.
EvaluateResult evaluate(const Model& candidate, const Model* reference, std::span<const std::int32_t> text,
                        const EvaluateOptions& options, ThreadPool& pool, Progress& progress = no_progress());

// `windows` sequences of `ctx` tokens each, sampled from the model at temperature 1, one after the other in one list:
// a test text for which nothing has to be found first. The first token is `start` (BOS, or the end-of-text token).
std::vector<std::int32_t> sample_text(const Model& model, std::int32_t start, std::int64_t windows, std::int64_t ctx,
                                      std::uint64_t seed, ThreadPool& pool, Progress& progress = no_progress());

}  // namespace halftone
