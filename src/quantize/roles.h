// What a tensor is for, read from its canonical (Hugging Face) name and shape alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tensor/source.h"

namespace halftone {

enum class Role : std::uint8_t {
  embedding, head, norm, position, bias, router,
  attention_q, attention_k, attention_v, attention_o, attention_qkv, attention_kv,
  ffn_gate, ffn_up, ffn_down, ffn_gate_up,
  expert_gate, expert_up, expert_down, expert_gate_up,
  linear,  // a matrix that fits no other role: an unknown architecture's linear layer
  vision,  // whatever belongs to an image, video or audio tower
  other    // buffers, sinks, scalars: never quantized
};

std::string_view role_name(Role role);  // "attention.q", "expert.gate", ...
std::span<const Role> all_roles();
bool is_linear_role(Role role);  // what a recipe's default applies to

// `name` with or without a trailing ".weight" or ".bias"; `dims` is the number of dimensions of the tensor.
Role role_of(std::string_view name, std::size_t dims);

// "model.layers.0.mlp.up_proj" of "model.layers.0.mlp.up_proj.weight"; names without ".weight" stay as they are.
std::string module_of(std::string_view tensor_name);

}  // namespace halftone
