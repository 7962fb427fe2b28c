#include "quantize/roles.h"

#include <gtest/gtest.h>

#include <set>

namespace halftone {
namespace {

struct Case {
  const char* name;
  std::size_t dims;
  Role role;
};

TEST(Roles, CanonicalNamesOfManyFamilies) {
  const Case cases[] = {
      {"model.embed_tokens.weight", 2, Role::embedding},
      {"transformer.wte.weight", 2, Role::embedding},
      {"lm_head.weight", 2, Role::head},
      {"language_model.lm_head.weight", 2, Role::head},
      {"model.norm.weight", 1, Role::norm},
      {"model.layers.0.input_layernorm.weight", 1, Role::norm},
      {"model.layers.0.self_attn.q_norm.weight", 1, Role::norm},
      {"transformer.h.0.ln_1.bias", 1, Role::norm},
      {"transformer.wpe.weight", 2, Role::position},
      {"model.layers.0.self_attn.q_proj.weight", 2, Role::attention_q},
      {"model.layers.0.self_attn.q_proj.bias", 1, Role::bias},
      {"model.layers.0.self_attn.k_proj.weight", 2, Role::attention_k},
      {"model.layers.0.self_attn.v_proj.weight", 2, Role::attention_v},
      {"model.layers.0.self_attn.o_proj.weight", 2, Role::attention_o},
      {"model.layers.0.self_attn.kv_a_proj_with_mqa.weight", 2, Role::attention_kv},
      {"model.layers.0.self_attn.q_b_proj.weight", 2, Role::attention_q},
      {"transformer.h.0.attn.c_attn.weight", 2, Role::attention_qkv},
      {"transformer.h.0.attn.c_proj.weight", 2, Role::attention_o},
      {"transformer.h.0.mlp.c_proj.weight", 2, Role::ffn_down},
      {"transformer.h.0.mlp.c_fc.weight", 2, Role::ffn_up},
      {"transformer.h.0.attn.bias", 4, Role::other},
      {"model.layers.0.mlp.gate_proj.weight", 2, Role::ffn_gate},
      {"model.layers.0.mlp.up_proj.weight", 2, Role::ffn_up},
      {"model.layers.0.mlp.down_proj.weight", 2, Role::ffn_down},
      {"model.layers.3.mlp.gate.weight", 2, Role::router},
      {"model.layers.3.mlp.gate.e_score_correction_bias", 1, Role::router},
      {"model.layers.3.block_sparse_moe.gate.weight", 2, Role::router},
      {"model.layers.3.mlp.experts.17.down_proj.weight", 2, Role::expert_down},
      {"model.layers.3.block_sparse_moe.experts.1.w1.weight", 2, Role::expert_gate},
      {"model.layers.3.block_sparse_moe.experts.1.w2.weight", 2, Role::expert_down},
      {"model.layers.3.mlp.experts.gate_up_proj", 3, Role::expert_gate_up},
      {"model.layers.3.mlp.experts.gate_up_proj_bias", 2, Role::bias},
      {"model.layers.3.mlp.shared_experts.up_proj.weight", 2, Role::ffn_up},
      {"vision_tower.encoder.layers.0.self_attn.q_proj.weight", 2, Role::vision},
      {"foo.blocks.0.mixer.weight", 2, Role::linear},
      {"model.layers.0.self_attn.rotary_emb.inv_freq", 1, Role::other},
      {"model.layers.0.self_attn.sinks", 1, Role::other},
  };
  for (const Case& c : cases) EXPECT_EQ(role_name(role_of(c.name, c.dims)), role_name(c.role)) << c.name;
}

TEST(Roles, NamesAreDistinctAndLinearRolesAreThoseOfLinears) {
  std::set<std::string_view> names;
  for (const Role role : all_roles()) EXPECT_TRUE(names.insert(role_name(role)).second) << role_name(role);
  EXPECT_TRUE(is_linear_role(Role::attention_q));
  EXPECT_TRUE(is_linear_role(Role::expert_up));
  EXPECT_TRUE(is_linear_role(Role::linear));
  for (const Role role : {Role::embedding, Role::head, Role::norm, Role::router, Role::bias, Role::vision}) {
    EXPECT_FALSE(is_linear_role(role)) << role_name(role);
  }
}

}  // namespace
}  // namespace halftone
