#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace halftone {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Json llama() {
  return Json::parse(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 100,
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "bos_token_id": 1, "eos_token_id": [2, 3]})");
}

Json gemma() {
  return Json::parse(R"({"model_type": "gemma3_text", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 7, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32,
    "query_pre_attn_scalar": 64, "sliding_window": 16})");
}

std::string refusal(const Json& config, ErrorKind kind) {
  try {
    model_config_from_json(config);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

TEST(ModelConfig, ReadsLlama) {
  const ModelConfig c = model_config_from_json(llama());
  EXPECT_EQ(c.architecture, "llama");
  EXPECT_EQ(c.head_dim, 16);
  EXPECT_EQ(c.kv_heads, 2);
  EXPECT_EQ(c.context, 2048);
  EXPECT_FLOAT_EQ(c.attention_scale, 0.25F);
  EXPECT_EQ(c.embedding_scale, 1.0F);
  EXPECT_EQ(c.rope.theta, 500000.0);
  EXPECT_EQ(c.rope.dim, 16);
  EXPECT_FALSE(c.tied_head);
  EXPECT_FALSE(c.qk_norm);
  EXPECT_FALSE(c.attention_bias);
  EXPECT_THAT(c.bos_ids, ElementsAre(1));
  EXPECT_THAT(c.eos_ids, ElementsAre(2, 3));
}

void expect_same(const RopeSpec& a, const RopeSpec& b) {
  EXPECT_EQ(a.type, b.type);
  EXPECT_EQ(a.theta, b.theta);
  EXPECT_EQ(a.dim, b.dim);
  EXPECT_EQ(a.factor, b.factor);
  EXPECT_EQ(a.low_freq_factor, b.low_freq_factor);
  EXPECT_EQ(a.high_freq_factor, b.high_freq_factor);
  if (a.type != RopeSpec::Type::default_) { EXPECT_EQ(a.original_context, b.original_context); }
}

TEST(ModelConfig, AllSpellingsOfNoRopeScalingAreTheSame) {
  const RopeSpec plain = model_config_from_json(llama()).rope;
  EXPECT_EQ(plain.type, RopeSpec::Type::default_);
  for (const char* scaling : {"null", R"({"type": "default"})", R"({"rope_type": "default"})", "{}"}) {
    Json config = llama();
    config["rope_scaling"] = Json::parse(scaling);
    expect_same(model_config_from_json(config).rope, plain);
  }
  Json config = llama();
  config.erase("rope_theta");
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500000.0}};
  expect_same(model_config_from_json(config).rope, plain);
}

