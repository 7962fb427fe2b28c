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

// Buffers that the stages of a block need beside their inputs and outputs; they grow and are used again.
struct BlockScratch {
  class Buffer {
   public:
    float* get(std::int64_t size) {
      if (values_.size() < static_cast<std::size_t>(size)) values_.resize(static_cast<std::size_t>(size));
      return values_.data();
    }

   private:
    std::vector<float> values_;
  };
  Buffer q, k, v, branch, up;
};

// One pass through a block, in the stages between which the inputs of its linears can be seen. x is [rows, hidden], the
// residual stream. Implemented in model/forward.cc.
struct BlockRun {
  const ModelConfig& config;
  const LayerConfig& layer;
  const Block& block;
  const RopeFrequencies& rope;
  ThreadPool& pool;
  const ActivationHook& hook;

  void attention_input(const float* x, std::int64_t rows, float* normed) const;  // what q, k and v read
  // What o reads, [rows, heads * head_dim]; keys and values of these rows go to the pages.
  void attend(const float* normed, std::int64_t rows, std::int64_t position, const KvLayout& layout,
              std::span<std::byte* const> pages, float* attended, BlockScratch& scratch) const;
  void add_attention(const float* attended, std::int64_t rows, float* x, BlockScratch& scratch) const;
  void ffn_input(const float* x, std::int64_t rows, float* normed) const;  // what gate and up read
  void gate_and_up(const float* normed, std::int64_t rows, float* gated, BlockScratch& scratch) const;  // what down reads
  void add_ffn(const float* gated, std::int64_t rows, float* x, BlockScratch& scratch) const;
};

// x[tokens, hidden] of the embedding table.
void embed(const ModelConfig& config, const PackedMatrix& table, std::span<const std::int32_t> tokens, float* x,
           ThreadPool& pool);

// What the head makes of hidden states, as Model::logits says.
void compute_logits(const ModelConfig& config, const PackedMatrix& head, std::span<const float> hidden,
                    std::int64_t rows, std::span<float> out, ThreadPool& pool);

// Binding (model/weights.cc): Error(bad_input) names what is missing or has another shape.
Linear bind_linear(const WeightSource& weights, const std::string& module, std::int64_t rows, std::int64_t cols,
                   bool bias, ThreadPool& pool);
std::vector<float> bind_norm(const ModelConfig& config, const WeightSource& weights, const std::string& module,
                             std::int64_t size);
Block bind_block(const ModelConfig& config, std::int64_t layer, const WeightSource& weights, const std::string& stem,
                 ThreadPool& pool, Progress& progress);

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
                     std::span<std::vector<std::byte*>> pages, ThreadPool& pool, const ActivationHook& hook) const;
};

}  // namespace halftone
