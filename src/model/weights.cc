// Binding: every weight that the config asks for is found by name, checked, and packed for the kernels.
#include "model/weights.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/integer.h"

namespace halftone {
namespace {

constexpr std::int64_t kElementsAtOnce = std::int64_t{1} << 22;

std::vector<float> bind_vector(const WeightSource& weights, const std::string& name, std::int64_t size) {
  std::optional<std::vector<float>> values = weights.vector(name);
  if (!values) fail(ErrorKind::bad_input, "the checkpoint has no '{}' [{}], which its config asks for", name, size);
  if (static_cast<std::int64_t>(values->size()) != size) {
    fail(ErrorKind::bad_input, "'{}' has {} values, but the config asks for {}", name, values->size(), size);
  }
  return *std::move(values);
}

PackedMatrix pack(const WeightSource& weights, const WeightInfo& info, ThreadPool& pool) {
  PackedMatrixBuilder builder(info.rows, info.cols, info.scheme, info.activations);
  // Chunks must suit both the kernel's layout and the scheme's blocks.
  const std::int64_t multiple = std::lcm(builder.row_alignment(), row_multiple(info.scheme));
  const std::int64_t step =
      round_up(std::max<std::int64_t>(1, kElementsAtOnce / std::max<std::int64_t>(1, info.cols)), multiple);
  for (std::int64_t first = 0; first < info.rows; first += step) {
    const std::int64_t count = std::min(step, info.rows - first);
    builder.add_rows(first, weights.rows(info, first, count), pool);
    weights.forget(info);
  }
  return builder.finish();
}

std::uint64_t stored_bytes(const ModelConfig& config, const WeightSource& weights, const ModuleNames& names) {
  std::uint64_t bytes = 0;
  const auto add = [&](const std::string& module) {
    if (const auto info = weights.find(module)) {
      bytes += static_cast<std::uint64_t>(scheme_bytes(info->scheme, info->rows, info->cols));
    }
  };
  add(names.stem + "embed_tokens");
  if (!config.tied_head) add(names.head);
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    for (const char* part : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                             "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      add(module_name(static_cast<std::int64_t>(i), part, names.stem));
    }
  }
  return bytes;
}

}  // namespace

Linear bind_linear(const WeightSource& weights, const std::string& module, std::int64_t rows, std::int64_t cols,
                   bool bias, ThreadPool& pool) {
  throw_if_interrupted();
  const std::optional<WeightInfo> info = weights.find(module);
  if (!info) {
    fail(ErrorKind::bad_input, "the checkpoint has no weight '{}.weight' [{}, {}], which its config asks for", module,
         rows, cols);
  }
  if (info->rows != rows || info->cols != cols) {
    fail(ErrorKind::bad_input, "'{}.weight' is [{}, {}], but the config asks for [{}, {}]", module, info->rows,
         info->cols, rows, cols);
  }
  Linear out;
  out.module = module;
  try {
    out.weight = pack(weights, *info, pool);
  } catch (const Error& error) {
    if (std::string_view(error.what()).find(module) != std::string_view::npos) throw;
    fail(error.kind(), "'{}.weight': {}", module, error.what());
  }
  if (bias) out.bias = bind_vector(weights, module + ".bias", rows);
  return out;
}

std::vector<float> bind_norm(const ModelConfig& config, const WeightSource& weights, const std::string& module,
                             std::int64_t size) {
  std::vector<float> values = bind_vector(weights, module + ".weight", size);
  if (config.norm_weight_plus_one) {
    for (float& value : values) value += 1.0F;
  }
  return values;
}

Block bind_block(const ModelConfig& config, std::int64_t layer, const WeightSource& weights, const std::string& stem,
                 ThreadPool& pool, Progress& progress) {
  const std::int64_t hidden = config.hidden, ffn = config.ffn;
  const std::int64_t q_size = config.heads * config.head_dim, kv_size = config.kv_heads * config.head_dim;
  const auto name = [&](std::string_view part) { return module_name(layer, part, stem); };
  const auto norm = [&](std::string_view part, std::int64_t size) {
    return bind_norm(config, weights, name(part), size);
  };
  const auto linear = [&](std::string_view part, std::int64_t rows, std::int64_t cols, bool bias) {
    Linear out = bind_linear(weights, name(part), rows, cols, bias, pool);
    progress.advance(static_cast<std::uint64_t>(out.weight.bytes()), out.module);
    return out;
  };
  Block block;
  block.name = module_name(layer, "");
  block.attention_norm = norm("input_layernorm", hidden);
  if (config.post_norms) {
    block.post_attention_norm = norm("post_attention_layernorm", hidden);
    block.ffn_norm = norm("pre_feedforward_layernorm", hidden);
    block.post_ffn_norm = norm("post_feedforward_layernorm", hidden);
  } else {
    block.ffn_norm = norm("post_attention_layernorm", hidden);
  }
  if (config.qk_norm) {
    block.q_norm = norm("self_attn.q_norm", config.head_dim);
    block.k_norm = norm("self_attn.k_norm", config.head_dim);
  }
  block.q = linear("self_attn.q_proj", q_size, hidden, config.attention_bias);
  block.k = linear("self_attn.k_proj", kv_size, hidden, config.attention_bias);
  block.v = linear("self_attn.v_proj", kv_size, hidden, config.attention_bias);
  block.o = linear("self_attn.o_proj", hidden, q_size, config.output_bias);
  block.gate = linear("mlp.gate_proj", ffn, hidden, config.ffn_bias);
  block.up = linear("mlp.up_proj", ffn, hidden, config.ffn_bias);
  block.down = linear("mlp.down_proj", hidden, ffn, config.ffn_bias);
  return block;
}

