// One block of a model on its own, in the stages between which the inputs of its linears can be seen: for jobs that
// walk a model block by block and never hold more of it (calibration).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/threads.h"
#include "kernels/matmul/matmul.h"
#include "model/config.h"
#include "tensor/weights.h"

namespace halftone {

// Linears that read the same values, in the order of computation.
enum class BlockStage : std::uint8_t { qkv, attention_out, gate_up, ffn_down };
inline constexpr std::array kBlockStages = {BlockStage::qkv, BlockStage::attention_out, BlockStage::gate_up,
                                            BlockStage::ffn_down};

class DecoderBlock {
 public:
  // Error(bad_input) names what is missing or has another shape. `config` must outlive the block.
  DecoderBlock(const ModelConfig& config, std::int64_t layer, const WeightSource& weights, ThreadPool& pool);
  ~DecoderBlock();
  DecoderBlock(DecoderBlock&&) noexcept;

  // "model.layers.3.self_attn.q_proj", ...: as the checkpoint names them.
  std::vector<std::string> modules(BlockStage stage) const;
  std::int64_t input_cols(BlockStage stage) const;
  // Takes linears of a stage from other weights, such as their quantized form; those that `weights` does not have stay.
  void rebind(BlockStage stage, const WeightSource& weights, ThreadPool& pool);

  // What the linears of a stage read, [rows, input_cols(stage)], from what came before: the residual stream x [rows,
  // hidden] for qkv and gate_up, the stage's predecessor's input for attention_out and ffn_down. The rows are one
  // sequence that starts at position 0.
  void input(BlockStage stage, const float* from, std::int64_t rows, float* out, ThreadPool& pool) const;
  // The whole block: x [rows, hidden], one sequence from position 0.
  void forward(float* x, std::int64_t rows, ThreadPool& pool) const;
  // x += the output of attention_out or ffn_down for their inputs.
  void add_output(BlockStage stage, const float* input, std::int64_t rows, float* x, ThreadPool& pool) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The parts of a model around its blocks.
class ModelEnds {
 public:
  ModelEnds(const ModelConfig& config, const WeightSource& weights, ThreadPool& pool);
  ~ModelEnds();
  ModelEnds(ModelEnds&&) noexcept;

  const std::string& table_module() const;  // "model.embed_tokens"
  const std::string& head_module() const;   // of the matrix that makes logits: the table's, if they are tied
  // Take the table (a tied head with it) or an untied head from other weights.
  void rebind_table(const WeightSource& weights, ThreadPool& pool);
  void rebind_head(const WeightSource& weights, ThreadPool& pool);

  void embed(std::span<const std::int32_t> tokens, float* x, ThreadPool& pool) const;  // x[tokens, hidden]
  // What the head reads, [rows, hidden], from the residual stream after the last block.
  void head_input(const float* x, std::int64_t rows, float* out, ThreadPool& pool) const;
  // logits[rows, vocabulary] of that.
  void logits(const float* head_input, std::int64_t rows, float* out, ThreadPool& pool) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace halftone
