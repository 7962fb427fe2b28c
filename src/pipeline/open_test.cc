#include "pipeline/open.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "base/error.h"
#include "base/testing.h"
#include "model/model.h"
#include "pipeline/import_gguf.h"
#include "pipeline/testing_checkpoint.h"
#include "pipeline/testing_gguf.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const fs::path kGolden = fs::path(HALFTONE_SOURCE_DIR) / "tests" / "golden_models";

struct Expected {
  std::vector<std::int32_t> ids;
  std::vector<float> logits;
};

Expected expected_of(const std::string& name) {
  const SafetensorsFile file(kGolden / name / "expected.safetensors");
  Expected out;
  out.logits = read_as_float(file, file.at("logits"));
  for (const float id : read_as_float(file, file.at("input_ids"))) out.ids.push_back(static_cast<std::int32_t>(id));
  return out;
}

std::vector<float> logits_of(const Checkpoint& checkpoint, const std::vector<std::int32_t>& ids, std::size_t step,
                             ThreadPool& pool) {
  const Model model(runnable_config(checkpoint), *checkpoint.weights, pool);
  KvCache cache(model.config(), fp32_format(), std::ssize(ids));
  std::vector<float> hidden, all;
  for (std::size_t first = 0; first < ids.size(); first += step) {
    model.forward(std::span(ids).subspan(first, std::min(step, ids.size() - first)), cache, hidden, pool);
    all.insert(all.end(), hidden.begin(), hidden.end());
  }
  std::vector<float> logits(ids.size() * static_cast<std::size_t>(model.config().vocabulary));
  model.logits(all, std::ssize(ids), logits, pool);
  return logits;
}

// Largest difference over the largest magnitude of the reference.
double relative_error(const std::vector<float>& got, const std::vector<float>& wanted) {
  EXPECT_EQ(got.size(), wanted.size());
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < std::min(got.size(), wanted.size()); ++i) {
    const double difference = std::fabs(static_cast<double>(got[i]) - wanted[i]);
    if (!(difference <= worst)) worst = difference;  // a NaN stays
    largest = std::max(largest, std::fabs(static_cast<double>(wanted[i])));
  }
  return worst / largest;
}

std::string message_of(const std::function<void()>& body, ErrorKind kind) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

class GoldenModel : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenModel, LogitsEqualThoseOfTransformers) {
  ThreadPool pool(2);
  const Expected expected = expected_of(GetParam());
  const Checkpoint checkpoint = open_checkpoint(kGolden / GetParam());
  EXPECT_EQ(checkpoint.model_refusal, "");
  const auto prefill = logits_of(checkpoint, expected.ids, expected.ids.size(), pool);
  const double error = relative_error(prefill, expected.logits);
  RecordProperty("relative_error", std::to_string(error));
  EXPECT_LT(error, 1e-4);
  const auto decode = logits_of(checkpoint, expected.ids, 1, pool);
  EXPECT_EQ(std::memcmp(prefill.data(), decode.data(), prefill.size() * sizeof(float)), 0);
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenModel,
                         ::testing::Values("llama_tied", "llama_untied", "mistral", "gemma3", "qwen2", "qwen3"),
                         [](const auto& param) { return std::string(param.param); });

// A golden model's tensors and config, to be changed and written anew.
struct Copy {
  explicit Copy(const std::string& name) : source(kGolden / name) {
    config = Json::parse(read_text_file(kGolden / name / "config.json"));
    for (const TensorInfo& info : source.tensors()) values[info.name] = read_as_float(source, info);
  }

  void write(const fs::path& folder, const std::string& prefix = "", const std::string& without = "") const {
    CheckpointBuilder builder;
    for (const auto& [name, data] : values) {
      if (name == without) continue;
      const TensorInfo* info = source.find(name);
      builder.add_raw(prefix + name, DType::f32, info != nullptr ? info->shape : source.at("model.embed_tokens.weight").shape,
                      data);
    }
    builder.write(folder, config);
  }

  ShardedSafetensors source;
  Json config;
  std::map<std::string, std::vector<float>> values;
};

