// The forward pass: one for every architecture, led by ModelConfig.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/activation/activation.h"
#include "kernels/norm/norm.h"
#include "kernels/rope/rope.h"
#include "model/weights.h"

namespace halftone {
namespace {

constexpr std::int64_t kHeadRows = 64;  // rows of hidden states that the head works on at once

using Kind = ActivationEvent::Kind;

void emit(const ActivationHook& hook, Kind kind, std::string_view module, const float* values, std::int64_t rows,
          std::int64_t cols) {
  if (hook) hook({kind, module, {values, static_cast<std::size_t>(rows * cols)}, rows, cols});
}

// Applies linears to one input; the quantized form of the input is made once for each activation scheme in a row.
class LinearInput {
 public:
  LinearInput(const float* x, std::int64_t rows, ThreadPool& pool, const ActivationHook& hook)
      : x_(x), rows_(rows), pool_(pool), hook_(hook) {}

  struct Target {
    const Linear& linear;
    float* y;  // [rows, outputs]
  };

  void apply(const Linear& linear, float* y) { apply({{linear, y}}); }

  // All of them in one go if they want their input in the same form and nobody watches. `after` as matmul has it.
  void apply(std::initializer_list<Target> targets, const AfterBlock& after = nullptr) {
    const std::optional<Scheme>& scheme = targets.begin()->linear.weight.activations();
    bool together = !hook_;
    for (const Target& target : targets) together = together && target.linear.weight.activations() == scheme;
    std::vector<Product> products;
    for (const Target& target : targets) {
      const PackedMatrix& w = target.linear.weight;
      products.push_back({&w, target.linear.bias_data(), target.y, w.rows()});
      if (together && products.size() < targets.size()) continue;
      if (!assigned_ || activations_.scheme() != w.activations()) {
        activations_.assign({x_, static_cast<std::size_t>(rows_ * w.cols())}, rows_, w.cols(), w.activations(), pool_);
        assigned_ = true;
      }
      emit(hook_, Kind::linear_input, target.linear.module, x_, rows_, w.cols());
      matmul(products, activations_, pool_, together ? after : nullptr);
      emit(hook_, Kind::linear_output, target.linear.module, target.y, rows_, w.rows());
      products.clear();
    }
    if (after && !together) after(0, rows_, 0, targets.begin()->linear.weight.rows());
  }

 private:
  const float* x_;
  std::int64_t rows_;
  ThreadPool& pool_;
  const ActivationHook& hook_;
  Activations activations_;
  bool assigned_ = false;
};

void softcap(std::span<float> values, float cap, ThreadPool& pool) {
  pool.run_ranges(static_cast<std::int64_t>(values.size()), 1024, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      float& value = values[static_cast<std::size_t>(i)];
      value = cap * std::tanh(value / cap);
    }
  });
}

}  // namespace

void BlockRun::attention_input(const float* x, std::int64_t rows, float* normed) const {
  rms_norm(x, block.attention_norm, config.norm_eps, rows, config.hidden, normed, pool);
}

void BlockRun::attend(const float* normed, std::int64_t rows, std::int64_t position, const KvLayout& layout,
                      std::span<std::byte* const> pages, float* attended, BlockScratch& scratch) const {
  const std::int64_t heads = config.heads, kv_heads = config.kv_heads, dim = config.head_dim;
  float* q = scratch.q.get(rows * heads * dim);
  float* k = scratch.k.get(rows * kv_heads * dim);
  float* v = scratch.v.get(rows * kv_heads * dim);
  LinearInput(normed, rows, pool, hook).apply({{block.q, q}, {block.k, k}, {block.v, v}});
  if (config.qk_norm) {
    rms_norm(q, block.q_norm, config.norm_eps, rows * heads, dim, q, pool);
    rms_norm(k, block.k_norm, config.norm_eps, rows * kv_heads, dim, k, pool);
  }
  halftone::rope(q, rows, heads, dim, position, rope, config.rope_interleaved, pool);
  halftone::rope(k, rows, kv_heads, dim, position, rope, config.rope_interleaved, pool);
  pool.run(rows, [&](std::int64_t r, int) {
    const std::int64_t at = position + r;
    kv_write(layout, pages[static_cast<std::size_t>(at / kKvPageTokens)], at % kKvPageTokens, k + r * kv_heads * dim,
             v + r * kv_heads * dim);
  });
  const AttentionSpec spec{
      .heads = heads, .scale = config.attention_scale, .window = layer.window, .softcap = config.attention_softcap};
  attention(spec, layout, q, rows, position, pages, attended, pool);
}

void BlockRun::add_attention(const float* attended, std::int64_t rows, float* x, BlockScratch& scratch) const {
  float* branch = scratch.branch.get(rows * config.hidden);
  LinearInput(attended, rows, pool, hook).apply(block.o, branch);
  if (config.post_norms) {
    rms_norm(branch, block.post_attention_norm, config.norm_eps, rows, config.hidden, branch, pool);
  }
  add(x, branch, rows * config.hidden, pool);
}

void BlockRun::ffn_input(const float* x, std::int64_t rows, float* normed) const {
  rms_norm(x, block.ffn_norm, config.norm_eps, rows, config.hidden, normed, pool);
}

void BlockRun::gate_and_up(const float* normed, std::int64_t rows, float* gated, BlockScratch& scratch) const {
  float* up = scratch.up.get(rows * config.ffn);
  LinearInput(normed, rows, pool, hook)
      .apply({{block.gate, gated}, {block.up, up}}, [&](std::int64_t first_row, std::int64_t last_row,
                                                        std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first_row; r < last_row; ++r) {
          float* g = gated + r * config.ffn;
          gated_activation(config.activation, g + first, up + r * config.ffn + first, g + first, last - first);
        }
      });
}

