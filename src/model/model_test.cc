#include "model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "model/testing_model.h"

namespace halftone {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::int32_t> some_tokens(std::int64_t count, std::int64_t vocabulary) {
  CounterRng rng(77);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(rng.next_bits() % static_cast<std::uint32_t>(vocabulary));
  return tokens;
}

// Logits of all tokens, fed in pieces of the given sizes (the last one again and again).
std::vector<float> run(const Model& model, const std::vector<std::int32_t>& tokens, std::vector<std::int64_t> pieces,
                       ThreadPool& pool, const ElementFormat& kv = fp32_format()) {
  KvCache cache(model.config(), kv, static_cast<std::int64_t>(tokens.size()));
  std::vector<float> hidden, all;
  for (std::size_t first = 0, piece = 0; first < tokens.size(); ++piece) {
    const auto count = std::min(tokens.size() - first, static_cast<std::size_t>(pieces[std::min(piece, pieces.size() - 1)]));
    model.forward(std::span(tokens).subspan(first, count), cache, hidden, pool);
    all.insert(all.end(), hidden.begin(), hidden.end());
    first += count;
  }
  EXPECT_EQ(cache.length(), std::ssize(tokens));
  std::vector<float> logits(tokens.size() * static_cast<std::size_t>(model.config().vocabulary));
  model.logits(all, std::ssize(tokens), logits, pool);
  return logits;
}

bool same_bytes(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

ModelConfig gemma_like() {
  ModelConfig config = small_config();
  config.norm_weight_plus_one = config.post_norms = config.qk_norm = true;
  config.embedding_scale = 6.3245554F;
  config.activation = GateActivation::gelu_tanh;
  config.layers = {{.window = 9, .local_rope = true}, {.window = 0, .local_rope = false}, {.window = 70, .local_rope = true}};
  config.rope.theta = 1e6;
  config.rope_local.dim = config.head_dim;
  config.final_softcap = 30.0F;
  return config;
}

TEST(Model, TheSameByBytesForAnyChunksAndThreads) {
  ThreadPool one(1), three(3);
  Scheme int8 = parse_scheme("int8:channel"), token = parse_scheme("int8:token");
  ModelConfig plain = small_config();
  plain.attention_bias = true;
  plain.tied_head = false;
  struct Case {
    ModelConfig config;
    Scheme scheme;
    std::optional<Scheme> activations;
  };
  for (const Case& c : {Case{plain, {}, {}}, Case{gemma_like(), {}, {}}, Case{gemma_like(), int8, token}}) {
    const MapWeights weights = random_weights(c.config, 5, "model.", c.scheme, c.activations);
    const Model model(c.config, weights, three);
    const auto tokens = some_tokens(150, c.config.vocabulary);
    for (const char* kv : {"fp32", "fp8"}) {
      const ElementFormat format = kv_format_or_fail(kv);
      const auto whole = run(model, tokens, {150}, one, format);
      EXPECT_TRUE(std::isfinite(whole.back()));
      EXPECT_TRUE(same_bytes(run(model, tokens, {1}, three, format), whole)) << kv;
      EXPECT_TRUE(same_bytes(run(model, tokens, {63, 2, 64, 7}, three, format), whole)) << kv;
      EXPECT_TRUE(same_bytes(run(model, tokens, {150}, three, format), whole)) << kv;
    }
  }
}

TEST(Model, InputsLongerThanAChunkAreWorkedOffInPieces) {
  ThreadPool pool(2);
  const ModelConfig config = small_config();
  const Model model(config, random_weights(config, 6), pool);
  const auto tokens = some_tokens(Model::kChunk + 40, config.vocabulary);
  EXPECT_TRUE(same_bytes(run(model, tokens, {std::ssize(tokens)}, pool), run(model, tokens, {300}, pool)));
}

TEST(Model, TokensSeeOnlyWhatWasBeforeThem) {
  ThreadPool pool(2);
  const ModelConfig config = small_config();
  const Model model(config, random_weights(config, 7), pool);
  auto tokens = some_tokens(20, config.vocabulary);
  const auto before = run(model, tokens, {20}, pool);
  tokens[19] = (tokens[19] + 1) % 61;
  const auto after = run(model, tokens, {20}, pool);
  const auto kept = static_cast<std::ptrdiff_t>(19 * config.vocabulary);
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + kept, after.begin()));
  EXPECT_FALSE(std::equal(before.begin() + kept, before.end(), after.begin() + kept));
}

