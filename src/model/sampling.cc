#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "model/generate.h"

namespace halftone {
namespace {

struct Candidate {
  float logit;
  TokenId id;
};

bool likelier(const Candidate& a, const Candidate& b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; }

void penalize(std::span<float> logits, std::span<const TokenId> recent, const SamplingOptions& options) {
  const auto window = static_cast<std::size_t>(options.repetition_window);
  if (options.repetition_penalty == 1.0F || window == 0) return;
  if (recent.size() > window) recent = recent.last(window);
  std::unordered_set<TokenId> seen;
  for (const TokenId id : recent) {
    if (id < 0 || static_cast<std::size_t>(id) >= logits.size() || !seen.insert(id).second) continue;
    float& logit = logits[static_cast<std::size_t>(id)];
    logit = logit > 0 ? logit / options.repetition_penalty : logit * options.repetition_penalty;
  }
}

}  // namespace

void check(const SamplingOptions& o) {
  if (!(o.temperature >= 0) || !std::isfinite(o.temperature)) {
    fail(ErrorKind::usage, "--temp {}: must be 0 (greedy) or a positive number", o.temperature);
  }
  if (o.top_k < 0) fail(ErrorKind::usage, "--top-k {}: must be 0 (off) or a positive number", o.top_k);
  if (!(o.top_p > 0 && o.top_p <= 1)) fail(ErrorKind::usage, "--top-p {}: must lie above 0 and at most be 1 (off)", o.top_p);
  if (!(o.min_p >= 0 && o.min_p <= 1)) fail(ErrorKind::usage, "--min-p {}: must lie in 0 (off) to 1", o.min_p);
  if (!(o.repetition_penalty > 0) || !std::isfinite(o.repetition_penalty)) {
    fail(ErrorKind::usage, "--repeat-penalty {}: must be a positive number; 1 is off", o.repetition_penalty);
  }
  if (o.repetition_window < 0) {
    fail(ErrorKind::usage, "--repeat-last-n {}: must be 0 (off) or a positive number", o.repetition_window);
  }
}

Sampler::Sampler(const SamplingOptions& options) : options_(options), rng_(options.seed) { check(options); }

TokenId Sampler::sample(std::span<float> logits, std::span<const TokenId> recent) {
  HT_CHECK(!logits.empty() && logits.size() <= std::numeric_limits<TokenId>::max());
  float maximum = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == std::numeric_limits<float>::infinity()) {
      fail(ErrorKind::bad_input, "the model gives a logit that is no finite number (token {}): its weights are damaged",
           i);
    }
    maximum = std::max(maximum, logits[i]);
  }
  if (!std::isfinite(maximum)) fail(ErrorKind::bad_input, "the model gives no finite logit: its weights are damaged");
  penalize(logits, recent, options_);
  if (options_.temperature == 0) {
    return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }

  std::vector<Candidate> candidates(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) candidates[i] = {logits[i], static_cast<TokenId>(i)};
  const auto top_k = static_cast<std::size_t>(options_.top_k);
  const bool cut = top_k > 0 && top_k < candidates.size();
  if (cut) {
    std::nth_element(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(top_k), candidates.end(),
                     likelier);
    candidates.resize(top_k);
  }
  if (cut || options_.top_p < 1) std::sort(candidates.begin(), candidates.end(), likelier);

  const float best = std::max_element(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
                       return a.logit < b.logit;
                     })->logit;
  const double temperature = options_.temperature;
  std::vector<double> weights(candidates.size());
  double total = 0;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    weights[i] = std::exp((static_cast<double>(candidates[i].logit) - best) / temperature);
    total += weights[i];
  }
  if (options_.top_p < 1) {
    // The smallest set of the likeliest tokens that holds top_p of the probability (Holtzman et al. 2020).
    double sum = 0;
    std::size_t kept = 0;
    while (kept < weights.size() && (kept == 0 || sum < static_cast<double>(options_.top_p) * total)) {
      sum += weights[kept++];
    }
    weights.resize(kept);
    total = sum;
  }
  if (options_.min_p > 0) {
    total = 0;
    for (double& weight : weights) {  // the likeliest token has weight 1
      if (weight < static_cast<double>(options_.min_p)) weight = 0;
      total += weight;
    }
  }
  const double target = rng_.next_uniform64() * total;
  double sum = 0;
  std::size_t last = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0) continue;
    last = i;
    sum += weights[i];
    if (target < sum) break;
  }
  return candidates[last].id;
}

}  // namespace halftone