void BlockRun::add_ffn(const float* gated, std::int64_t rows, float* x, BlockScratch& scratch) const {
  float* branch = scratch.branch.get(rows * config.hidden);
  LinearInput(gated, rows, pool, hook).apply(block.down, branch);
  if (config.post_norms) {
    rms_norm(branch, block.post_ffn_norm, config.norm_eps, rows, config.hidden, branch, pool);
  }
  add(x, branch, rows * config.hidden, pool);
}

void embed(const ModelConfig& config, const PackedMatrix& table, std::span<const std::int32_t> tokens, float* x,
           ThreadPool& pool) {
  pool.run(static_cast<std::int64_t>(tokens.size()), [&](std::int64_t r, int) {
    const std::span<float> row(x + r * config.hidden, static_cast<std::size_t>(config.hidden));
    table.decode_row(tokens[static_cast<std::size_t>(r)], row);
    if (config.embedding_scale != 1.0F) {
      for (float& value : row) value *= config.embedding_scale;
    }
  });
}

void Model::Impl::forward_chunk(std::span<const std::int32_t> tokens, KvCache& cache, std::int64_t position, float* out,
                                std::span<std::vector<std::byte*>> pages, ThreadPool& pool,
                                const ActivationHook& hook) const {
  const auto rows = static_cast<std::int64_t>(tokens.size());
  const auto buffer = [rows](std::int64_t cols) { return std::vector<float>(static_cast<std::size_t>(rows * cols)); };
  std::vector<float> x = buffer(config.hidden), normed = buffer(config.hidden);
  std::vector<float> attended = buffer(config.heads * config.head_dim), gated = buffer(config.ffn);
  BlockScratch scratch;

  embed(config, embedding.weight, tokens, x.data(), pool);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const LayerConfig& layer = config.layers[i];
    const BlockRun run{config, layer, blocks[i], layer.local_rope ? rope_local : rope, pool, hook};
    run.attention_input(x.data(), rows, normed.data());
    run.attend(normed.data(), rows, position, cache.layout_, pages[i], attended.data(), scratch);
    run.add_attention(attended.data(), rows, x.data(), scratch);
    run.ffn_input(x.data(), rows, normed.data());
    run.gate_and_up(normed.data(), rows, gated.data(), scratch);
    run.add_ffn(gated.data(), rows, x.data(), scratch);
    emit(hook, Kind::block_output, blocks[i].name, x.data(), rows, config.hidden);
  }
  rms_norm(x.data(), final_norm, config.norm_eps, rows, config.hidden, out, pool);
}

void Model::forward(std::span<const std::int32_t> tokens, KvCache& cache, std::vector<float>& hidden, ThreadPool& pool,
                    const ActivationHook& hook) const {
  const ModelConfig& config = impl_->config;
  HT_CHECK(cache.pages_.size() == config.layers.size() && cache.layout_.kv_heads == config.kv_heads &&
           cache.layout_.head_dim == config.head_dim);
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (count > cache.max_tokens_ - cache.length_) {
    fail(ErrorKind::usage, "{} tokens do not fit: the context holds {}, of which {} are used", count, cache.max_tokens_,
         cache.length_);
  }
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= config.vocabulary) {
      fail(ErrorKind::bad_input, "token {} is outside the model's vocabulary of {}", token, config.vocabulary);
    }
  }
  hidden.resize(static_cast<std::size_t>(count * config.hidden));
  if (count == 0) return;
  cache.reserve(cache.length_ + count);
  std::vector<std::vector<std::byte*>> pages(cache.pages_.size());
  for (std::size_t layer = 0; layer < pages.size(); ++layer) {
    for (const auto& page : cache.pages_[layer]) pages[layer].push_back(page.get());
  }
  const std::int64_t step = hook ? count : kChunk;
  for (std::int64_t first = 0; first < count; first += step) {
    const std::int64_t rows = std::min(step, count - first);
    impl_->forward_chunk(tokens.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(rows)), cache,
                         cache.length_ + first, hidden.data() + first * config.hidden, pages, pool, hook);
  }
  cache.length_ += count;
}

void Model::logits(std::span<const float> hidden, std::int64_t rows, std::span<float> out, ThreadPool& pool) const {
  compute_logits(impl_->config, impl_->head().weight, hidden, rows, out, pool);
}

void compute_logits(const ModelConfig& config, const PackedMatrix& head, std::span<const float> hidden,
                    std::int64_t rows, std::span<float> out, ThreadPool& pool) {
  HT_CHECK(rows >= 0 && static_cast<std::int64_t>(hidden.size()) == rows * config.hidden);
  HT_CHECK(static_cast<std::int64_t>(out.size()) == rows * config.vocabulary);
  Activations activations;
  for (std::int64_t first = 0; first < rows; first += kHeadRows) {
    const std::int64_t block = std::min(kHeadRows, rows - first);
    const auto input = hidden.subspan(static_cast<std::size_t>(first * config.hidden),
                                      static_cast<std::size_t>(block * config.hidden));
    activations.assign(input, block, config.hidden, head.activations(), pool);
    matmul(head, activations, nullptr, out.data() + first * config.vocabulary, config.vocabulary, pool);
  }
  if (config.final_softcap > 0) softcap(out, config.final_softcap, pool);
}

}  // namespace halftone
