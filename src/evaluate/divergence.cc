#include "evaluate/divergence.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "kernels/activation/activation.h"
#include "model/generate.h"

namespace halftone {
namespace {

constexpr std::int64_t kRowsAtOnce = 32;  // rows of logits in memory: 32 x 49152 x 4 bytes = 6 MB

// What one pass over a row of logits gives. Sums in FP64.
struct RowScore {
  double log_sum = 0;  // log sum exp
  std::int64_t arg_max = 0;
  bool finite = true;
};

RowScore score_row(std::span<const float> logits) {
  RowScore score;
  score.arg_max = std::max_element(logits.begin(), logits.end()) - logits.begin();
  score.log_sum = log_sum_exp(logits.data(), static_cast<std::int64_t>(logits.size()));
  score.finite = std::isfinite(score.log_sum);
  return score;
}

struct PairScore {
  double kl = 0, cosine = 0;
};

// KL(p || q) = sum p (log p - log q), p and q the softmax of the two rows.
PairScore compare_rows(std::span<const float> p, double p_log_sum, std::span<const float> q, double q_log_sum) {
  double kl = 0, pq = 0, pp = 0, qq = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double a = p[i], b = q[i];
    const double log_p = a - p_log_sum;
    if (log_p > -60.0) kl += std::exp(log_p) * (log_p - (b - q_log_sum));
    pq += a * b;
    pp += a * a;
    qq += b * b;
  }
  const double norm = std::sqrt(pp) * std::sqrt(qq);
  return {std::max(kl, 0.0), norm > 0 ? pq / norm : (pp == qq ? 1.0 : 0.0)};
}

// Collects the block outputs of the reference, then measures the candidate's against them.
class LayerComparison {
 public:
  explicit LayerComparison(std::int64_t first_row) : first_row_(first_row) {}

  ActivationHook record_reference() {
    return [this](const ActivationEvent& event) {
      if (event.kind != ActivationEvent::Kind::block_output) return;
      order_.emplace_back(event.module);
      const auto kept = event.values.subspan(static_cast<std::size_t>(first_row_ * event.cols));
      reference_[order_.back()].assign(kept.begin(), kept.end());
    };
  }

  ActivationHook measure_candidate() {
    return [this](const ActivationEvent& event) {
      if (event.kind != ActivationEvent::Kind::block_output) return;
      const auto found = reference_.find(std::string(event.module));
      if (found == reference_.end()) return;
      const auto kept = event.values.subspan(static_cast<std::size_t>(first_row_ * event.cols));
      HT_CHECK(kept.size() == found->second.size());
      measured_[found->first] = measure(found->second, kept, event.cols);
    };
  }

  std::vector<LayerDivergence> result() const {
    std::vector<LayerDivergence> layers;
    for (const std::string& name : order_) {
      const auto found = measured_.find(name);
      if (found == measured_.end()) continue;
      layers.push_back(found->second);
      layers.back().name = name;
    }
    return layers;
  }

 private:
  static LayerDivergence measure(std::span<const float> a, std::span<const float> b, std::int64_t cols) {
    double cosine = 0, signal = 0, noise = 0;
    const std::int64_t rows = static_cast<std::int64_t>(a.size()) / cols;
    for (std::int64_t r = 0; r < rows; ++r) {
      double ab = 0, aa = 0, bb = 0;
      for (std::int64_t c = 0; c < cols; ++c) {
        const double x = a[r * cols + c], y = b[r * cols + c];
        ab += x * y;
        aa += x * x;
        bb += y * y;
        noise += (x - y) * (x - y);
      }
      signal += aa;
      cosine += aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : (aa == bb ? 1.0 : 0.0);
    }
    LayerDivergence divergence;
    divergence.output_cosine = rows > 0 ? cosine / static_cast<double>(rows) : 1.0;
    // 200 dB stands for "no difference": JSON has no infinity.
    divergence.sqnr_db = noise > 0 ? std::min(200.0, 10.0 * std::log10(signal / noise)) : 200.0;
    return divergence;
  }