TEST(Model, WindowsHideWhatIsFartherBack) {
  ThreadPool pool(2);
  ModelConfig config = small_config();
  config.layers = {{.window = 5, .local_rope = false}};  // one layer: what it cannot see has no other way
  const Model model(config, random_weights(config, 8), pool);
  auto tokens = some_tokens(12, config.vocabulary);
  const auto row = [&](const std::vector<float>& logits, std::int64_t r) {
    return std::vector<float>(logits.begin() + r * config.vocabulary, logits.begin() + (r + 1) * config.vocabulary);
  };
  const auto before = run(model, tokens, {12}, pool);
  tokens[4] = (tokens[4] + 1) % 61;
  const auto after = run(model, tokens, {12}, pool);
  EXPECT_NE(row(before, 8), row(after, 8));  // 8 - 4 < 5: seen
  EXPECT_EQ(row(before, 9), row(after, 9));  // 9 - 4 = 5: not seen
}

TEST(Model, KvFormatsStayNearFp32) {
  ThreadPool pool(2);
  const ModelConfig config = small_config();
  const Model model(config, random_weights(config, 9), pool);
  const auto tokens = some_tokens(100, config.vocabulary);
  const auto exact = run(model, tokens, {100}, pool);
  const auto error_of = [&](const char* name) {
    const auto logits = run(model, tokens, {100}, pool, kv_format_or_fail(name));
    double noise = 0, signal = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      noise += std::pow(static_cast<double>(logits[i]) - exact[i], 2);
      signal += std::pow(static_cast<double>(exact[i]), 2);
    }
    return std::sqrt(noise / signal);
  };
  EXPECT_EQ(error_of("fp32"), 0);
  double last = 0;
  // Twice the largest relative rounding error of the element, 2^-(mantissa bits + 1); int8: of a head's largest number,
  // which is about 2.5 times the typical one. Each float format is coarser than the one before.
  for (const auto& [name, bound] : {std::pair{"fp16", 2 * 0x1p-11}, {"bf16", 2 * 0x1p-8}, {"int8", 2 * 2.5 / 254},
                                    {"fp8", 2 * 0x1p-4}, {"fp8_e5m2", 2 * 0x1p-3}}) {
    const double error = error_of(name);
    EXPECT_GT(error, 0) << name;
    EXPECT_LT(error, bound) << name;
    if (std::string_view(name) != "int8") {
      EXPECT_GT(error, last) << name;
      last = error;
    }
  }
  EXPECT_THROW(kv_format_or_fail("int4"), Error);
}

TEST(KvCache, AllocatesPagesAsTheyAreNeeded) {
  ThreadPool pool(1);
  const ModelConfig config = small_config();
  const Model model(config, random_weights(config, 10), pool);
  KvCache cache(config, bf16_format(), 1000);
  EXPECT_EQ(cache.bytes(), 0U);
  std::vector<float> hidden;
  const auto tokens = some_tokens(65, config.vocabulary);
  model.forward(std::span(tokens).first(64), cache, hidden, pool);
  EXPECT_EQ(cache.bytes(), KvCache::bytes_for(config, bf16_format(), 64));
  // two layers, keys and values, two heads of 16, two bytes, 64 tokens
  EXPECT_EQ(cache.bytes(), 2U * 2 * 2 * 16 * 2 * 64);
  model.forward(std::span(tokens).last(1), cache, hidden, pool);
  EXPECT_EQ(cache.bytes(), KvCache::bytes_for(config, bf16_format(), 65));
  EXPECT_EQ(cache.length(), 65);
}

