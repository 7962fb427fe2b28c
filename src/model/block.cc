#include "model/block.h"

#include "base/error.h"
#include "kernels/norm/norm.h"
#include "model/weights.h"

namespace halftone {

struct DecoderBlock::Impl {
  const ModelConfig& config;
  LayerConfig layer;
  RopeFrequencies rope;
  Block block;
  KvLayout layout;
  mutable BlockScratch scratch;
  mutable std::vector<std::vector<std::byte>> pages;

  std::vector<Linear*> linears(BlockStage stage) {
    switch (stage) {
      case BlockStage::qkv:
        return {&block.q, &block.k, &block.v};
      case BlockStage::attention_out:
        return {&block.o};
      case BlockStage::gate_up:
        return {&block.gate, &block.up};
      case BlockStage::ffn_down:
        return {&block.down};
    }
    return {};
  }

  BlockRun run(ThreadPool& pool) const {
    static const ActivationHook none;
    return BlockRun{config, layer, block, rope, pool, none};
  }
};

DecoderBlock::DecoderBlock(const ModelConfig& config, std::int64_t layer, const WeightSource& weights,
                           ThreadPool& pool) {
  const LayerConfig& kind = config.layers.at(static_cast<std::size_t>(layer));
  const KvLayout layout{config.kv_heads, config.head_dim, fp32_format()};
  impl_ = std::make_unique<Impl>(
      Impl{config,
           kind,
           rope_frequencies(kind.local_rope ? config.rope_local : config.rope),
           bind_block(config, layer, weights, find_module_names(weights).stem, pool, no_progress()),
           layout,
           {},
           {}});
}

DecoderBlock::~DecoderBlock() = default;
DecoderBlock::DecoderBlock(DecoderBlock&&) noexcept = default;

std::vector<std::string> DecoderBlock::modules(BlockStage stage) const {
  std::vector<std::string> names;
  for (const Linear* linear : impl_->linears(stage)) names.push_back(linear->module);
  return names;
}

std::int64_t DecoderBlock::input_cols(BlockStage stage) const {
  return impl_->linears(stage).front()->weight.cols();
}

void DecoderBlock::rebind(BlockStage stage, const WeightSource& weights, ThreadPool& pool) {
  for (Linear* linear : impl_->linears(stage)) {
    if (!weights.find(linear->module)) continue;
    // The bias is no matrix: it stays as it is.
    Linear other = bind_linear(weights, linear->module, linear->weight.rows(), linear->weight.cols(), false, pool);
    linear->weight = std::move(other.weight);
  }
}

void DecoderBlock::input(BlockStage stage, const float* from, std::int64_t rows, float* out, ThreadPool& pool) const {
  const BlockRun run = impl_->run(pool);
  switch (stage) {
    case BlockStage::qkv:
      return run.attention_input(from, rows, out);
    case BlockStage::gate_up:
      return run.ffn_input(from, rows, out);
    case BlockStage::ffn_down:
      return run.gate_and_up(from, rows, out, impl_->scratch);
    case BlockStage::attention_out:
      break;
  }
  std::vector<std::byte*> pages;
  for (std::int64_t at = 0; at < rows; at += kKvPageTokens) {
    const auto page = static_cast<std::size_t>(at / kKvPageTokens);
    if (page == impl_->pages.size()) impl_->pages.emplace_back(impl_->layout.page_bytes());
    pages.push_back(impl_->pages[page].data());
  }
  run.attend(from, rows, 0, impl_->layout, pages, out, impl_->scratch);
}

void DecoderBlock::forward(float* x, std::int64_t rows, ThreadPool& pool) const {
  const float* from = x;
  std::vector<float> inputs[2];
  for (const BlockStage stage : kBlockStages) {
    const bool adds = stage == BlockStage::attention_out || stage == BlockStage::ffn_down;
    std::vector<float>& out = inputs[adds ? 1 : 0];
    out.resize(static_cast<std::size_t>(rows * input_cols(stage)));
    input(stage, adds ? from : x, rows, out.data(), pool);
    from = out.data();
    if (adds) add_output(stage, out.data(), rows, x, pool);
  }
}

void DecoderBlock::add_output(BlockStage stage, const float* input, std::int64_t rows, float* x,
                              ThreadPool& pool) const {
  const BlockRun run = impl_->run(pool);
  HT_CHECK(stage == BlockStage::attention_out || stage == BlockStage::ffn_down);
  if (stage == BlockStage::attention_out) return run.add_attention(input, rows, x, impl_->scratch);
  run.add_ffn(input, rows, x, impl_->scratch);
}

struct ModelEnds::Impl {
  const ModelConfig& config;
  ModuleNames names;
  std::string table, head;
  Linear embedding, untied_head;
  std::vector<float> final_norm;

  Linear bind(const WeightSource& weights, const std::string& module, ThreadPool& pool) const {
    return bind_linear(weights, module, config.vocabulary, config.hidden, false, pool);
  }
};

ModelEnds::ModelEnds(const ModelConfig& config, const WeightSource& weights, ThreadPool& pool) {
  ModuleNames names = find_module_names(weights);
  const std::string table = names.stem + "embed_tokens";
  const std::string head = config.tied_head ? table : names.head.empty() ? "lm_head" : names.head;
  std::vector<float> norm = bind_norm(config, weights, names.stem + "norm", config.hidden);
  impl_ = std::make_unique<Impl>(Impl{config, std::move(names), table, head, {}, {}, std::move(norm)});
  rebind_table(weights, pool);
  if (table != head) rebind_head(weights, pool);
}

ModelEnds::~ModelEnds() = default;
ModelEnds::ModelEnds(ModelEnds&&) noexcept = default;

const std::string& ModelEnds::table_module() const {
  return impl_->table;
}
const std::string& ModelEnds::head_module() const {
  return impl_->head;
}

void ModelEnds::rebind_table(const WeightSource& weights, ThreadPool& pool) {
  impl_->embedding = impl_->bind(weights, impl_->table, pool);
}

void ModelEnds::rebind_head(const WeightSource& weights, ThreadPool& pool) {
  HT_CHECK(impl_->table != impl_->head);
  impl_->untied_head = impl_->bind(weights, impl_->head, pool);
}

void ModelEnds::embed(std::span<const std::int32_t> tokens, float* x, ThreadPool& pool) const {
  halftone::embed(impl_->config, impl_->embedding.weight, tokens, x, pool);
}

void ModelEnds::head_input(const float* x, std::int64_t rows, float* out, ThreadPool& pool) const {
  rms_norm(x, impl_->final_norm, impl_->config.norm_eps, rows, impl_->config.hidden, out, pool);
}

void ModelEnds::logits(const float* head_input, std::int64_t rows, float* out, ThreadPool& pool) const {
  const Linear& head = impl_->table == impl_->head ? impl_->embedding : impl_->untied_head;
  compute_logits(impl_->config, head.weight, {head_input, static_cast<std::size_t>(rows * impl_->config.hidden)}, rows,
                 {out, static_cast<std::size_t>(rows * impl_->config.vocabulary)}, pool);
}

}  // namespace halftone