ModuleNames find_module_names(const WeightSource& weights) {
  for (const char* stem : {"model.", "language_model.model.", "model.language_model.", "language_model.", ""}) {
    if (!weights.find(std::string(stem) + "embed_tokens")) continue;
    ModuleNames names;
    names.stem = stem;
    for (const char* head : {"lm_head", "language_model.lm_head", "model.lm_head"}) {
      if (weights.find(head)) {
        names.head = head;
        break;
      }
    }
    return names;
  }
  fail(ErrorKind::bad_input, "the checkpoint has no token embedding ('model.embed_tokens.weight'): it is no whole model");
}

std::vector<const Linear*> Model::Impl::linears() const {
  std::vector<const Linear*> out;
  for (const Block& block : blocks) {
    for (const Linear* linear : {&block.q, &block.k, &block.v, &block.o, &block.gate, &block.up, &block.down}) {
      out.push_back(linear);
    }
  }
  return out;
}

Model::Model(const ModelConfig& config, const WeightSource& weights, ThreadPool& pool, Progress& progress)
    : impl_(std::make_unique<Impl>()) {
  Impl& m = *impl_;
  m.config = config;
  m.rope = rope_frequencies(config.rope);
  // A config without local layers need not say how they would be rotated.
  const bool local = std::any_of(config.layers.begin(), config.layers.end(),
                                 [](const LayerConfig& layer) { return layer.local_rope; });
  if (local) m.rope_local = rope_frequencies(config.rope_local);

  const ModuleNames names = find_module_names(weights);
  progress.begin("load", stored_bytes(config, weights, names), "bytes");
  const auto table = [&](const std::string& module) {
    Linear out = bind_linear(weights, module, config.vocabulary, config.hidden, false, pool);
    progress.advance(static_cast<std::uint64_t>(out.weight.bytes()), module);
    return out;
  };
  m.embedding = table(names.stem + "embed_tokens");
  if (!config.tied_head) m.untied_head = table(names.head.empty() ? "lm_head" : names.head);
  m.final_norm = bind_norm(config, weights, names.stem + "norm", config.hidden);
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    m.blocks.push_back(bind_block(config, static_cast<std::int64_t>(i), weights, names.stem, pool, progress));
  }
  progress.end();
}

Model::~Model() = default;
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;

const ModelConfig& Model::config() const { return impl_->config; }

namespace {

std::int64_t vector_elements(const Block& block) {
  std::size_t count = 0;
  for (const std::vector<float>* v : {&block.attention_norm, &block.ffn_norm, &block.post_attention_norm,
                                      &block.post_ffn_norm, &block.q_norm, &block.k_norm, &block.q.bias, &block.k.bias,
                                      &block.v.bias, &block.o.bias, &block.gate.bias, &block.up.bias, &block.down.bias}) {
    count += v->size();
  }
  return static_cast<std::int64_t>(count);
}

}  // namespace

std::size_t Model::weight_bytes_per_token() const {
  // The whole head, but one row of an embedding of its own.
  std::size_t bytes = impl_->head().weight.bytes() + impl_->final_norm.size() * sizeof(float);
  if (!impl_->config.tied_head) {
    bytes += impl_->embedding.weight.bytes() / static_cast<std::size_t>(impl_->config.vocabulary);
  }
  for (const Linear* linear : impl_->linears()) bytes += linear->weight.bytes();
  for (const Block& block : impl_->blocks) bytes += static_cast<std::size_t>(vector_elements(block)) * sizeof(float);
  return bytes;
}

std::size_t Model::weight_bytes() const {
  std::size_t bytes = 0;
  for (const MatrixReport& matrix : matrices()) bytes += matrix.bytes;
  for (const Block& block : impl_->blocks) bytes += static_cast<std::size_t>(vector_elements(block)) * sizeof(float);
  return bytes + impl_->final_norm.size() * sizeof(float);
}

std::int64_t Model::parameter_count() const {
  std::int64_t count = static_cast<std::int64_t>(impl_->final_norm.size());
  for (const MatrixReport& matrix : matrices()) count += matrix.rows * matrix.cols;
  for (const Block& block : impl_->blocks) count += vector_elements(block);
  return count;
}

std::vector<Model::MatrixReport> Model::matrices() const {
  std::vector<MatrixReport> out;
  const auto add = [&](const Linear& linear) {
    const PackedMatrix& w = linear.weight;
    std::string scheme = to_string(w.scheme());
    if (w.activations()) scheme += " x " + to_string(*w.activations());
    out.push_back({linear.module, std::move(scheme), w.kernel_name(), w.rows(), w.cols(), w.bytes()});
  };
  add(impl_->embedding);
  for (const Linear* linear : impl_->linears()) add(*linear);
  if (!impl_->config.tied_head) add(impl_->untied_head);
  return out;
}

}  // namespace halftone