TEST(ModelConfig, OldAndNewSpellingsOfScalingAreTheSame) {
  const Json parameters = {{"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0},
                           {"original_max_position_embeddings", 512}};
  std::vector<RopeSpec> specs;
  for (const char* key : {"type", "rope_type"}) {
    Json config = llama();
    config["rope_scaling"] = parameters;
    config["rope_scaling"][key] = "llama3";
    specs.push_back(model_config_from_json(config).rope);
  }
  Json config = llama();
  config.erase("rope_theta");
  config["rope_parameters"] = parameters;
  config["rope_parameters"]["rope_type"] = "llama3";
  config["rope_parameters"]["rope_theta"] = 500000.0;
  specs.push_back(model_config_from_json(config).rope);
  EXPECT_EQ(specs[0].type, RopeSpec::Type::llama3);
  EXPECT_EQ(specs[0].factor, 8.0);
  EXPECT_EQ(specs[0].original_context, 512);
  expect_same(specs[1], specs[0]);
  expect_same(specs[2], specs[0]);
}

TEST(ModelConfig, UnknownRopeTypeIsNamed) {
  Json config = llama();
  config["rope_scaling"] = {{"type", "dynamic"}, {"factor", 2.0}};
  EXPECT_THAT(refusal(config, ErrorKind::unsupported), HasSubstr("'dynamic'"));
  config["rope_scaling"] = {{"type", "linear"}};
  EXPECT_THAT(refusal(config, ErrorKind::bad_input), HasSubstr("'factor'"));
}

TEST(ModelConfig, UnknownArchitectureIsNamed) {
  Json config = llama();
  config["architectures"] = {"FooForCausalLM"};
  config["model_type"] = "foo";
  const std::string message = refusal(config, ErrorKind::unsupported);
  EXPECT_THAT(message, HasSubstr("FooForCausalLM"));
  for (const std::string_view name : supported_architectures()) EXPECT_THAT(message, HasSubstr(std::string(name)));
  config.erase("model_type");
  EXPECT_THAT(refusal(config, ErrorKind::unsupported), HasSubstr("FooForCausalLM"));
  config.erase("architectures");
  EXPECT_THAT(refusal(config, ErrorKind::bad_input), HasSubstr("model_type"));
}

TEST(ModelConfig, TheClassNameServesWithoutModelType) {
  Json config = llama();
  config.erase("model_type");
  EXPECT_EQ(model_config_from_json(config).architecture, "llama");
}

TEST(ModelConfig, GemmaHasItsPatternScalesAndLocalRope) {
  const ModelConfig c = model_config_from_json(gemma());
  ASSERT_EQ(c.layers.size(), 7U);
  for (std::size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(c.layers[i].window, i == 5 ? 0 : 16) << i;
    EXPECT_EQ(c.layers[i].local_rope, i != 5) << i;
  }
  EXPECT_EQ(c.rope.theta, 1e6);
  EXPECT_EQ(c.rope_local.theta, 1e4);
  EXPECT_EQ(c.embedding_scale, 8.0F);
  EXPECT_FLOAT_EQ(c.attention_scale, 1.0F / 8.0F);
  EXPECT_TRUE(c.norm_weight_plus_one && c.post_norms && c.qk_norm && c.tied_head);
  EXPECT_EQ(c.activation, GateActivation::gelu_tanh);
  EXPECT_EQ(c.final_softcap, 0.0F);
}

TEST(ModelConfig, GemmasScalingIsOfTheGlobalLayersOnlyInBothSpellings) {
  Json old_way = gemma();
  old_way["rope_theta"] = 1e6;
  old_way["rope_local_base_freq"] = 2e4;
  old_way["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  Json new_way = gemma();
  new_way["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1e6}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 2e4}}}};
  const ModelConfig a = model_config_from_json(old_way), b = model_config_from_json(new_way);
  EXPECT_EQ(a.rope.type, RopeSpec::Type::linear);
  EXPECT_EQ(a.rope_local.type, RopeSpec::Type::default_);
  EXPECT_EQ(a.rope_local.theta, 2e4);
  expect_same(a.rope, b.rope);
  expect_same(a.rope_local, b.rope_local);
}

TEST(ModelConfig, LayerTypesGoBeforeThePattern) {
  Json config = gemma();
  config["num_hidden_layers"] = 2;
  config["layer_types"] = {"full_attention", "sliding_attention"};
  const ModelConfig c = model_config_from_json(config);
  EXPECT_EQ(c.layers[0].window, 0);
  EXPECT_EQ(c.layers[1].window, 16);
  config["layer_types"] = {"full_attention", "linear_attention"};
  EXPECT_THAT(refusal(config, ErrorKind::unsupported), HasSubstr("linear_attention"));
  config["layer_types"] = {"full_attention"};
  EXPECT_THAT(refusal(config, ErrorKind::bad_input), HasSubstr("layer_types"));
}

TEST(ModelConfig, MultimodalGemmaReadsItsTextPartWithTheClassDefaults) {
  // As the released 4B config is written: what equals the class's defaults is left out.
  const Json config = Json::parse(R"({"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
    "eos_token_id": [1, 106], "text_config": {"hidden_size": 2560, "intermediate_size": 10240,
    "model_type": "gemma3_text", "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024}})");
  const ModelConfig c = model_config_from_json(config);
  EXPECT_EQ(c.vocabulary, 262208);
  EXPECT_EQ(c.heads, 8);
  EXPECT_EQ(c.kv_heads, 4);
  EXPECT_EQ(c.head_dim, 256);
  EXPECT_EQ(c.layers.size(), 34U);
  EXPECT_EQ(c.layers[5].window, 0);
  EXPECT_EQ(c.layers[6].window, 1024);
  EXPECT_EQ(c.rope.factor, 8.0);
  EXPECT_TRUE(c.tied_head);
  EXPECT_THAT(c.eos_ids, ElementsAre(1, 106));
}

TEST(ModelConfig, WindowsOfMistralAndQwen) {
  Json config = llama();
  config["model_type"] = "mistral";
  EXPECT_EQ(model_config_from_json(config).layers[0].window, 4096);  // the class's default
  config["sliding_window"] = nullptr;
  EXPECT_EQ(model_config_from_json(config).layers[0].window, 0);
  config["sliding_window"] = 12;
  EXPECT_EQ(model_config_from_json(config).layers[1].window, 12);

  config["model_type"] = "qwen2";
  config["max_window_layers"] = 1;
  EXPECT_EQ(model_config_from_json(config).layers[1].window, 0);
  config["use_sliding_window"] = true;
  const ModelConfig c = model_config_from_json(config);
  EXPECT_EQ(c.layers[0].window, 0);
  EXPECT_EQ(c.layers[1].window, 12);
  EXPECT_TRUE(c.attention_bias);
  EXPECT_FALSE(c.output_bias);

  config["model_type"] = "llama";  // which has no windows, whatever the file says
  EXPECT_EQ(model_config_from_json(config).layers[1].window, 0);
}

TEST(ModelConfig, SenselessFieldsAreNamed) {
  const auto with = [](const char* key, const Json& value) {
    Json config = llama();
    if (value.is_discarded()) {
      config.erase(key);
    } else {
      config[key] = value;
    }
    return refusal(config, ErrorKind::bad_input);
  };
  const Json missing(Json::value_t::discarded);
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"}) {
    EXPECT_THAT(with(key, missing), HasSubstr(key));
    EXPECT_THAT(with(key, 0), HasSubstr(key));
    EXPECT_THAT(with(key, -4), HasSubstr(key));
    EXPECT_THAT(with(key, 1e300), HasSubstr(key));
    EXPECT_THAT(with(key, 3.5), HasSubstr(key));
    EXPECT_THAT(with(key, "many"), HasSubstr(key));
  }
  EXPECT_THAT(with("num_key_value_heads", 3), HasSubstr("num_key_value_heads"));
  EXPECT_THAT(with("num_attention_heads", 6), HasSubstr("head"));
  EXPECT_THAT(with("head_dim", 15), HasSubstr("even"));
  EXPECT_THAT(with("rms_norm_eps", 0), HasSubstr("rms_norm_eps"));
  EXPECT_THAT(with("rope_theta", -1), HasSubstr("rope_theta"));
  EXPECT_THAT(with("rope_scaling", "linear"), HasSubstr("RoPE"));
  EXPECT_THAT(with("tie_word_embeddings", 1), HasSubstr("tie_word_embeddings"));
  EXPECT_THAT(with("eos_token_id", -1), HasSubstr("eos_token_id"));
  EXPECT_THAT(with("eos_token_id", "</s>"), HasSubstr("eos_token_id"));
  EXPECT_THAT(refusal(Json::array(), ErrorKind::bad_input), HasSubstr("object"));
  Json config = llama();
  config["hidden_act"] = "xielu";
  EXPECT_THAT(refusal(config, ErrorKind::unsupported), HasSubstr("xielu"));
}

TEST(ModelConfig, DivisorsOfGgufAreRead) {
  Json config = llama();
  config[std::string(kRopeDivisorsKey)] = {1, 1, 1, 2, 4, 8, 8, 8};
  EXPECT_THAT(model_config_from_json(config).rope.divisors, ElementsAre(1, 1, 1, 2, 4, 8, 8, 8));
  config[std::string(kRopeDivisorsKey)] = {1, 2};
  EXPECT_THAT(refusal(config, ErrorKind::bad_input), HasSubstr(std::string(kRopeDivisorsKey)));
}

}  // namespace
}  // namespace halftone
