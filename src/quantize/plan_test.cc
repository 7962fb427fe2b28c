#include "quantize/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace halftone {
namespace {

using testing::HasSubstr;

PlanInput input(const std::string& name, Shape shape, DType dtype = DType::bf16) {
  PlanInput out;
  out.name = name;
  out.shape = std::move(shape);
  out.dtype = dtype;
  out.bytes = static_cast<std::uint64_t>(dtype_bits(dtype) / 8);
  for (const std::int64_t dim : out.shape) out.bytes *= static_cast<std::uint64_t>(dim);
  out.parts = {name};
  return out;
}

PlanInput blocks(const std::string& name, Shape shape, GgmlType type) {
  PlanInput out = input(name, std::move(shape), DType::f32);
  out.dtype = DType::ggml_block;
  out.stored.emplace();
  out.stored->ggml = type;
  return out;
}

const PlannedTensor& find(const Plan& plan, const std::string& name) {
  for (const PlannedTensor& tensor : plan.tensors) {
    if (tensor.name == name) return tensor;
  }
  throw std::out_of_range(name);
}

TEST(Plan, LinearsAreQuantizedAndTheRestIsKept) {
  const Plan plan = resolve_plan({input("model.embed_tokens.weight", {100, 64}), input("model.norm.weight", {64}),
                                  input("model.layers.0.mlp.up_proj.weight", {64, 64}),
                                  input("model.layers.0.mlp.up_proj.bias", {64}), input("lm_head.weight", {100, 64}),
                                  input("model.layers.0.conv.weight", {64, 1, 4}),
                                  input("model.layers.0.mlp.experts.up_proj", {2, 64, 64}),
                                  input("mask", {4, 4}, DType::boolean), input("empty.weight", {0, 64})},
                                 recipe_for("fp8"), {});
  EXPECT_EQ(find(plan, "model.layers.0.mlp.up_proj.weight").action, PlanAction::quantize);
  EXPECT_TRUE(find(plan, "model.layers.0.mlp.up_proj.weight").activations.has_value());
  EXPECT_EQ(find(plan, "model.layers.0.mlp.experts.up_proj").action, PlanAction::quantize);
  for (const char* name : {"model.embed_tokens.weight", "model.norm.weight", "model.layers.0.mlp.up_proj.bias",
                           "lm_head.weight", "model.layers.0.conv.weight", "mask", "empty.weight"}) {
    EXPECT_EQ(find(plan, name).action, PlanAction::copy) << name;
    EXPECT_THAT(find(plan, name).rule, HasSubstr("kept")) << name;
  }
  EXPECT_TRUE(plan.substitutions.empty());
  const Plan only = resolve_plan({input("a.up_proj.weight", {64, 64})}, recipe_for("fp8"), {.weights_only = true});
  EXPECT_FALSE(only.tensors[0].activations.has_value());
}

TEST(Plan, RowsThatATypeCannotCodeAreSubstitutedOpenlyOrRefused) {
  const std::vector<PlanInput> inputs = {input("a.down_proj.weight", {64, 288}), input("a.up_proj.weight", {64, 256}),
                                         input("b.up_proj.weight", {64, 17})};
  const Plan plan = resolve_plan(inputs, recipe_for("q4_k"), {});
  ASSERT_EQ(plan.substitutions.size(), 2U);
  EXPECT_EQ(plan.substitutions[0].tensor, "a.down_proj.weight");
  EXPECT_EQ(plan.substitutions[0].asked, "q4_k");
  EXPECT_EQ(plan.substitutions[0].given, "q4_1");
  EXPECT_THAT(plan.substitutions[0].reason, HasSubstr("256"));
  EXPECT_EQ(plan.substitutions[0].asked_bytes, 64 * 288 * 144 / 256);
  EXPECT_EQ(plan.substitutions[0].given_bytes, 64 * 288 / 32 * 20);
  EXPECT_EQ(find(plan, "b.up_proj.weight").action, PlanAction::copy);
  EXPECT_THAT(plan.substitutions[1].given, HasSubstr("kept (BF16)"));
  try {
    resolve_plan(inputs, recipe_for("q4_k"), {.strict = true});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unsupported);
    EXPECT_THAT(error.what(), HasSubstr("a.down_proj.weight"));
  }
}