TEST(KvCache, TruncateGoesBackByBytes) {
  ThreadPool pool(1);
  const ModelConfig config = gemma_like();
  const Model model(config, random_weights(config, 11), pool);
  const auto tokens = some_tokens(90, config.vocabulary);
  KvCache cache(config, fp32_format(), 90);
  std::vector<float> first, second;
  model.forward(std::span(tokens).first(50), cache, first, pool);
  model.forward(std::span(tokens).last(40), cache, first, pool);
  cache.truncate(20);
  model.forward(std::span(tokens).first(60), cache, second, pool);  // other tokens over the old pages
  cache.truncate(50);
  cache.truncate(0);
  model.forward(std::span(tokens).first(50), cache, second, pool);
  model.forward(std::span(tokens).last(40), cache, second, pool);
  EXPECT_TRUE(same_bytes(first, second));
}

TEST(KvCache, OverflowIsRefusedWithBothNumbersAndChangesNothing) {
  ThreadPool pool(1);
  const ModelConfig config = small_config();
  const Model model(config, random_weights(config, 12), pool);
  KvCache cache(config, fp32_format(), 10);
  std::vector<float> hidden;
  const auto tokens = some_tokens(11, config.vocabulary);
  try {
    model.forward(tokens, cache, hidden, pool);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_THAT(error.what(), HasSubstr("11"));
    EXPECT_THAT(error.what(), HasSubstr("10"));
  }
  EXPECT_EQ(cache.length(), 0);
  model.forward(std::span(tokens).first(10), cache, hidden, pool);
  EXPECT_THROW(model.forward(std::span(tokens).first(1), cache, hidden, pool), Error);
  EXPECT_EQ(cache.length(), 10);
  EXPECT_THROW(KvCache(config, fp32_format(), 0), Error);
  EXPECT_THROW(KvCache::bytes_for(config, fp32_format(), std::int64_t{1} << 60), Error);
}

TEST(Model, TokensOutsideTheVocabularyAreRefused) {
  ThreadPool pool(1);
  const ModelConfig config = small_config();
  const Model model(config, random_weights(config, 13), pool);
  KvCache cache(config, fp32_format(), 10);
  std::vector<float> hidden;
  for (const std::int32_t bad : {-1, 61, 1 << 30}) {
    EXPECT_THROW(model.forward(std::span(&bad, 1), cache, hidden, pool), Error);
    EXPECT_EQ(cache.length(), 0);
  }
}

TEST(Model, WhatIsMissingOrHasAnotherShapeIsNamed) {
  ThreadPool pool(1);
  ModelConfig config = small_config();
  config.attention_bias = true;
  const auto message = [&](const auto& damage) -> std::string {
    MapWeights weights = random_weights(config, 14);
    damage(weights);
    try {
      Model(config, weights, pool);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_input);
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message([](MapWeights&) {}), "accepted");
  EXPECT_THAT(message([](MapWeights& w) { w.matrices.erase("model.layers.1.mlp.up_proj"); }), HasSubstr("model.layers.1.mlp.up_proj"));
  EXPECT_THAT(message([](MapWeights& w) { w.vectors.erase("model.layers.0.input_layernorm.weight"); }),
              HasSubstr("model.layers.0.input_layernorm.weight"));
  EXPECT_THAT(message([](MapWeights& w) { w.vectors.erase("model.layers.0.self_attn.k_proj.bias"); }),
              HasSubstr("model.layers.0.self_attn.k_proj.bias"));
  EXPECT_THAT(message([](MapWeights& w) { w.vectors["model.norm.weight"].pop_back(); }), HasSubstr("39"));
  EXPECT_THAT(message([](MapWeights& w) {
                const std::string name = "model.layers.0.self_attn.q_proj";
                w.add(name, 63, 40, std::vector<float>(63 * 40));
              }), HasSubstr("[63, 40]"));
  EXPECT_THAT(message([](MapWeights& w) { w.matrices.erase("model.embed_tokens"); }), HasSubstr("embed_tokens"));
  EXPECT_THAT(message([](MapWeights& w) { w.matrices["model.layers.0.mlp.down_proj"].values[3] = NAN; }),
              HasSubstr("model.layers.0.mlp.down_proj"));
  config.tied_head = false;
  EXPECT_THAT(message([](MapWeights& w) { w.matrices.erase("lm_head"); }), HasSubstr("lm_head"));
}

