// Inside model/ only: the bound weights of a Model.
#pragma once

#include <string>
#include <vector>

#include "model/model.h"

namespace halftone {

struct Linear {
  std::string module;
  PackedMatrix weight;
  std::vector<float> bias;  // empty if none

  const float* bias_data() const { return bias.empty() ? nullptr : bias.data(); }
};

struct Block {
  std::string name;  // "model.layers.N"
  // ffn_norm is what stands before the FFN: post_attention_layernorm in Llama, pre_feedforward_layernorm in Gemma.
  std::vector<float> attention_norm, ffn_norm;
  std::vector<float> post_attention_norm, post_ffn_norm;  // Gemma only
  std::vector<float> q_norm, k_norm;                      // [head_dim] or empty
  Linear q, k, v, o, gate, up, down;
};

struct Model::Impl {
  ModelConfig config;
  Linear embedding;  // also the head if config.tied_head
  Linear untied_head;
  std::vector<float> final_norm;
  std::vector<Block> blocks;
  RopeFrequencies rope, rope_local;

  const Linear& head() const { return config.tied_head ? embedding : untied_head; }
  std::vector<const Linear*> linears() const;  // of all blocks, in order of computation

  // model/forward.cc: appends one chunk to the cache; out is [tokens, hidden].
  void forward_chunk(std::span<const std::int32_t> tokens, KvCache& cache, std::int64_t position, float* out,
                     std::span<std::vector<const std::byte*>> pages, ThreadPool& pool, const ActivationHook& hook) const;
};

}  // namespace halftone