TEST(Plan, GroupsThatDoNotDivideAreNoSubstitution) {
  const Plan plan = resolve_plan({input("a.up_proj.weight", {8, 136})}, recipe_for("int4:g128"), {.strict = true});
  EXPECT_EQ(plan.tensors[0].action, PlanAction::quantize);
}

TEST(Plan, BlocksOfAGgufAreDecodedWhereTheyAreKept) {
  const Plan plan = resolve_plan({blocks("model.embed_tokens.weight", {100, 256}, GgmlType::q8_0),
                                  blocks("a.up_proj.weight", {64, 256}, GgmlType::q4_k)},
                                 recipe_for("fp8"), {});
  EXPECT_EQ(find(plan, "model.embed_tokens.weight").action, PlanAction::cast);
  ASSERT_EQ(plan.substitutions.size(), 1U);
  EXPECT_THAT(plan.substitutions[0].reason, HasSubstr("rounded to BF16"));
  EXPECT_EQ(find(plan, "a.up_proj.weight").action, PlanAction::quantize);
  EXPECT_THAT(plan.notes.at(0), HasSubstr("a second time, from q4_k"));
  EXPECT_THROW(resolve_plan({blocks("a.up_proj.weight", {64, 256}, GgmlType::iq2_xxs)}, recipe_for("fp8"), {}), Error);
  // The same blocks again are not decoded and coded anew.
  const Plan same = resolve_plan({blocks("a.up_proj.weight", {64, 256}, GgmlType::q4_k)}, recipe_for("q4_k"), {});
  EXPECT_EQ(same.tensors[0].action, PlanAction::restore);
}

TEST(Plan, QuantizedMatricesThatAreKeptKeepTheirCodes) {
  PlanInput stored = input("a.up_proj.weight", {64, 64}, DType::i8);
  stored.stored = parse_scheme("int8:channel");
  const Recipe recipe = parse_recipe(R"({"rules": [{"match": "b.*", "weights": "int4:g32"}]})", "r");
  const Plan plan = resolve_plan({stored, input("b.up_proj.weight", {64, 64})}, recipe, {});
  EXPECT_EQ(plan.tensors[0].action, PlanAction::restore);
  EXPECT_EQ(plan.tensors[1].action, PlanAction::quantize);
}

TEST(Plan, ConvertingTouchesEveryFloatAndNothingElse) {
  PlanInput stored = input("a.up_proj.weight", {64, 64}, DType::i8);
  stored.stored = parse_scheme("int8:channel");
  const Plan plan = resolve_plan({stored, input("model.norm.weight", {64}, DType::f32), input("b.weight", {4, 4}),
                                  input("ids", {4}, DType::i64)},
                                 dense_recipe("bf16"), {});
  EXPECT_EQ(plan.tensors[0].action, PlanAction::cast);
  EXPECT_EQ(plan.tensors[1].action, PlanAction::cast);
  EXPECT_EQ(plan.tensors[2].action, PlanAction::copy);
  EXPECT_EQ(plan.tensors[3].action, PlanAction::copy);
}

TEST(Plan, JsonHasTheKeysOfTheContract) {
  const Plan plan = resolve_plan({input("a.up_proj.weight", {64, 64})}, recipe_for("fp8"), {});
  const nlohmann::ordered_json json = to_json(plan);
  for (const char* key : {"tensors", "output_bytes", "peak_memory_bytes", "substitutions", "dropped"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  for (const char* key : {"name", "role", "scheme", "rule", "bytes"}) EXPECT_TRUE(json["tensors"][0].contains(key)) << key;
  EXPECT_THAT(to_text(plan), HasSubstr("a.up_proj.weight"));
}

}  // namespace
}  // namespace halftone