TEST(Model, PrefixesOfMultimodalCheckpointsAreFound) {
  ThreadPool pool(1);
  const ModelConfig config = small_config();
  const auto tokens = some_tokens(9, config.vocabulary);
  const auto plain = run(Model(config, random_weights(config, 15), pool), tokens, {9}, pool);
  for (const char* stem : {"language_model.model.", "model.language_model.", ""}) {
    const Model model(config, random_weights(config, 15, stem), pool);
    EXPECT_TRUE(same_bytes(run(model, tokens, {9}, pool), plain)) << stem;
    EXPECT_EQ(model.matrices().front().module, std::string(stem) + "embed_tokens");
  }
}

TEST(Model, ATiedHeadIsHeldOnceAndEqualsAStoredCopy) {
  ThreadPool pool(1);
  ModelConfig config = small_config();
  MapWeights weights = random_weights(config, 16);
  const Model tied(config, weights, pool);
  config.tied_head = false;
  weights.add("lm_head", 61, 40, weights.matrices["model.embed_tokens"].values);
  const Model untied(config, weights, pool);
  const auto tokens = some_tokens(9, config.vocabulary);
  EXPECT_TRUE(same_bytes(run(tied, tokens, {9}, pool), run(untied, tokens, {9}, pool)));
  EXPECT_EQ(untied.parameter_count() - tied.parameter_count(), 61 * 40);
  EXPECT_GT(untied.weight_bytes(), tied.weight_bytes());
  EXPECT_EQ(untied.matrices().size(), tied.matrices().size() + 1);
  EXPECT_EQ(tied.matrices().size(), 1U + 2 * 7);
}

TEST(Model, HooksSeeEveryLinearAndBlockInOrder) {
  ThreadPool pool(2);
  ModelConfig config = small_config();
  config.layers.resize(1);
  const Model model(config, random_weights(config, 17), pool);
  const auto tokens = some_tokens(5, config.vocabulary);
  std::vector<std::string> seen;
  std::vector<float> last;
  KvCache cache(config, fp32_format(), 10);
  std::vector<float> hidden, without;
  model.forward(tokens, cache, hidden, pool, [&](const ActivationEvent& event) {
    EXPECT_EQ(event.rows, 5);
    EXPECT_EQ(std::ssize(event.values), event.rows * event.cols);
    const bool input = event.kind == ActivationEvent::Kind::linear_input;
    const bool block = event.kind == ActivationEvent::Kind::block_output;
    seen.push_back((input ? "in " : block ? "block " : "out ") + std::string(event.module.substr(6)));
    if (event.module.ends_with("down_proj")) { EXPECT_EQ(event.cols, input ? 72 : 40); }
    if (block) last.assign(event.values.begin(), event.values.end());
  });
  std::vector<std::string> wanted;
  for (const char* part : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                           "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
    wanted.push_back(std::string("in layers.0.") + part);
    wanted.push_back(std::string("out layers.0.") + part);
  }
  wanted.push_back("block layers.0");
  EXPECT_EQ(seen, wanted);
  cache.truncate(0);
  model.forward(tokens, cache, without, pool);
  EXPECT_TRUE(same_bytes(hidden, without));
  EXPECT_EQ(last.size(), hidden.size());
}

}  // namespace
}  // namespace halftone
