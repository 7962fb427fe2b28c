// An architecture is data: one ModelConfig, one forward pass that reads it. No class a model.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "kernels/activation/activation.h"
#include "kernels/rope/rope.h"

namespace halftone {

struct LayerConfig {
  std::int64_t window = 0;  // sliding window, 0 = full attention
  bool local_rope = false;  // uses rope_local instead of rope
};

struct ModelConfig {
  std::string architecture;  // model_type: "llama", "mistral", "gemma3_text", ...
  std::int64_t vocabulary = 0, hidden = 0, ffn = 0, heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t context = 0;  // max_position_embeddings
  std::vector<LayerConfig> layers;
  float norm_eps = 1e-5F;
  bool norm_weight_plus_one = false;  // stored as w, used as 1 + w
  bool post_norms = false;            // Gemma: norms after attention and FFN, before the residual
  bool qk_norm = false;               // RMSNorm a head before RoPE
  bool attention_bias = false, output_bias = false, ffn_bias = false;
  bool tied_head = false;
  float embedding_scale = 1.0F;
  float attention_scale = 0.0F;       // on q.k
  float attention_softcap = 0.0F, final_softcap = 0.0F;  // 0 = none
  GateActivation activation = GateActivation::silu;
  RopeSpec rope, rope_local;
  bool rope_interleaved = false;
  std::vector<std::int32_t> bos_ids, eos_ids;
};

// The key that config.json made from GGUF metadata holds the frequency divisors of rope_freqs.weight under, where no
// rope type of Hugging Face says them.
inline constexpr std::string_view kRopeDivisorsKey = "halftone_rope_divisors";

// From config.json (Hugging Face), old and new spellings of RoPE keys; of a multimodal config the text part.
// Error(unsupported) names the architecture or the key that cannot be run; Error(bad_input) names a missing or senseless
// field. Gemma's embedding scale is sqrt(hidden) in FP32, as transformers has it for a model loaded in FP32 (and as
// llama.cpp has it); transformers rounds it to BF16 only when it runs the model in BF16.
ModelConfig model_config_from_json(const nlohmann::ordered_json& config);
std::vector<std::string_view> supported_architectures();

// eos_token_id or bos_token_id of config.json or generation_config.json: a number, a list or null.
std::vector<std::int32_t> token_ids(const nlohmann::ordered_json& object, std::string_view key);

// Module names of the canonical (Hugging Face) naming, e.g. "model.layers.3.mlp.down_proj"; `stem` is what stands
// before "layers" ("language_model.model." in some multimodal checkpoints).
std::string module_name(std::int64_t layer, std::string_view part, std::string_view stem = "model.");

}  // namespace halftone
