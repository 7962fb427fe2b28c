// Sampling and the token-by-token loop.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace halftone {

struct SamplingOptions {
  float temperature = 0.0F;  // 0 = greedy (lowest id on ties)
  std::int64_t top_k = 0;    // 0 = off
  float top_p = 1.0F, min_p = 0.0F;
  float repetition_penalty = 1.0F;  // Keskar et al. 2019, over the last repetition_window tokens
  std::int64_t repetition_window = 64;
  std::uint64_t seed = 0;
};
void check(const SamplingOptions& options);  // Error(usage) names the flag and its range

class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);
  // logits is changed. `recent`: tokens so far (prompt included). Order: penalty, temperature, top-k, top-p, min-p.
  // Error(bad_input) if logits hold a NaN or plus infinity.
  TokenId sample(std::span<float> logits, std::span<const TokenId> recent);

 private:
  SamplingOptions options_;
  CounterRng rng_;
};

struct GenerateOptions {
  SamplingOptions sampling;
  std::int64_t max_tokens = 128;  // negative: as many as the context holds
  std::vector<std::string> stop;  // never part of the text, also across tokens
  std::int64_t prefill_chunk = 256;
  bool ignore_eos = false;
};

struct GenerateResult {
  std::vector<TokenId> tokens;  // without the end token; all but perhaps the last are in the cache
  std::string text;             // what emit got, in one piece
  std::string finish_reason;    // "stop" (end token or stop string), "length", "context", "cancelled" (by emit)
  std::int64_t prompt_tokens = 0;
  double prefill_seconds = 0, decode_seconds = 0;
};

// Feeds the prompt into the cache (which may already hold earlier turns) and generates. `emit` gets complete UTF-8 text
// as it becomes certain (held back while it could still be part of a stop string); returning false stops. Prompt and
// answer together take at most cache.max_tokens() places. Error(usage) for an empty prompt and for one that does not fit
// (both numbers).
GenerateResult generate(const Model& model, const Tokenizer& tokenizer, KvCache& cache, std::span<const TokenId> prompt,
                        const GenerateOptions& options, ThreadPool& pool,
                        const std::function<bool(std::string_view)>& emit = {});

}  // namespace halftone