  std::int64_t first_row_;
  std::vector<std::string> order_;
  std::map<std::string, std::vector<float>> reference_;
  std::map<std::string, LayerDivergence> measured_;
};

struct Totals {
  double nll = 0, nll_square = 0, reference_nll = 0, cosine = 0;
  std::int64_t agreements = 0;
  std::vector<double> kl;
};

}  // namespace

EvaluateResult evaluate(const Model& candidate, const Model* reference, std::span<const std::int32_t> text,
                        const EvaluateOptions& options, ThreadPool& pool, Progress& progress) {
  const std::int64_t ctx = options.ctx;
  if (ctx < 4) fail(ErrorKind::usage, "--ctx {}: at least 4 tokens a window are needed", ctx);
  const std::int64_t available = static_cast<std::int64_t>(text.size()) / ctx;
  if (available == 0) {
    fail(ErrorKind::bad_input, "the text holds {} tokens, one window needs {}: give a longer text or a smaller --ctx",
         text.size(), ctx);
  }
  const std::int64_t vocabulary = candidate.config().vocabulary;
  if (reference != nullptr && reference->config().vocabulary != vocabulary) {
    fail(ErrorKind::bad_input, "vocabularies differ: the model has {} tokens, the reference {}", vocabulary,
         reference->config().vocabulary);
  }
  EvaluateResult result;
  result.ctx = ctx;
  result.windows = options.windows > 0 ? std::min(options.windows, available) : available;
  result.unused_tokens = static_cast<std::int64_t>(text.size()) - result.windows * ctx;
  result.compared = reference != nullptr;

  KvCache candidate_cache(candidate.config(), options.kv_format, ctx);
  std::optional<KvCache> reference_cache;
  if (reference != nullptr) reference_cache.emplace(reference->config(), fp32_format(), ctx);

  const std::int64_t first = ctx / 2, last = ctx - 2;  // positions whose predictions are scored
  std::vector<float> hidden, reference_hidden;
  const auto row_block = static_cast<std::size_t>(kRowsAtOnce * vocabulary);
  std::vector<float> logits(row_block), reference_logits(reference != nullptr ? row_block : 0);
  Totals totals;
  LayerComparison layers(first);

  progress.begin("evaluate", static_cast<std::uint64_t>(result.windows), "windows");
  for (std::int64_t window = 0; window < result.windows; ++window) {
    throw_if_interrupted();
    std::vector<std::int32_t> tokens(text.begin() + window * ctx, text.begin() + (window + 1) * ctx);
    if (options.bos) tokens[0] = *options.bos;
    const bool with_layers = reference != nullptr && options.layers && window == 0;
    if (reference != nullptr) {
      reference_cache->truncate(0);
      reference->forward(tokens, *reference_cache, reference_hidden, pool,
                         with_layers ? layers.record_reference() : ActivationHook{});
    }
    candidate_cache.truncate(0);
    candidate.forward(tokens, candidate_cache, hidden, pool,
                      with_layers ? layers.measure_candidate() : ActivationHook{});
    if (with_layers) result.layers = layers.result();

    const std::int64_t width = candidate.config().hidden;
    const std::int64_t reference_width = reference != nullptr ? reference->config().hidden : 0;
    for (std::int64_t begin = first; begin <= last; begin += kRowsAtOnce) {
      const std::int64_t rows = std::min(kRowsAtOnce, last + 1 - begin);
      const auto count = static_cast<std::size_t>(rows * vocabulary);
      candidate.logits(std::span(hidden).subspan(static_cast<std::size_t>(begin * width),
                                                 static_cast<std::size_t>(rows * width)),
                       rows, std::span(logits).first(count), pool);
      if (reference != nullptr) {
        reference->logits(std::span(reference_hidden)
                              .subspan(static_cast<std::size_t>(begin * reference_width),
                                       static_cast<std::size_t>(rows * reference_width)),
                          rows, std::span(reference_logits).first(count), pool);
      }
      // Every row has its own slot, and slots are added in order: the same sums for any number of threads.
      std::vector<RowScore> scores(static_cast<std::size_t>(rows)), reference_scores(static_cast<std::size_t>(rows));
      std::vector<PairScore> pairs(static_cast<std::size_t>(rows));
      pool.run(rows, [&](std::int64_t r, int) {
        const auto row = std::span<const float>(logits).subspan(static_cast<std::size_t>(r * vocabulary),
                                                                static_cast<std::size_t>(vocabulary));
        scores[r] = score_row(row);
        if (reference == nullptr) return;
        const auto reference_row = std::span<const float>(reference_logits)
                                       .subspan(static_cast<std::size_t>(r * vocabulary),
                                                static_cast<std::size_t>(vocabulary));
        reference_scores[r] = score_row(reference_row);
        pairs[r] = compare_rows(reference_row, reference_scores[r].log_sum, row, scores[r].log_sum);
      });
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t position = begin + r;
        if (!scores[r].finite || (reference != nullptr && !reference_scores[r].finite)) {
          fail(ErrorKind::bad_input, "{} gives logits that are not finite (window {}, position {})",
               scores[r].finite ? "the reference" : "the model", window, position);
        }
        const std::int32_t target = tokens[static_cast<std::size_t>(position + 1)];
        const double nll = scores[r].log_sum - logits[r * vocabulary + target];
        totals.nll += nll;
        totals.nll_square += nll * nll;
        if (reference == nullptr) continue;
        totals.reference_nll += reference_scores[r].log_sum - reference_logits[r * vocabulary + target];
        totals.kl.push_back(pairs[r].kl);
        totals.cosine += pairs[r].cosine;
        totals.agreements += scores[r].arg_max == reference_scores[r].arg_max ? 1 : 0;
      }
      result.tokens += rows;
    }
    progress.advance(1, fmt::format("perplexity {:.4f}", std::exp(totals.nll / static_cast<double>(result.tokens))));
  }
  progress.end();

  const auto n = static_cast<double>(result.tokens);
  const double mean = totals.nll / n;
  result.perplexity = std::exp(mean);
  if (result.tokens > 1) {
    result.nll_standard_error = std::sqrt(std::max(0.0, totals.nll_square / n - mean * mean) / (n - 1));
  }
  if (reference != nullptr) {
    result.reference_perplexity = std::exp(totals.reference_nll / n);
    result.perplexity_ratio = result.perplexity / result.reference_perplexity;
    for (const double kl : totals.kl) result.kl_mean += kl / n;
    std::sort(totals.kl.begin(), totals.kl.end());
    // Nearest-rank percentile.
    result.kl_p99 = totals.kl[static_cast<std::size_t>(std::ceil(0.99 * n)) - 1];
    result.top1_agreement = static_cast<double>(totals.agreements) / n;
    result.logit_cosine = totals.cosine / n;
  }
  return result;
}