TEST(OpenCheckpoint, MultimodalPrefixesAndTextConfigGiveTheSameLogits) {
  ThreadPool pool(2);
  const TempFolder folder;
  const Expected expected = expected_of("gemma3");
  Copy copy("gemma3");
  const Json text = copy.config;
  copy.config = Json{{"architectures", {"Gemma3ForConditionalGeneration"}}, {"model_type", "gemma3"}, {"text_config", text}};
  copy.write(folder.path() / "old", "language_model.");
  EXPECT_LT(relative_error(logits_of(open_checkpoint(folder.path() / "old"), expected.ids, 48, pool), expected.logits), 1e-4);

  Copy renamed("gemma3");
  renamed.config = copy.config;
  CheckpointBuilder builder;
  for (const auto& [name, data] : renamed.values) {
    builder.add_raw("model.language_model." + name.substr(6), DType::f32, renamed.source.at(name).shape, data);
  }
  builder.write(folder.path() / "new", renamed.config);
  EXPECT_LT(relative_error(logits_of(open_checkpoint(folder.path() / "new"), expected.ids, 48, pool), expected.logits), 1e-4);
}

// users.md C35: absent, stored and equal, stored and different.
TEST(OpenCheckpoint, HeadsAreTiedByWhatIsStored) {
  ThreadPool pool(2);
  const TempFolder folder;
  const Expected expected = expected_of("llama_tied");
  Copy copy("llama_tied");
  const auto check_model = [&](const fs::path& path, bool tied, bool same_logits) {
    const Checkpoint checkpoint = open_checkpoint(path);
    EXPECT_EQ(runnable_config(checkpoint).tied_head, tied);
    EXPECT_EQ(checkpoint.config["tie_word_embeddings"], tied);
    const double error = relative_error(logits_of(checkpoint, expected.ids, 48, pool), expected.logits);
    if (same_logits) {
      EXPECT_LT(error, 1e-4);
    } else {
      EXPECT_GT(error, 0.1);
    }
    return checkpoint.notes;
  };
  copy.write(folder.path() / "absent");
  check_model(folder.path() / "absent", true, true);
  copy.config["tie_word_embeddings"] = false;
  copy.write(folder.path() / "absent_but_untied");
  EXPECT_THAT(check_model(folder.path() / "absent_but_untied", true, true), Contains(HasSubstr("no head is stored")));

  copy.config["tie_word_embeddings"] = true;
  copy.values["lm_head.weight"] = copy.values["model.embed_tokens.weight"];
  copy.write(folder.path() / "equal");
  check_model(folder.path() / "equal", true, true);

  for (float& value : copy.values["lm_head.weight"]) value = -value;
  copy.write(folder.path() / "different");
  EXPECT_THAT(check_model(folder.path() / "different", false, false), Contains(HasSubstr("the stored head is used")));
}

TEST(OpenCheckpoint, UnknownArchitecturesOpenWithAReason) {
  const TempFolder folder;
  Copy copy("llama_tied");
  copy.config["architectures"] = {"FooForCausalLM"};
  copy.config["model_type"] = "foo";
  copy.write(folder.path());
  const Checkpoint checkpoint = open_checkpoint(folder.path());
  EXPECT_FALSE(checkpoint.model);
  EXPECT_THAT(checkpoint.model_refusal, HasSubstr("FooForCausalLM"));
  EXPECT_EQ(checkpoint.tensors->tensors().size(), copy.values.size());
  EXPECT_TRUE(checkpoint.weights->find("model.layers.0.mlp.up_proj"));
  EXPECT_THAT(message_of([&] { runnable_config(checkpoint); }, ErrorKind::unsupported), HasSubstr("FooForCausalLM"));
}

TEST(OpenCheckpoint, BareSafetensorsTakeTheConfigBesideThem) {
  const TempFolder folder;
  Copy copy("llama_tied");
  copy.write(folder.path());
  EXPECT_TRUE(open_checkpoint(folder.path() / "model.safetensors").model);
  fs::remove(folder.path() / "config.json");
  const Checkpoint bare = open_checkpoint(folder.path() / "model.safetensors");
  EXPECT_TRUE(bare.config.is_null());
  EXPECT_THAT(bare.model_refusal, HasSubstr("config.json"));
  EXPECT_TRUE(bare.weights->find("model.layers.0.mlp.up_proj"));
}

