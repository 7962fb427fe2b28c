#include "quantize/roles.h"

#include <array>
#include <vector>

namespace halftone {
namespace {

struct RoleName {
  Role role;
  std::string_view name;
};
constexpr RoleName kNames[] = {{Role::embedding, "embedding"},
                               {Role::head, "head"},
                               {Role::norm, "norm"},
                               {Role::position, "position"},
                               {Role::bias, "bias"},
                               {Role::router, "router"},
                               {Role::attention_q, "attention.q"},
                               {Role::attention_k, "attention.k"},
                               {Role::attention_v, "attention.v"},
                               {Role::attention_o, "attention.o"},
                               {Role::attention_qkv, "attention.qkv"},
                               {Role::attention_kv, "attention.kv"},
                               {Role::ffn_gate, "ffn.gate"},
                               {Role::ffn_up, "ffn.up"},
                               {Role::ffn_down, "ffn.down"},
                               {Role::ffn_gate_up, "ffn.gate_up"},
                               {Role::expert_gate, "expert.gate"},
                               {Role::expert_up, "expert.up"},
                               {Role::expert_down, "expert.down"},
                               {Role::expert_gate_up, "expert.gate_up"},
                               {Role::linear, "linear"},
                               {Role::vision, "vision"},
                               {Role::other, "other"}};

struct LeafRole {
  std::string_view leaf;
  Role role;
};
// The last part of a module's name. FFN names of experts become expert roles below.
constexpr LeafRole kLeaves[] = {
    {"embed_tokens", Role::embedding}, {"wte", Role::embedding},           {"word_embeddings", Role::embedding},
    {"tok_embeddings", Role::embedding}, {"embed_in", Role::embedding},    {"token_embd", Role::embedding},
    {"lm_head", Role::head},           {"embed_out", Role::head},          {"output_layer", Role::head},
    {"wpe", Role::position},           {"embed_positions", Role::position}, {"position_embeddings", Role::position},
    {"q_proj", Role::attention_q},     {"q_a_proj", Role::attention_q},    {"q_b_proj", Role::attention_q},
    {"wq", Role::attention_q},         {"query", Role::attention_q},
    {"k_proj", Role::attention_k},     {"wk", Role::attention_k},          {"key", Role::attention_k},
    {"v_proj", Role::attention_v},     {"wv", Role::attention_v},          {"value", Role::attention_v},
    {"o_proj", Role::attention_o},     {"out_proj", Role::attention_o},    {"wo", Role::attention_o},
    {"qkv_proj", Role::attention_qkv}, {"c_attn", Role::attention_qkv},    {"query_key_value", Role::attention_qkv},
    {"Wqkv", Role::attention_qkv},     {"in_proj_qkv", Role::attention_qkv},
    {"kv_a_proj_with_mqa", Role::attention_kv}, {"kv_b_proj", Role::attention_kv},
    {"gate_proj", Role::ffn_gate},     {"w1", Role::ffn_gate},
    {"up_proj", Role::ffn_up},         {"w3", Role::ffn_up},               {"c_fc", Role::ffn_up},
    {"fc1", Role::ffn_up},             {"dense_h_to_4h", Role::ffn_up},
    {"down_proj", Role::ffn_down},     {"w2", Role::ffn_down},             {"fc2", Role::ffn_down},
    {"dense_4h_to_h", Role::ffn_down}, {"gate_up_proj", Role::ffn_gate_up}};

std::vector<std::string_view> split_dots(std::string_view text) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t dot = text.find('.');
    parts.push_back(text.substr(0, dot));
    if (dot == std::string_view::npos) return parts;
    text.remove_prefix(dot + 1);
  }
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

bool is_tower(std::string_view part) {
  for (const std::string_view word : {"vision", "visual", "audio", "image", "video", "multi_modal_projector"}) {
    if (part.starts_with(word)) return true;
  }
  return false;
}

Role expert_of(Role role) {
  switch (role) {
    case Role::ffn_gate: return Role::expert_gate;
    case Role::ffn_up: return Role::expert_up;
    case Role::ffn_down: return Role::expert_down;
    case Role::ffn_gate_up: return Role::expert_gate_up;
    default: return role;
  }
}

}  // namespace

std::string_view role_name(Role role) {
  for (const RoleName& entry : kNames) {
    if (entry.role == role) return entry.name;
  }
  return "other";
}

std::span<const Role> all_roles() {
  static constexpr auto roles = [] {
    std::array<Role, std::size(kNames)> out{};
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = kNames[i].role;
    return out;
  }();
  return roles;
}

bool is_linear_role(Role role) {
  switch (role) {
    case Role::embedding: case Role::head: case Role::norm: case Role::position: case Role::bias: case Role::router:
    case Role::vision: case Role::other:
      return false;
    default:
      return true;
  }
}

std::string module_of(std::string_view tensor_name) {
  if (tensor_name.ends_with(".weight")) tensor_name.remove_suffix(7);
  return std::string(tensor_name);
}

Role role_of(std::string_view name, std::size_t dims) {
  const bool is_bias = name.ends_with(".bias") || name.ends_with("_bias");
  std::string_view module = name;
  if (module.ends_with(".weight")) module.remove_suffix(7);
  if (module.ends_with(".bias")) module.remove_suffix(5);
  const std::vector<std::string_view> parts = split_dots(module);
  const std::string_view leaf = parts.back();
  bool in_experts = false, in_attention = false, in_ffn = false;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (is_tower(parts[i])) return Role::vision;
    if (i + 1 == parts.size()) break;
    in_experts = in_experts || parts[i] == "experts";
    in_attention = in_attention || contains(parts[i], "attn") || contains(parts[i], "attention");
    in_ffn = in_ffn || contains(parts[i], "mlp") || contains(parts[i], "feed_forward") || contains(parts[i], "ffn") ||
             contains(parts[i], "moe");
  }
  const bool names_norm = contains(leaf, "norm") || leaf.starts_with("ln_") || leaf == "enorm" || leaf == "hnorm";
  if (dims <= 1) {
    if (leaf == "gate" && is_bias) return Role::router;
    if (contains(leaf, "e_score_correction_bias")) return Role::router;
    if (names_norm) return Role::norm;
    return is_bias ? Role::bias : Role::other;
  }
  if (names_norm) return Role::norm;
  if (leaf == "gate" || leaf == "router" || leaf == "shared_expert_gate" || (leaf == "weight" && in_experts)) {
    return Role::router;
  }
  // Attention masks and other buffers that old checkpoints carry beside the weights.
  if (is_bias && !in_experts) return Role::other;
  if (is_bias) return Role::bias;
  if (contains(leaf, "inv_freq") || contains(leaf, "masked_bias")) return Role::other;
  if (leaf == "c_proj") return in_attention ? Role::attention_o : in_ffn ? Role::ffn_down : Role::linear;
  if (leaf == "dense") return in_attention ? Role::attention_o : Role::linear;
  if (leaf == "output" && parts.size() == 1) return Role::head;
  for (const LeafRole& entry : kLeaves) {
    if (entry.leaf == leaf) return in_experts ? expert_of(entry.role) : entry.role;
  }
  return Role::linear;
}

}  // namespace halftone
