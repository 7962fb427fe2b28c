// For tests only: a small random model in memory, and a tokenizer whose tokens are given byte strings.
#pragma once

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace halftone {

class MapWeights final : public WeightSource {
 public:
  struct Matrix {
    WeightInfo info;
    std::vector<float> values;
  };

  void add(const std::string& module, std::int64_t rows, std::int64_t cols, std::vector<float> values,
           const Scheme& scheme = {}, std::optional<Scheme> activations = std::nullopt) {
    matrices[module] = {{module, scheme, std::move(activations), rows, cols}, std::move(values)};
  }

  std::optional<WeightInfo> find(std::string_view module) const override {
    const auto found = matrices.find(std::string(module));
    return found == matrices.end() ? std::nullopt : std::optional(found->second.info);
  }

  QuantizedTensor rows(const WeightInfo& info, std::int64_t first, std::int64_t count) const override {
    const std::vector<float>& values = matrices.at(info.module).values;
    const auto part = std::span(values).subspan(static_cast<std::size_t>(first * info.cols),
                                                static_cast<std::size_t>(count * info.cols));
    TensorStats stats;
    accumulate_stats(stats, values, 0);
    if (!info.scheme.is_dense()) return quantize_rows(info.scheme, part, count, info.cols, stats);
    QuantizedTensor tensor;
    tensor.scheme = info.scheme;
    tensor.rows = count;
    tensor.cols = info.cols;
    std::memcpy(allocate_codes(tensor).data(), part.data(), part.size_bytes());  // FP32
    return tensor;
  }

  std::optional<std::vector<float>> vector(std::string_view name) const override {
    const auto found = vectors.find(std::string(name));
    return found == vectors.end() ? std::nullopt : std::optional(found->second);
  }

  std::map<std::string, Matrix> matrices;
  std::map<std::string, std::vector<float>> vectors;
};

// A Llama-like config; tests change it before they call random_weights.
inline ModelConfig small_config() {
  ModelConfig config;
  config.architecture = "llama";
  config.vocabulary = 61;
  config.hidden = 40;
  config.ffn = 72;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 16;
  config.context = 512;
  config.layers.resize(2);
  config.tied_head = true;
  config.attention_scale = 0.25F;
  config.rope.dim = config.head_dim;  // no layer uses rope_local
  return config;
}

inline MapWeights random_weights(const ModelConfig& config, std::uint64_t seed, const std::string& stem = "model.",
                                 const Scheme& scheme = {}, const std::optional<Scheme>& activations = std::nullopt) {
  MapWeights weights;
  CounterRng rng(seed);
  const auto random = [&](std::int64_t count, float scale, float offset) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = rng.next_normal() * scale + offset;
    return values;
  };
  const auto matrix = [&](const std::string& module, std::int64_t rows, std::int64_t cols, bool linear = true) {
    auto values = random(rows * cols, 1.5F / std::sqrt(static_cast<float>(cols)), 0);
    if (linear) {
      weights.add(module, rows, cols, std::move(values), scheme, activations);
    } else {
      weights.add(module, rows, cols, std::move(values));
    }
  };
  const auto norm = [&](const std::string& module, std::int64_t size) {
    weights.vectors[module + ".weight"] = random(size, 0.3F, config.norm_weight_plus_one ? 0.0F : 1.0F);
  };
  matrix(stem + "embed_tokens", config.vocabulary, config.hidden, false);
  if (!config.tied_head) matrix("lm_head", config.vocabulary, config.hidden, false);
  norm(stem + "norm", config.hidden);
  const std::int64_t q = config.heads * config.head_dim, kv = config.kv_heads * config.head_dim;
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const auto name = [&](std::string_view part) { return module_name(static_cast<std::int64_t>(i), part, stem); };
    norm(name("input_layernorm"), config.hidden);
    norm(name("post_attention_layernorm"), config.hidden);
    if (config.post_norms) {
      norm(name("pre_feedforward_layernorm"), config.hidden);
      norm(name("post_feedforward_layernorm"), config.hidden);
    }
    if (config.qk_norm) {
      norm(name("self_attn.q_norm"), config.head_dim);
      norm(name("self_attn.k_norm"), config.head_dim);
    }
    matrix(name("self_attn.q_proj"), q, config.hidden);
    matrix(name("self_attn.k_proj"), kv, config.hidden);
    matrix(name("self_attn.v_proj"), kv, config.hidden);
    matrix(name("self_attn.o_proj"), config.hidden, q);
    matrix(name("mlp.gate_proj"), config.ffn, config.hidden);
    matrix(name("mlp.up_proj"), config.ffn, config.hidden);
    matrix(name("mlp.down_proj"), config.hidden, config.ffn);
    if (config.attention_bias) {
      weights.vectors[name("self_attn.q_proj.bias")] = random(q, 0.3F, 0);
      weights.vectors[name("self_attn.k_proj.bias")] = random(kv, 0.3F, 0);
      weights.vectors[name("self_attn.v_proj.bias")] = random(kv, 0.3F, 0);
    }
  }
  return weights;
}

// Token i stands for texts[i]; token 0 is the end token.
class ListTokenizer final : public Tokenizer {
 public:
  explicit ListTokenizer(std::vector<std::string> texts) : texts_(std::move(texts)) {}

  std::vector<TokenId> encode(std::string_view text, const TokenizeOptions&) const override {
    std::vector<TokenId> ids;
    for (const char c : text) {
      for (std::size_t i = 1; i < texts_.size(); ++i) {
        if (texts_[i] == std::string(1, c)) {
          ids.push_back(static_cast<TokenId>(i));
          break;
        }
      }
    }
    return ids;
  }
  std::string token_bytes(TokenId id, bool show_control) const override {
    return id == 0 && !show_control ? "" : texts_[static_cast<std::size_t>(id)];
  }
  std::string decode(std::span<const TokenId> ids, bool show_control) const override {
    std::string text;
    for (const TokenId id : ids) text += token_bytes(id, show_control);
    return text;
  }
  std::int64_t vocabulary_size() const override { return std::ssize(texts_); }
  std::string_view token_text(TokenId id) const override { return texts_[static_cast<std::size_t>(id)]; }
  TokenType token_type(TokenId id) const override { return id == 0 ? TokenType::control : TokenType::normal; }
  std::optional<TokenId> find_token(std::string_view text) const override {
    for (std::size_t i = 0; i < texts_.size(); ++i) {
      if (texts_[i] == text) return static_cast<TokenId>(i);
    }
    return std::nullopt;
  }
  std::optional<TokenId> bos() const override { return std::nullopt; }
  std::optional<TokenId> eos() const override { return 0; }
  bool adds_bos() const override { return false; }
  std::vector<TokenId> end_tokens() const override { return {0}; }

 private:
  std::vector<std::string> texts_;
};

}  // namespace halftone
