#include "evaluate/divergence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "model/testing_model.h"

namespace halftone {
namespace {

// small_config's weights, every one off by `noise` (standard deviation).
MapWeights noisy_weights(const ModelConfig& config, float noise) {
  MapWeights weights = random_weights(config, 11);
  CounterRng rng(12);
  for (auto& [name, matrix] : weights.matrices) {
    for (float& v : matrix.values) v += noise * rng.next_normal();
  }
  return weights;
}

std::vector<std::int32_t> random_text(std::size_t n, std::int64_t vocabulary) {
  CounterRng rng(3);
  std::vector<std::int32_t> text(n);
  for (auto& id : text) id = static_cast<std::int32_t>(rng.next_uniform() * static_cast<float>(vocabulary));
  return text;
}

// log softmax of one position, the plain way.
std::vector<double> log_probabilities(const Model& model, std::span<const std::int32_t> window, std::int64_t position) {
  ThreadPool pool(1);
  KvCache cache(model.config(), fp32_format(), static_cast<std::int64_t>(window.size()));
  std::vector<float> hidden, logits(static_cast<std::size_t>(model.config().vocabulary));
  model.forward(window, cache, hidden, pool);
  const auto width = static_cast<std::size_t>(model.config().hidden);
  model.logits(std::span(hidden).subspan(static_cast<std::size_t>(position) * width, width), 1, logits, pool);
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x));
  std::vector<double> out;
  for (const float x : logits) out.push_back(x - std::log(sum));
  return out;
}

class Divergence : public testing::Test {
 protected:
  ThreadPool pool{2};
  ModelConfig config = small_config();
  Model reference{config, noisy_weights(config, 0.0F), pool};
  Model candidate{config, noisy_weights(config, 0.03F), pool};
};

TEST_F(Divergence, EqualsThePlainFormulas) {
  const auto text = random_text(3 * 16 + 5, config.vocabulary);
  EvaluateOptions options;
  options.ctx = 16;
  const EvaluateResult result = evaluate(candidate, &reference, text, options, pool);
  EXPECT_EQ(result.windows, 3);
  EXPECT_EQ(result.unused_tokens, 5);
  EXPECT_EQ(result.tokens, 3 * 7);  // positions 8 .. 14

  double nll = 0, reference_nll = 0, kl = 0;
  std::int64_t agree = 0;
  for (std::int64_t w = 0; w < 3; ++w) {
    const auto window = std::span(text).subspan(static_cast<std::size_t>(w * 16), 16);
    for (std::int64_t position = 8; position <= 14; ++position) {
      const auto q = log_probabilities(candidate, window, position), p = log_probabilities(reference, window, position);
      const auto target = static_cast<std::size_t>(window[static_cast<std::size_t>(position + 1)]);
      nll -= q[target];
      reference_nll -= p[target];
      for (std::size_t i = 0; i < p.size(); ++i) kl += std::exp(p[i]) * (p[i] - q[i]);
      agree += std::max_element(p.begin(), p.end()) - p.begin() == std::max_element(q.begin(), q.end()) - q.begin();
    }
  }
  EXPECT_NEAR(result.perplexity, std::exp(nll / 21), 1e-5 * result.perplexity);
  EXPECT_NEAR(result.reference_perplexity, std::exp(reference_nll / 21), 1e-5 * result.reference_perplexity);
  EXPECT_NEAR(result.kl_mean, kl / 21, 1e-6);
  EXPECT_EQ(result.top1_agreement, static_cast<double>(agree) / 21);
  EXPECT_GT(result.kl_mean, 0);
  EXPECT_GE(result.kl_p99, result.kl_mean);
  ASSERT_EQ(result.layers.size(), 2U);
  EXPECT_EQ(result.layers[1].name, "model.layers.1");
  EXPECT_LT(result.layers[1].output_cosine, 1.0);
  EXPECT_GT(result.layers[1].output_cosine, 0.5);
}

TEST_F(Divergence, AModelAgainstItselfIsExact) {
  const auto text = random_text(40, config.vocabulary);
  EvaluateOptions options;
  options.ctx = 20;
  const EvaluateResult result = evaluate(reference, &reference, text, options, pool);
  EXPECT_EQ(result.kl_mean, 0);
  EXPECT_EQ(result.perplexity_ratio, 1);
  EXPECT_EQ(result.top1_agreement, 1);
  EXPECT_NEAR(result.logit_cosine, 1, 1e-12);
  EXPECT_EQ(result.layers[0].sqnr_db, 200);
}

TEST_F(Divergence, BosReplacesTheFirstTokenOfEveryWindow) {
  auto text = random_text(32, config.vocabulary);
  EvaluateOptions options;
  options.ctx = 16;
  options.bos = 5;
  const double with_bos = evaluate(candidate, nullptr, text, options, pool).perplexity;
  text[0] = text[16] = 5;
  options.bos.reset();
  EXPECT_EQ(evaluate(candidate, nullptr, text, options, pool).perplexity, with_bos);
}

TEST_F(Divergence, DoesNotDependOnThreads) {
  const auto text = random_text(48, config.vocabulary);
  EvaluateOptions options;
  options.ctx = 24;
  ThreadPool one(1), three(3);
  const EvaluateResult a = evaluate(candidate, &reference, text, options, one);
  const EvaluateResult b = evaluate(candidate, &reference, text, options, three);
  EXPECT_EQ(a.perplexity, b.perplexity);
  EXPECT_EQ(a.kl_mean, b.kl_mean);
  EXPECT_EQ(a.logit_cosine, b.logit_cosine);
}

TEST_F(Divergence, ShortTextsAndSenselessWindowsAreRefused) {
  const auto text = random_text(10, config.vocabulary);
  EvaluateOptions options;
  options.ctx = 16;
  EXPECT_THROW(evaluate(candidate, nullptr, text, options, pool), Error);
  options.ctx = 3;
  EXPECT_THROW(evaluate(candidate, nullptr, text, options, pool), Error);
}

TEST_F(Divergence, SampledTextIsSeededAndLikely) {
  const auto a = sample_text(reference, 1, 2, 24, 7, pool), b = sample_text(reference, 1, 2, 24, 7, pool);
  EXPECT_EQ(a, b);
  EXPECT_EQ(a.size(), 48U);
  EXPECT_EQ(a[0], 1);
  EXPECT_EQ(a[24], 1);
  EXPECT_NE(sample_text(reference, 1, 2, 24, 8, pool), a);
  EvaluateOptions options;
  options.ctx = 24;
  const double own = evaluate(reference, nullptr, a, options, pool).perplexity;
  EXPECT_LT(own, evaluate(reference, nullptr, random_text(48, config.vocabulary), options, pool).perplexity);
}

}  // namespace
}  // namespace halftone
