#include "model/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "model/testing_model.h"

namespace halftone {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// ---- sampling ----

TokenId sample_once(std::vector<float> logits, const SamplingOptions& options, const std::vector<TokenId>& recent = {}) {
  Sampler sampler(options);
  return sampler.sample(logits, recent);
}

// Share of each token over many draws.
std::map<TokenId, double> shares(const std::vector<float>& logits, const SamplingOptions& options, int draws = 20000) {
  Sampler sampler(options);
  std::map<TokenId, double> counts;
  for (int i = 0; i < draws; ++i) {
    std::vector<float> copy = logits;
    counts[sampler.sample(copy, {})] += 1.0 / draws;
  }
  return counts;
}

TEST(Sampler, GreedyTakesTheLowestIdOnTies) {
  EXPECT_EQ(sample_once({1, 3, 3, 2}, {}), 1);
  EXPECT_EQ(sample_once({-5, -4, -9}, {}), 1);
}

TEST(Sampler, DrawsFromTheSoftmax) {
  SamplingOptions options;
  options.temperature = 1;
  options.seed = 3;
  const auto share = shares({0, std::log(2.0F), std::log(5.0F)}, options);
  EXPECT_NEAR(share.at(0), 1.0 / 8, 0.01);
  EXPECT_NEAR(share.at(1), 2.0 / 8, 0.01);
  EXPECT_NEAR(share.at(2), 5.0 / 8, 0.01);
  options.temperature = 0.5F;  // squares the ratios
  EXPECT_NEAR(shares({0, std::log(2.0F), std::log(5.0F)}, options).at(2), 25.0 / 30, 0.01);
}

TEST(Sampler, CutsByTopKTopPAndMinP) {
  const std::vector<float> logits = {std::log(1.0F), std::log(4.0F), std::log(3.0F), std::log(2.0F)};
  const auto keys = [&](const SamplingOptions& options) {
    std::vector<TokenId> ids;
    for (const auto& [id, share] : shares(logits, options, 3000)) ids.push_back(id);
    return ids;
  };
  SamplingOptions o;
  o.temperature = 1;
  EXPECT_THAT(keys(o), ElementsAre(0, 1, 2, 3));
  o.top_k = 2;
  EXPECT_THAT(keys(o), ElementsAre(1, 2));
  EXPECT_NEAR(shares(logits, o).at(1), 4.0 / 7, 0.015);
  o.top_k = 0;
  o.top_p = 0.69F;  // 0.4 and 0.3 make up 0.7
  EXPECT_THAT(keys(o), ElementsAre(1, 2));
  o.top_p = 0.71F;
  EXPECT_THAT(keys(o), ElementsAre(1, 2, 3));
  o.top_p = 0.01F;  // at least one
  EXPECT_THAT(keys(o), ElementsAre(1));
  o.top_p = 1;
  o.min_p = 0.6F;  // of the likeliest one's probability
  EXPECT_THAT(keys(o), ElementsAre(1, 2));
  o.min_p = 1;
  EXPECT_THAT(keys(o), ElementsAre(1));
  o = {};
  o.temperature = 1;
  o.top_k = 1;
  EXPECT_THAT(keys(o), ElementsAre(1));
}

TEST(Sampler, PenalizesRecentTokensOnce) {
  SamplingOptions o;
  o.repetition_penalty = 2;
  EXPECT_EQ(sample_once({3, 2, 0}, o, {0, 0, 0}), 1);      // 3 / 2 < 2
  EXPECT_EQ(sample_once({3, 1, 0}, o, {0, 0, 0}), 0);      // once, not three times
  EXPECT_EQ(sample_once({-1, -1.5F, -9}, o, {0}), 1);      // negative logits grow
  EXPECT_EQ(sample_once({3, 2, 0}, o, {0, 2, 2, 2}), 1);
  o.repetition_window = 3;
  EXPECT_EQ(sample_once({3, 2, 0}, o, {0, 2, 2, 2}), 0);   // too long ago
  EXPECT_EQ(sample_once({3, 2, 0}, o, {-1, 99}), 0);       // ids of another vocabulary do no harm
}

TEST(Sampler, SeedsReproduce) {
  std::vector<float> logits(50);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 7);
  const auto draw = [&](std::uint64_t seed) {
    SamplingOptions o;
    o.temperature = 1;
    o.seed = seed;
    Sampler sampler(o);
    std::vector<TokenId> ids;
    for (int i = 0; i < 20; ++i) {
      std::vector<float> copy = logits;
      ids.push_back(sampler.sample(copy, {}));
    }
    return ids;
  };
  EXPECT_EQ(draw(1), draw(1));
  EXPECT_NE(draw(1), draw(2));
}

TEST(Sampler, RefusesWhatIsNoNumberAndTakesMinusInfinity) {
  EXPECT_THROW(sample_once({1, NAN}, {}), Error);
  EXPECT_THROW(sample_once({1, INFINITY}, {}), Error);
  EXPECT_THROW(sample_once({-INFINITY, -INFINITY}, {}), Error);
  SamplingOptions o;
  o.temperature = 1;
  EXPECT_EQ(shares({-INFINITY, 1, -INFINITY}, o, 100).size(), 1U);
}

