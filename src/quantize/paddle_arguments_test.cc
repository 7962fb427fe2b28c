#include "quantize/paddle_arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace halftone {
namespace {

using testing::Contains;
using testing::HasSubstr;

std::string argument_refusal(const std::string& text) {
  try {
    parse_recipe(text, "file");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  return "";
}

TEST(PaddleArguments, PtqBecomesW8A8) {
  const Recipe recipe = parse_recipe(R"({"model_name_or_path": "x", "per_device_train_batch_size": 8, "src_length": 512,
    "do_ptq": true, "ptq_step": 16, "smooth": true, "smooth_step": 16, "smooth_all_linears": true,
    "smooth_piecewise_search": true, "smooth_k_piece": 3, "unified_checkpoint": true})",
                                     "ptq_argument.json");
  EXPECT_EQ(to_string(*recipe.weights), "int8:channel");
  EXPECT_EQ(to_string(*recipe.activations), "int8:token");
  EXPECT_EQ(recipe.calibration.samples, 128);
  EXPECT_EQ(recipe.calibration.length, 512);
  for (const char* key :
       {"model_name_or_path", "smooth_step", "smooth_k_piece", "smooth_all_linears", "unified_checkpoint"}) {
    EXPECT_THAT(recipe.notes, Contains(HasSubstr(key)));
  }
}

TEST(PaddleArguments, EveryQuantTypeAndSpelling) {
  const auto formats = [](const std::string& rest) {
    const Recipe recipe = parse_recipe(R"({"do_ptq": true, )" + rest + "}", "file");
    return to_string(*recipe.weights) + " " + (recipe.activations ? to_string(*recipe.activations) : "-") + " " +
           (recipe.kv_cache.empty() ? "-" : recipe.kv_cache);
  };
  EXPECT_EQ(formats(R"("quant_type": "A8W8C8")"), "int8:channel int8:token int8");
  EXPECT_EQ(formats(R"("quant_type": "a8w8_fp8")"), "fp8_e4m3:channel fp8_e4m3:token -");
  EXPECT_EQ(formats(R"("quant_type": "a8w8c8_fp8", "fp8_type": ["e5m2", "e4m3"])"),
            "fp8_e4m3:channel fp8_e5m2:token fp8");
  EXPECT_EQ(formats(R"("quant_type": "W8A8", "use_fp8": "WA", "fp8_type": ["e4m3", "e4m3"])"),
            "fp8_e4m3:channel fp8_e4m3:token -");
  EXPECT_EQ(formats(R"("quant_type": "weight_only_int8")"), "int8:channel - -");
  EXPECT_EQ(formats(R"("quant_type": "weight_only_int4", "weight_quant_method": "groupwise")"), "int4:g128 - -");
  EXPECT_EQ(formats(R"("quant_type": "wint4", "weight_quant_method": "groupwise", "group_size": 64)"), "int4:g64 - -");
}

TEST(PaddleArguments, GptqIsFourBit) {
  const Recipe recipe =
      parse_recipe(R"({"do_gptq": true, "gptq_step": 8, "quant_type": "a8w8"})", "gptq_argument.json");
  EXPECT_EQ(to_string(*recipe.weights), "int4:channel");
  EXPECT_FALSE(recipe.activations.has_value());
  EXPECT_THAT(recipe.notes, Contains(HasSubstr("do_gptq makes 4-bit")));
}

TEST(PaddleArguments, SkippedLayersAreSubstrings) {
  const Recipe recipe =
      parse_recipe(R"({"do_ptq": true, "quant_type": "a8w8", "skip_list_names": ["layers.1.mlp"]})", "file");
  const RuleMatcher matcher(recipe);
  EXPECT_FALSE(matcher.choose("model.layers.1.mlp.up_proj", Role::ffn_up, false).weights.has_value());
  EXPECT_TRUE(matcher.choose("model.layersx1.mlp.up_proj", Role::ffn_up, false).weights.has_value());
}

TEST(PaddleArguments, RefusalsNameTheKey) {
  EXPECT_THAT(argument_refusal(R"({"do_ptq": true, "quant_type": "a9w9"})"), HasSubstr("a8w8c8"));
  EXPECT_THAT(argument_refusal(R"({"do_ptq": true, "do_gptq": true})"), HasSubstr("exclude"));
  EXPECT_THAT(argument_refusal(R"({"do_ptq": "yes"})"), HasSubstr("do_ptq"));
  EXPECT_THAT(argument_refusal(R"({"do_ptq": true, "ptq_step": 0})"), HasSubstr("ptq_step"));
  EXPECT_THAT(argument_refusal(R"({"do_ptq": true, "use_fp8": "WX"})"), HasSubstr("use_fp8"));
  EXPECT_THAT(argument_refusal(R"({"do_ptq": true, "weight_quant_method": "groupwise", "group_size": 32})"),
              HasSubstr("group_size"));
  EXPECT_THAT(argument_refusal(R"({"do_ptq": true, "fp8_type": "e4m3", "quant_type": "a8w8_fp8"})"),
              HasSubstr("fp8_type"));
  EXPECT_THAT(argument_refusal(R"({"do_qat": true})"), HasSubstr("do_qat"));
  EXPECT_THAT(argument_refusal(R"({"quant_type": "a8w8"})"), HasSubstr("quantizes nothing"));
}

}  // namespace
}  // namespace halftone