std::vector<std::int32_t> sample_text(const Model& model, std::int32_t start, std::int64_t windows, std::int64_t ctx,
                                      std::uint64_t seed, ThreadPool& pool, Progress& progress) {
  std::vector<std::int32_t> text;
  text.reserve(static_cast<std::size_t>(windows * ctx));
  std::vector<float> hidden, logits(static_cast<std::size_t>(model.config().vocabulary));
  KvCache cache(model.config(), fp32_format(), ctx);
  progress.begin("sample a text from the reference", static_cast<std::uint64_t>(windows * ctx), "tokens");
  for (std::int64_t window = 0; window < windows; ++window) {
    cache.truncate(0);
    SamplingOptions sampling;
    sampling.temperature = 1.0F;
    sampling.seed = seed + static_cast<std::uint64_t>(window);
    Sampler sampler(sampling);
    std::int32_t token = start;
    for (std::int64_t i = 0; i < ctx; ++i) {
      throw_if_interrupted();
      text.push_back(token);
      if (i + 1 == ctx) break;
      model.forward(std::span(&token, 1), cache, hidden, pool);
      model.logits(hidden, 1, logits, pool);
      token = sampler.sample(logits, {});
      progress.advance(1, "");
    }
    progress.advance(1, "");
  }
  progress.end();
  return text;
}

}  // namespace halftone
