#include "quantize/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "base/error.h"

namespace halftone {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

std::string refusal(const std::string& text) {
  try {
    parse_recipe(text, "r.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  return "no error";
}

TEST(Recipe, ReadsCommentsRulesAndEverythingElse) {
  const Recipe recipe = parse_recipe(R"({
    // the default
    "default": {"weights": "fp8_e4m3:channel", "activations": "fp8_e4m3:token"},
    "rules": [{"match": "head", "weights": "int8:channel", "activations": null},
              {"match": "re:model\\.layers\\.0\\..*", "keep": true},
              {"match": "attention", "weights": "int4:g64"}],
    "kv_cache": "fp8", "observer": "mse", "methods": ["rtn"],
    "calibration": {"dataset": "self", "samples": 4},
    "gate": {"max_kl": 0.05, "max_perplexity_ratio": 1.02}
  })", "r.json");
  EXPECT_EQ(to_string(*recipe.weights), "fp8_e4m3:channel");
  ASSERT_TRUE(recipe.activations.has_value());
  EXPECT_EQ(recipe.rules.size(), 3U);
  EXPECT_EQ(recipe.kv_cache, "fp8");
  EXPECT_EQ(recipe.observer, "mse");
  EXPECT_DOUBLE_EQ(*recipe.gate.max_kl, 0.05);

  const RuleMatcher matcher(recipe);
  const RuleChoice head = matcher.choose("lm_head", Role::head, false);
  EXPECT_EQ(head.rule, "rule 1: head");
  EXPECT_EQ(to_string(*head.weights), "int8:channel");
  EXPECT_FALSE(head.activations.has_value());
  // The first match wins: layer 0 is kept although "attention" matches it too.
  EXPECT_FALSE(matcher.choose("model.layers.0.self_attn.q_proj", Role::attention_q, false).weights.has_value());
  const RuleChoice q = matcher.choose("model.layers.1.self_attn.q_proj", Role::attention_q, false);
  EXPECT_EQ(q.rule, "rule 3: attention");
  EXPECT_TRUE(q.activations.has_value());
  EXPECT_EQ(matcher.choose("model.layers.1.mlp.up_proj", Role::ffn_up, false).rule, "default");
  EXPECT_EQ(matcher.choose("model.norm", Role::norm, false).rule, "kept: norm");
  EXPECT_FALSE(matcher.choose("model.embed_tokens", Role::embedding, false).weights.has_value());
  // A tied table answers to rules for the head.
  EXPECT_TRUE(matcher.choose("model.embed_tokens", Role::embedding, true).weights.has_value());
  EXPECT_TRUE(matcher.unused_rules().empty());
}

TEST(Recipe, UnusedRulesAreTold) {
  const Recipe recipe = parse_recipe(R"({"default": "fp8", "rules": [{"match": "*.dwon_proj", "keep": true}]})", "r");
  const RuleMatcher matcher(recipe);
  matcher.choose("model.layers.0.mlp.down_proj", Role::ffn_down, false);
  EXPECT_EQ(matcher.unused_rules(), std::vector<std::string>{"rule 1: *.dwon_proj"});
}

TEST(Recipe, MistakesNameWhatWouldBeRight) {
  EXPECT_THAT(refusal(R"({"defualt": "fp8"})"), HasSubstr("did you mean 'default'?"));
  EXPECT_THAT(refusal(R"({"default": {"weight": "fp8"}})"), HasSubstr("did you mean 'weights'?"));
  EXPECT_THAT(refusal(R"({"default": "fp8", "rules": [{"mach": "head"}]})"), HasSubstr("did you mean 'match'?"));
  EXPECT_THAT(refusal(R"({"default": "fp8", "rules": [{"match": "head"}]})"), HasSubstr("says nothing"));
  EXPECT_THAT(refusal(R"({"default": "fp8", "rules": [{"match": "head", "keep": true, "weights": "int8"}]})"),
              HasSubstr("both"));
  EXPECT_THAT(refusal(R"({"default": "fp8", "rules": [{"match": "re:(", "keep": true}]})"),
              HasSubstr("regular expression"));
  EXPECT_THAT(refusal(R"({"default": "int4:gg"})"), HasSubstr("default"));
  EXPECT_THAT(refusal(R"({"default": 8})"), HasSubstr("object"));
  EXPECT_THAT(refusal(R"({"default": {"weights": "int8:channel", "activations": "int8:channel"}})"),
              HasSubstr("cannot code activations"));
  EXPECT_THAT(refusal(R"({"default": "fp8", "methods": ["gptqx"]})"), HasSubstr("gptq"));
  EXPECT_THAT(refusal(R"({"default": "fp8", "methods": ["zzzz"]})"), HasSubstr("rtn"));
  EXPECT_THAT(refusal(R"({"default": "fp8", "methods": ["gptq"], "calibration": {"samples": 0}})"), HasSubstr("samples"));
  EXPECT_THAT(refusal(R"({"default": "fp8", "observer": "mce"})"), HasSubstr("mse"));
  EXPECT_THAT(refusal(R"({"default": "fp8", "kv_cache": "fp9"})"), HasSubstr("did you mean 'fp8'?"));
  EXPECT_THAT(refusal(R"({"default": "fp8", "gate": {"max_ppl": 1}})"), HasSubstr("max_ppl"));
  EXPECT_THAT(refusal(R"({"default": "fp8", "gate": {"max_kl": -1}})"), HasSubstr("max_kl"));
  EXPECT_THAT(refusal("{,}"), HasSubstr("not JSON at byte"));
  EXPECT_THAT(refusal("{}"), HasSubstr("quantizes nothing"));
}

TEST(Recipe, PresetsEqualTheFilesAndParse) {
  const fs::path folder = fs::path(HALFTONE_SOURCE_DIR) / "recipes";
  std::set<std::string> names;
  for (const Preset& preset : recipe_presets()) {
    names.insert(std::string(preset.name));
    std::ifstream file(folder / (std::string(preset.name) + ".json"));
    std::stringstream text;
    text << file.rdbuf();
    EXPECT_EQ(text.str(), preset.text) << preset.name;
    const Recipe recipe = load_recipe(std::string(preset.name));
    EXPECT_TRUE(recipe.weights.has_value()) << preset.name;
    EXPECT_EQ(to_json(parse_recipe(to_json(recipe).dump(), "again")), to_json(recipe)) << preset.name;
  }
  for (const auto& entry : fs::directory_iterator(folder)) {
    EXPECT_TRUE(names.contains(entry.path().stem().string())) << entry.path() << " is not embedded";
  }
}

TEST(Recipe, ToTakesPresetsAliasesAndSchemes) {
  EXPECT_EQ(recipe_for("fp8").name, "fp8");
  EXPECT_EQ(recipe_for("FP8").name, "fp8");
  EXPECT_EQ(to_string(*recipe_for("int4:g64:asym").weights), "int4:g64:asym");
  EXPECT_EQ(recipe_for("int4").rules.size(), 2U);
  EXPECT_TRUE(recipe_for("W8A8").activations.has_value());
  try {
    recipe_for("int4:g64:asim");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_THAT(error.what(), HasSubstr("presets are"));
  }
  EXPECT_THROW(recipe_for("fp8_e4m3:token"), Error);
  EXPECT_THROW(load_recipe("no-such-recipe"), Error);
  EXPECT_THROW(dense_recipe("int8"), Error);
  EXPECT_TRUE(dense_recipe("bf16").every_matrix);
}

TEST(Recipe, NearestName) {
  EXPECT_EQ(nearest_name("wieghts", {"weights", "activations"}), "weights");
  EXPECT_EQ(nearest_name("zzzzzz", {"weights", "activations"}), "");
}

}  // namespace
}  // namespace halftone