// Exit 3 for a description that is damaged or incomplete, with the field; exit 4 for a sound one that nothing here runs.
TEST(OpenCheckpoint, ADamagedDescriptionIsBadInputAndAForeignOneUnsupported) {
  const auto refusal = [](const std::function<void(Json&)>& change, ErrorKind kind) {
    const TempFolder folder;
    Copy copy("llama_tied");
    change(copy.config);
    copy.write(folder.path());
    const Checkpoint checkpoint = open_checkpoint(folder.path());
    return message_of([&] { runnable_config(checkpoint); }, kind);
  };
  for (const char* field : {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"}) {
    EXPECT_THAT(refusal([&](Json& config) { config.erase(field); }, ErrorKind::bad_input), HasSubstr(field));
    for (const Json& value : {Json("many"), Json(-1), Json(0), Json(1.5), Json::array(), Json(true)}) {
      EXPECT_THAT(refusal([&](Json& config) { config[field] = value; }, ErrorKind::bad_input), HasSubstr(field));
    }
  }
  EXPECT_THAT(refusal([](Json& config) { config.erase("model_type"), config.erase("architectures"); }, ErrorKind::bad_input),
              HasSubstr("model_type"));
  EXPECT_THAT(refusal([](Json& config) { config["rope_scaling"] = {{"rope_type", "spiral"}, {"factor", 2.0}}; },
                      ErrorKind::unsupported),
              HasSubstr("spiral"));
}

TEST(OpenCheckpoint, SidecarsGiveTemplateEndTokensAndTokenizer) {
  const TempFolder folder;
  Copy copy("llama_tied");
  copy.write(folder.path());
  EXPECT_THAT(message_of([&] { open_tokenizer(open_checkpoint(folder.path())); }, ErrorKind::bad_input), HasSubstr("tokenizer"));
  write_text_file(folder.path() / "generation_config.json", R"({"eos_token_id": [2, 7, 9]})");
  write_text_file(folder.path() / "tokenizer_config.json",
                  R"({"chat_template": [{"name": "tool", "template": "T"}, {"name": "default", "template": "D"}]})");
  Checkpoint checkpoint = open_checkpoint(folder.path());
  EXPECT_THAT(checkpoint.model->eos_ids, ElementsAre(2, 7, 9));
  EXPECT_EQ(checkpoint.chat_template, "D");
  EXPECT_EQ(checkpoint.sidecars.at("generation_config.json"), R"({"eos_token_id": [2, 7, 9]})");
  write_text_file(folder.path() / "chat_template.jinja", "J");
  EXPECT_EQ(open_checkpoint(folder.path()).chat_template, "J");
}

TEST(OpenCheckpoint, WhatIsNoCheckpointIsNamed) {
  const TempFolder folder;
  EXPECT_THAT(message_of([&] { open_checkpoint(folder.path() / "nowhere"); }, ErrorKind::bad_input), HasSubstr("nowhere"));
  write_text_file(folder.path() / "notes.txt", "hello");
  EXPECT_THAT(message_of([&] { open_checkpoint(folder.path() / "notes.txt"); }, ErrorKind::bad_input), HasSubstr("notes.txt"));
  Copy copy("llama_tied");
  copy.write(folder.path() / "m");
  write_text_file(folder.path() / "m" / "config.json", "{\"model_type\": ");
  EXPECT_THAT(message_of([&] { open_checkpoint(folder.path() / "m"); }, ErrorKind::bad_input), HasSubstr("config.json"));
}

// ---- GGUF ----

std::string gguf_part(const std::string& part, bool gemma) {
  static const std::map<std::string, std::string> kNames = {
      {"input_layernorm", "attn_norm"}, {"self_attn.q_proj", "attn_q"}, {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"}, {"self_attn.o_proj", "attn_output"}, {"self_attn.q_norm", "attn_q_norm"},
      {"self_attn.k_norm", "attn_k_norm"}, {"mlp.gate_proj", "ffn_gate"}, {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"}, {"pre_feedforward_layernorm", "ffn_norm"},
      {"post_feedforward_layernorm", "post_ffw_norm"}};
  if (part == "post_attention_layernorm") return gemma ? "post_attention_norm" : "ffn_norm";
  return kNames.at(part);
}

std::string gguf_name(const std::string& name, bool gemma) {
  const std::size_t dot = name.rfind('.');
  const std::string suffix = name.substr(dot), module = name.substr(0, dot);
  if (module == "model.embed_tokens") return "token_embd" + suffix;
  if (module == "model.norm") return "output_norm" + suffix;
  if (module == "lm_head") return "output" + suffix;
  const std::string rest = module.substr(std::string("model.layers.").size());
  const std::size_t end = rest.find('.');
  return "blk." + rest.substr(0, end) + "." + gguf_part(rest.substr(end + 1), gemma) + suffix;
}

// A golden model as the converter of llama.cpp writes it (formats.md 3.6.5 to 3.6.7).
GgufBuilder to_gguf(const std::string& name, const std::string& architecture) {
  const Copy copy(name);
  const Json& config = copy.config;
  const bool gemma = architecture == "gemma3";
  GgufBuilder builder(architecture);
  const auto u32 = [&](const char* key, const char* from) {
    builder.add_u32(architecture + "." + key, config.at(from).get<std::uint32_t>());
  };
  u32("block_count", "num_hidden_layers");
  u32("context_length", "max_position_embeddings");
  u32("embedding_length", "hidden_size");
  u32("feed_forward_length", "intermediate_size");
  u32("attention.head_count", "num_attention_heads");
  u32("attention.head_count_kv", "num_key_value_heads");
  builder.add_f32(architecture + ".attention.layer_norm_rms_epsilon", config.at("rms_norm_eps").get<float>());
  const std::int64_t head_dim = config.contains("head_dim") && !config["head_dim"].is_null()
                                    ? config["head_dim"].get<std::int64_t>()
                                    : config["hidden_size"].get<std::int64_t>() / config["num_attention_heads"].get<std::int64_t>();
  builder.add_u32(architecture + ".attention.key_length", static_cast<std::uint32_t>(head_dim));
  builder.add_u32(architecture + ".attention.value_length", static_cast<std::uint32_t>(head_dim));
  builder.add_f32(architecture + ".rope.freq_base", gemma ? 1e6F : 1e4F);
  builder.add_u32("tokenizer.ggml.bos_token_id", 1);
  builder.add_u32("tokenizer.ggml.eos_token_id", 2);
  builder.add_u32("tokenizer.ggml.eot_token_id", 5);
  if (gemma) {
    u32("attention.sliding_window", "sliding_window");
    builder.add_string("gemma3.rope.scaling.type", "linear");
    builder.add_f32("gemma3.rope.scaling.factor", 8.0F);
  }
  for (const auto& [tensor, data] : copy.values) {
    const Shape shape = copy.source.at(tensor).shape;
    std::vector<float> values = data;
    const bool qk = tensor.find("q_proj") != std::string::npos || tensor.find("k_proj") != std::string::npos;
    if (qk && architecture == "llama") values = interleave(values, shape.size() == 2 ? shape[1] : 1, head_dim);
    if (gemma && tensor.ends_with("norm.weight")) {
      for (float& value : values) value += 1.0F;
    }
    builder.add_f32_tensor(gguf_name(tensor, gemma), shape, values);
  }
  return builder;
}

TEST(OpenGguf, LlamaComesOutInHuggingFacesOrder) {
  ThreadPool pool(2);
  const TempFolder folder;
  const fs::path path = folder.path() / "m.gguf";
  to_gguf("llama_untied", "llama").write(path);
  const Checkpoint checkpoint = open_checkpoint(path);
  ASSERT_EQ(checkpoint.model_refusal, "");
  EXPECT_EQ(checkpoint.container, "gguf");
  EXPECT_FALSE(checkpoint.model->tied_head);
  EXPECT_TRUE(checkpoint.model->attention_bias && checkpoint.model->output_bias && checkpoint.model->ffn_bias);
  EXPECT_THAT(checkpoint.model->eos_ids, ElementsAre(2, 5));
  EXPECT_THAT(checkpoint.notes, Contains(HasSubstr("12 query and key tensors")));

  const Copy copy("llama_untied");
  EXPECT_EQ(checkpoint.tensors->tensors().size(), copy.values.size());
  std::vector<std::byte> scratch;
  for (const auto& [name, values] : copy.values) {
    const TensorInfo& info = checkpoint.tensors->at(name);
    EXPECT_EQ(info.shape, copy.source.at(name).shape);
    EXPECT_EQ(read_as_float(*checkpoint.tensors, info), values) << name;
    // The same in odd pieces.
    std::vector<float> row(static_cast<std::size_t>(info.cols()));
    for (std::int64_t r = 0; r < info.rows(); r += 5) {
      read_rows_as_float(*checkpoint.tensors, info, r, 1, row);
      EXPECT_TRUE(std::equal(row.begin(), row.end(), values.begin() + r * info.cols())) << name << " row " << r;
    }
  }
  const Expected expected = expected_of("llama_untied");
  EXPECT_LT(relative_error(logits_of(checkpoint, expected.ids, 48, pool), expected.logits), 1e-4);
}

TEST(OpenGguf, GemmaHoldsNormsAsHuggingFaceDoes) {
  ThreadPool pool(2);
  const TempFolder folder;
  const fs::path path = folder.path() / "m.gguf";
  GgufBuilder builder = to_gguf("gemma3", "gemma3");
  builder.write(path);
  const Checkpoint checkpoint = open_checkpoint(path);
  ASSERT_EQ(checkpoint.model_refusal, "");
  EXPECT_EQ(checkpoint.config["model_type"], "gemma3_text");
  EXPECT_EQ(checkpoint.config["query_pre_attn_scalar"], 16);  // of the file alone: the head's width
  EXPECT_TRUE(checkpoint.model->tied_head);
  const Copy copy("gemma3");
  for (const auto& [name, values] : copy.values) {
    const std::vector<float> got = read_as_float(*checkpoint.tensors, checkpoint.tensors->at(name));
    ASSERT_EQ(got.size(), values.size());
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], values[i], 1e-7) << name;
  }
  // The golden model has another query scale than any released one.
  Checkpoint scaled = open_checkpoint(path);
  scaled.model->attention_scale = static_cast<float>(1.0 / std::sqrt(24.0));
  const Expected expected = expected_of("gemma3");
  EXPECT_LT(relative_error(logits_of(scaled, expected.ids, 48, pool), expected.logits), 1e-4);
}

TEST(OpenGguf, Qwen3HasNoPermutation) {
  ThreadPool pool(2);
  const TempFolder folder;
  to_gguf("qwen3", "qwen3").write(folder.path() / "m.gguf");
  const Expected expected = expected_of("qwen3");
  const Checkpoint checkpoint = open_checkpoint(folder.path() / "m.gguf");
  ASSERT_EQ(checkpoint.model_refusal, "");
  EXPECT_LT(relative_error(logits_of(checkpoint, expected.ids, 48, pool), expected.logits), 1e-4);
}

TEST(OpenGguf, FrequencyDivisorsBecomeLlama3ScalingOrAKeyOfOurOwn) {
  ThreadPool pool(2);
  const TempFolder folder;
  const auto open_with = [&](const std::string& name, const std::vector<float>& divisors) {
    GgufBuilder builder = to_gguf("llama_untied", "llama");
    builder.add_f32_tensor("rope_freqs.weight", {std::ssize(divisors)}, divisors);
    builder.write(folder.path() / name);
    return open_checkpoint(folder.path() / name);
  };
  RopeSpec plain, scaled;
  plain.dim = scaled.dim = 16;
  scaled.type = RopeSpec::Type::llama3;
  scaled.factor = 32;
  const auto a = rope_frequencies(plain).inverse, b = rope_frequencies(scaled).inverse;
  std::vector<float> divisors(8);
  for (std::size_t i = 0; i < 8; ++i) divisors[i] = a[i] / b[i];
  const Checkpoint said = open_with("said.gguf", divisors);
  ASSERT_EQ(said.model_refusal, "");
  EXPECT_EQ(said.config["rope_scaling"]["rope_type"], "llama3");
  EXPECT_EQ(said.config["rope_scaling"]["factor"], 32.0);
  EXPECT_EQ(said.model->rope.type, RopeSpec::Type::llama3);
  EXPECT_TRUE(said.model->rope.divisors.empty());
  EXPECT_EQ(said.tensors->find("rope_freqs.weight"), nullptr);

  const std::vector<float> odd = {1, 1, 1.5F, 2, 3, 4, 5, 6};
  const Checkpoint kept = open_with("kept.gguf", odd);
  ASSERT_EQ(kept.model_refusal, "");
  EXPECT_EQ(kept.model->rope.divisors, odd);
  EXPECT_THAT(kept.notes, Contains(HasSubstr(std::string(kRopeDivisorsKey))));

  EXPECT_THAT(open_with("short.gguf", {1, 2}).model_refusal, HasSubstr("rope_freqs"));
  EXPECT_THAT(open_with("zero.gguf", {1, 1, 1, 1, 0, 1, 1, 1}).model_refusal, HasSubstr("rope_freqs"));
}

TEST(OpenGguf, UnknownArchitecturesKeepTheirNamesWhereThereAreNoOthers) {
  const TempFolder folder;
  GgufBuilder builder("mamba7");
  builder.add_f32_tensor("token_embd.weight", {4, 32}, std::vector<float>(128));
  builder.add_f32_tensor("blk.0.ffn_up.weight", {8, 32}, std::vector<float>(256));
  builder.add_f32_tensor("blk.0.ssm_in.weight", {8, 32}, std::vector<float>(256));
  builder.write(folder.path() / "m.gguf");
  const Checkpoint checkpoint = open_checkpoint(folder.path() / "m.gguf");
  EXPECT_THAT(checkpoint.model_refusal, HasSubstr("'mamba7'"));
  EXPECT_NE(checkpoint.tensors->find("model.layers.0.mlp.up_proj.weight"), nullptr);
  EXPECT_NE(checkpoint.tensors->find("blk.0.ssm_in.weight"), nullptr);
  EXPECT_THAT(checkpoint.notes, Contains(HasSubstr("blk.0.ssm_in.weight")));
  EXPECT_THAT(message_of([&] { runnable_config(checkpoint); }, ErrorKind::unsupported), HasSubstr("mamba7"));
}

TEST(OpenGguf, DamagedMetadataIsARefusalAndNoCrash) {
  const TempFolder folder;
  const auto refusal = [&](const std::function<void(GgufBuilder&)>& fill) {
    GgufBuilder builder("llama");
    builder.add_f32_tensor("token_embd.weight", {4, 32}, std::vector<float>(128));
    fill(builder);
    builder.write(folder.path() / "m.gguf");
    return open_checkpoint(folder.path() / "m.gguf").model_refusal;
  };
  EXPECT_THAT(refusal([](GgufBuilder&) {}), HasSubstr("llama.block_count"));
  const auto sizes = [](GgufBuilder& b, std::uint32_t layers, std::uint32_t heads) {
    b.add_u32("llama.block_count", layers);
    b.add_u32("llama.embedding_length", 32);
    b.add_u32("llama.attention.head_count", heads);
    b.add_u32("llama.feed_forward_length", 32);
    b.add_u32("llama.context_length", 32);
  };
  EXPECT_THAT(refusal([&](GgufBuilder& b) { sizes(b, 2, 0); }), HasSubstr("0 heads"));
  EXPECT_THAT(refusal([&](GgufBuilder& b) { sizes(b, 4000000000U, 2); }), HasSubstr("4000000000 layers"));
  EXPECT_THAT(refusal([&](GgufBuilder& b) { sizes(b, 2, 2); }), HasSubstr("epsilon"));
  EXPECT_THAT(refusal([&](GgufBuilder& b) {
                sizes(b, 2, 2);
                b.add_u32("llama.expert_count", 8);
              }), HasSubstr("experts"));
}

TEST(OpenGguf, TensorsThatDoNotFitTheHeadsAreNamed) {
  const TempFolder folder;
  GgufBuilder builder("llama");
  builder.add_u32("llama.attention.head_count", 3);
  builder.add_f32_tensor("blk.0.attn_q.weight", {8, 32}, std::vector<float>(256));
  builder.write(folder.path() / "m.gguf");
  EXPECT_THAT(message_of([&] { open_checkpoint(folder.path() / "m.gguf"); }, ErrorKind::bad_input), HasSubstr("blk.0.attn_q.weight"));
}

TEST(CanonicalName, FollowsTheTable) {
  EXPECT_EQ(canonical_name("llama", "blk.12.ffn_norm.weight"), "model.layers.12.post_attention_layernorm.weight");
  EXPECT_EQ(canonical_name("gemma3", "blk.12.ffn_norm.weight"), "model.layers.12.pre_feedforward_layernorm.weight");
  EXPECT_EQ(canonical_name("gemma3", "blk.0.post_attention_norm.weight"), "model.layers.0.post_attention_layernorm.weight");
  EXPECT_EQ(canonical_name("llama", "output.weight"), "lm_head.weight");
  EXPECT_EQ(canonical_name("qwen2", "blk.3.attn_k.bias"), "model.layers.3.self_attn.k_proj.bias");
  for (const char* name : {"blk.x.attn_q.weight", "blk..attn_q.weight", "blk.01.attn_q.weight", "blk.0.attn_qkv.weight",
                           "blk.0.attn_q", "output", "", ".weight", "blk.99999999999999999999.attn_q.weight"}) {
    EXPECT_EQ(canonical_name("llama", name), std::nullopt) << name;
  }
}

// ---- the golden files of the shared folder ----

TEST(OpenGguf, TheSharedTinyFileOpens) {
  if (!have_shared()) GTEST_SKIP() << "SKIPPED: no shared folder";
  const Checkpoint checkpoint = open_checkpoint(shared_folder() / "golden" / "tiny.gguf");
  EXPECT_FALSE(checkpoint.tensors->tensors().empty());
}

}  // namespace
}  // namespace halftone