TEST(Sampler, OptionsOutOfRangeNameTheFlag) {
  const auto message = [](auto change) -> std::string {
    SamplingOptions o;
    change(o);
    try {
      check(o);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message([](SamplingOptions&) {}), "accepted");
  EXPECT_THAT(message([](SamplingOptions& o) { o.temperature = -1; }), HasSubstr("--temp"));
  EXPECT_THAT(message([](SamplingOptions& o) { o.temperature = NAN; }), HasSubstr("--temp"));
  EXPECT_THAT(message([](SamplingOptions& o) { o.top_k = -1; }), HasSubstr("--top-k"));
  EXPECT_THAT(message([](SamplingOptions& o) { o.top_p = 0; }), HasSubstr("--top-p"));
  EXPECT_THAT(message([](SamplingOptions& o) { o.top_p = 1.5F; }), HasSubstr("--top-p"));
  EXPECT_THAT(message([](SamplingOptions& o) { o.min_p = -0.1F; }), HasSubstr("--min-p"));
  EXPECT_THAT(message([](SamplingOptions& o) { o.repetition_penalty = 0; }), HasSubstr("--repeat-penalty"));
  EXPECT_THAT(message([](SamplingOptions& o) { o.repetition_window = -1; }), HasSubstr("--repeat-last-n"));
}

// ---- generation ----

// A model whose greedy next token after token i is next[i], whatever stood before: no attention or FFN output, one-hot
// embeddings, and a head that maps dimension i to token next[i].
struct Chain {
  explicit Chain(const std::vector<TokenId>& next) {
    config = small_config();
    const auto n = std::ssize(next);
    config.vocabulary = config.hidden = n;
    config.layers.resize(1);
    config.tied_head = false;
    weights = random_weights(config, 1);
    for (const char* module : {"model.layers.0.self_attn.o_proj", "model.layers.0.mlp.down_proj"}) {
      for (float& value : weights.matrices[module].values) value = 0;
    }
    std::vector<float> table(static_cast<std::size_t>(n * n)), head(table.size());
    for (std::int64_t i = 0; i < n; ++i) {
      table[static_cast<std::size_t>(i * n + i)] = 1;
      head[static_cast<std::size_t>(next[static_cast<std::size_t>(i)] * n + i)] = 1;
    }
    weights.add("model.embed_tokens", n, n, table);
    weights.add("lm_head", n, n, head);
    for (float& value : weights.vectors["model.norm.weight"]) value = 1;
    model = std::make_unique<Model>(config, weights, pool);
  }

  GenerateResult run(const ListTokenizer& tokenizer, const std::vector<TokenId>& prompt, const GenerateOptions& options,
                     std::int64_t context = 100) {
    KvCache cache(config, fp32_format(), context);
    pieces.clear();
    return generate(*model, tokenizer, cache, prompt, options, pool, [&](std::string_view text) {
      pieces.emplace_back(text);
      return true;
    });
  }

  ThreadPool pool{1};
  ModelConfig config;
  MapWeights weights;
  std::unique_ptr<Model> model;
  std::vector<std::string> pieces;
};

// 1 -> 2 -> 3 -> 4 -> 5 -> end; 6 goes in a circle.
const std::vector<TokenId> kLine = {0, 2, 3, 4, 5, 0, 6, 0};
ListTokenizer letters() { return ListTokenizer({"<end>", "a", "b", "c", "d", "e", "f", "g"}); }

TEST(Generate, StopsAtTheEndToken) {
  Chain chain(kLine);
  const GenerateResult result = chain.run(letters(), {7, 1}, {});
  EXPECT_THAT(result.tokens, ElementsAre(2, 3, 4, 5));
  EXPECT_EQ(result.text, "bcde");
  EXPECT_EQ(result.finish_reason, "stop");
  EXPECT_EQ(result.prompt_tokens, 2);
  EXPECT_THAT(chain.pieces, ElementsAre("b", "c", "d", "e"));
}

TEST(Generate, TheModelsOwnEndTokensCount) {
  Chain chain(kLine);
  chain.config.eos_ids = {4};
  chain.model = std::make_unique<Model>(chain.config, chain.weights, chain.pool);
  EXPECT_EQ(chain.run(letters(), {1}, {}).text, "bc");
  GenerateOptions options;
  options.ignore_eos = true;
  options.max_tokens = 6;
  EXPECT_THAT(chain.run(letters(), {1}, options).tokens, ElementsAre(2, 3, 4, 5, 0, 0));
}

TEST(Generate, EndsByLengthAndByContext) {
  Chain chain(kLine);
  GenerateOptions options;
  options.max_tokens = 3;
  GenerateResult result = chain.run(letters(), {6}, options);
  EXPECT_EQ(result.finish_reason, "length");
  EXPECT_EQ(result.text, "fff");
  options.max_tokens = 0;
  result = chain.run(letters(), {6}, options);
  EXPECT_EQ(result.finish_reason, "length");
  EXPECT_EQ(result.text, "");

  options.max_tokens = 1000;
  result = chain.run(letters(), {6, 6}, options, 8);  // prompt and answer fill the context together
  EXPECT_EQ(result.finish_reason, "context");
  EXPECT_EQ(result.tokens.size(), 6U);
  options.max_tokens = -1;
  EXPECT_EQ(chain.run(letters(), {6, 6}, options, 8).tokens.size(), 6U);

  // 7, 8 and 9 tokens of 8 (users.md C46).
  EXPECT_EQ(chain.run(letters(), std::vector<TokenId>(7, 6), options, 8).tokens.size(), 1U);
  EXPECT_EQ(chain.run(letters(), std::vector<TokenId>(8, 6), options, 8).finish_reason, "context");
  try {
    chain.run(letters(), std::vector<TokenId>(9, 6), options, 8);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_THAT(error.what(), HasSubstr("9"));
    EXPECT_THAT(error.what(), HasSubstr("8"));
  }
  EXPECT_THROW(chain.run(letters(), {}, options), Error);
}

TEST(Generate, StopStringsAreHeldBackAcrossTokens) {
  Chain chain(kLine);
  GenerateOptions options;
  options.stop = {"cd"};
  GenerateResult result = chain.run(letters(), {1}, options);
  EXPECT_EQ(result.text, "b");
  EXPECT_EQ(result.finish_reason, "stop");
  EXPECT_THAT(chain.pieces, ElementsAre("b"));
  EXPECT_THAT(result.tokens, ElementsAre(2, 3, 4));  // what was computed

  options.stop = {"cx", "zz"};  // begins like the text, but does not come
  result = chain.run(letters(), {1}, options);
  EXPECT_EQ(result.text, "bcde");
  EXPECT_THAT(chain.pieces, ElementsAre("b", "cd", "e"));

  options.stop = {"ef"};  // the text ends in the middle of it
  EXPECT_EQ(chain.run(letters(), {1}, options).text, "bcde");

  options.stop = {"de", "bc"};  // the one that comes first
  EXPECT_EQ(chain.run(letters(), {1}, options).text, "");

  options.stop = {""};
  EXPECT_THROW(chain.run(letters(), {1}, options), Error);
}

TEST(Generate, StopStringsOverlapWithThemselves) {
  Chain chain({0, 2, 3, 4, 5, 6, 7, 0});
  const ListTokenizer tokenizer({"<end>", "?", "a", "a", "b", "a", "a", "c"});
  GenerateOptions options;
  options.stop = {"aac"};
  EXPECT_EQ(chain.run(tokenizer, {1}, options).text, "aab");
}

TEST(Generate, GivesWholeCharactersOnly) {
  Chain chain({0, 2, 3, 4, 5, 0});
  const ListTokenizer tokenizer({"<end>", "?", "\xF0\x9F", "\x98", "\x80!", "z"});
  GenerateResult result = chain.run(tokenizer, {1}, {});
  EXPECT_EQ(result.text, "\xF0\x9F\x98\x80!z");
  EXPECT_THAT(chain.pieces, ElementsAre("\xF0\x9F\x98\x80!", "z"));

  GenerateOptions options;
  options.max_tokens = 2;  // cut in the middle of the character
  result = chain.run(tokenizer, {1}, options);
  EXPECT_EQ(result.text, "\xEF\xBF\xBD");
}

TEST(Generate, TheCallerCanStopIt) {
  Chain chain(kLine);
  KvCache cache(chain.config, fp32_format(), 50);
  int calls = 0;
  const GenerateResult result = generate(*chain.model, letters(), cache, std::vector<TokenId>{6}, {}, chain.pool,
                                         [&](std::string_view) { return ++calls < 3; });
  EXPECT_EQ(result.finish_reason, "cancelled");
  EXPECT_EQ(result.text, "fff");
  EXPECT_EQ(calls, 3);
}

TEST(Generate, GoesOnFromAnEarlierTurnAndInAnyPrefillChunks) {
  ThreadPool pool(2);
  const ModelConfig config = small_config();
  const Model model(config, random_weights(config, 21), pool);
  std::vector<std::string> texts(61, "x");
  const ListTokenizer tokenizer(texts);
  GenerateOptions options;
  options.ignore_eos = true;
  options.max_tokens = 20;
  options.sampling.temperature = 1;
  options.sampling.seed = 9;
  const std::vector<TokenId> prompt = {5, 9, 33, 2, 60, 14, 7, 7, 1};
  const auto tokens = [&](std::int64_t chunk, std::size_t cached, std::uint64_t seed) {
    KvCache cache(config, fp32_format(), 40);
    std::vector<float> hidden;
    if (cached > 0) model.forward(std::span(prompt).first(cached), cache, hidden, pool);
    options.prefill_chunk = chunk;
    options.sampling.seed = seed;
    return generate(model, tokenizer, cache, std::span(prompt).subspan(cached), options, pool).tokens;
  };
  const auto first = tokens(256, 0, 9);
  EXPECT_EQ(first.size(), 20U);
  EXPECT_EQ(tokens(1, 0, 9), first);
  EXPECT_EQ(tokens(4, 3, 9), first);
  EXPECT_NE(tokens(256, 0, 10), first);
}

}  // namespace
}  // namespace halftone
