// A model ready to run: config, packed weights, one forward pass over a paged KV cache.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/progress.h"
#include "base/threads.h"
#include "kernels/attention/attention.h"
#include "kernels/matmul/matmul.h"
#include "model/config.h"
#include "tensor/weights.h"

namespace halftone {

// What calibration and layer reports see, in the order of computation. The values are valid during the call only.
struct ActivationEvent {
  enum class Kind { linear_input, linear_output, block_output } kind;
  // linear_*: the module as the checkpoint names it, "model.layers.0.self_attn.q_proj" (inputs are seen before they are
  // quantized, outputs with their bias); block_output: always "model.layers.N", whatever prefix the checkpoint uses.
  std::string_view module;
  std::span<const float> values;   // [rows, cols]
  std::int64_t rows = 0, cols = 0;
};
using ActivationHook = std::function<void(const ActivationEvent&)>;

// Keys and values of one sequence in pages that are allocated as they are needed.
class KvCache {
 public:
  // Error(usage) unless max_tokens is positive.
  KvCache(const ModelConfig& config, const ElementFormat& format, std::int64_t max_tokens);
  std::int64_t length() const { return length_; }
  std::int64_t max_tokens() const { return max_tokens_; }
  void truncate(std::int64_t length);  // forgets the tokens after; truncate(0) starts anew
  std::size_t bytes() const;           // allocated now
  // Of whole pages for so many tokens. Error(usage) if that is more than 2^63 bytes.
  static std::size_t bytes_for(const ModelConfig& config, const ElementFormat& format, std::int64_t tokens);

 private:
  friend class Model;
  void reserve(std::int64_t tokens);  // pages for positions [0, tokens)

  KvLayout layout_;
  std::int64_t length_ = 0, max_tokens_ = 0;
  std::vector<std::vector<std::unique_ptr<std::byte[]>>> pages_;  // [layer][page]
};

// kv formats by name: fp32 bf16 fp16 int8 fp8 (= fp8_e4m3) fp8_e5m2; Error(usage) lists them.
ElementFormat kv_format_or_fail(std::string_view name);

// Where a checkpoint keeps the text model: multimodal ones put it under a prefix.
struct ModuleNames {
  std::string stem;  // "model." of "model.layers.0.mlp.up_proj" and "model.embed_tokens"
  std::string head;  // "lm_head"; empty if there is none
};
ModuleNames find_module_names(const WeightSource& weights);  // Error(bad_input) if there is no embed_tokens

class Model {
 public:
  // Binds every weight of the config. Error(bad_input) names what is missing or has another shape. With
  // config.tied_head the embedding is the head, and a stored head is not looked at.
  Model(const ModelConfig& config, const WeightSource& weights, ThreadPool& pool, Progress& progress = no_progress());
  ~Model();
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;

  const ModelConfig& config() const;

  // Appends tokens to the cache and writes the final normed hidden states of all of them, [tokens, hidden].
  // Error(usage) if the cache would overflow (both numbers), Error(bad_input) for an id outside the vocabulary; the
  // cache is then as it was. The result does not depend on how a text is cut into calls, nor on the number of threads.
  // Without a hook, long inputs are worked off kChunk tokens at a time, which bounds the memory for activations.
  void forward(std::span<const std::int32_t> tokens, KvCache& cache, std::vector<float>& hidden, ThreadPool& pool,
               const ActivationHook& hook = {}) const;
  static constexpr std::int64_t kChunk = 512;
  // logits[rows, vocabulary] of hidden states.
  void logits(std::span<const float> hidden, std::int64_t rows, std::span<float> out, ThreadPool& pool) const;

  std::size_t weight_bytes() const;            // resident, all matrices and vectors (tied table once)
  std::size_t weight_bytes_per_token() const;  // read to decode one token
  std::int64_t parameter_count() const;
  struct MatrixReport {
    std::string module, scheme, kernel;
    std::int64_t rows, cols;
    std::size_t bytes;
  };
  std::vector<MatrixReport> matrices() const;

 private:
  struct Impl;  // model/weights.h
  std::unique_ptr<Impl> impl_;
};

}  // namespace halftone
