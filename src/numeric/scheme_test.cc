#include "numeric/scheme.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "base/error.h"

namespace halftone {
namespace {

std::string message_of(const std::string& text) {
  try {
    parse_scheme(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage) << text;
    return error.what();
  }
  ADD_FAILURE() << text << " was accepted as " << to_string(parse_scheme(text));
  return "";
}

TEST(Scheme, ReadsTheGrammar) {
  const Scheme int4 = parse_scheme("int4:g64:asym");
  EXPECT_EQ(int4.element, int_format(4));
  EXPECT_EQ(int4.granularity, Granularity::group);
  EXPECT_EQ(int4.group, 64);
  EXPECT_FALSE(int4.symmetric);
  EXPECT_EQ(int4.scale, bf16_format());
  EXPECT_EQ(parse_scheme("int4:asym:g64"), int4);
  EXPECT_EQ(parse_scheme(" INT4 : ASYM : G64 "), int4);

  const Scheme block = parse_scheme("fp8_e4m3:128x64:fp32");
  EXPECT_EQ(block.granularity, Granularity::block);
  EXPECT_EQ(block.block_rows, 128);
  EXPECT_EQ(block.block_cols, 64);
  EXPECT_EQ(block.scale, fp32_format());

  const Scheme mxfp4 = parse_scheme("mxfp4");
  EXPECT_EQ(mxfp4, parse_scheme("fp4_e2m1:g32:e8m0"));
  EXPECT_EQ(mxfp4.scale_rule, ScaleRule::ceil);
  EXPECT_FALSE(mxfp4.two_level);
  EXPECT_EQ(parse_scheme("mxfp4:floor").scale_rule, ScaleRule::floor);
  EXPECT_EQ(parse_scheme("mxfp4:g16").group, 16);

  const Scheme nvfp4 = parse_scheme("NVFP4");
  EXPECT_EQ(nvfp4, parse_scheme("fp4_e2m1:g16:e4m3"));
  EXPECT_TRUE(nvfp4.two_level);
  EXPECT_EQ(nvfp4.group, 16);
  EXPECT_FALSE(parse_scheme("fp4_e2m1:g16:e4m3:one_level").two_level);

  EXPECT_TRUE(parse_scheme("bf16").is_dense());
  EXPECT_TRUE(parse_scheme("fp8_e4m3:none").is_dense());
  EXPECT_EQ(parse_scheme("int8").granularity, Granularity::channel);
  EXPECT_EQ(parse_scheme("nf4").group, 64);
  EXPECT_EQ(parse_scheme("mxint8").scale, e8m0_format());

  EXPECT_EQ(parse_scheme("Q4_K").ggml, GgmlType::q4_k);
  EXPECT_EQ(parse_scheme("q8_0").ggml, GgmlType::q8_0);
  EXPECT_FALSE(parse_scheme("int8:g32:fp16").ggml);
  EXPECT_EQ(parse_scheme("ggml_mxfp4").ggml, GgmlType::mxfp4);
  EXPECT_FALSE(parse_scheme("q4_k").is_dense());
}

TEST(Scheme, CanonicalStrings) {
  const std::vector<std::pair<std::string, std::string>> table = {
      {"fp4_e2m1:g32:e8m0", "mxfp4"},
      {"e2m1:e8m0:g32:search", "mxfp4:search"},
      {"F8_E4M3:g32:e8m0", "mxfp8"},
      {"mxfp6", "mxfp6_e2m3"},
      {"mxfp4:g16", "fp4_e2m1:g16:e8m0"},
      {"fp4_e2m1:g16:fp8_e4m3", "nvfp4"},
      {"mxint8:g32:e8m0", "mxint8"},
      {"int4:bf16:g128:sym", "int4:g128"},
      {"int4:fp16:asym:g64", "int4:g64:fp16:asym"},
      {"int8", "int8:channel"},
      {"fp8_e4m3:128x128", "fp8_e4m3:128x128"},
      {"F16", "fp16"},
      {"e4m4", "e4m4:channel"},
      {"Q6_K", "q6_k"},
      {"ggml_nvfp4", "ggml_nvfp4"},
  };
  for (const auto& [text, canonical] : table) EXPECT_EQ(to_string(parse_scheme(text)), canonical) << text;
}

// Every element format x granularity x scale format x symmetry x rule x levels that the grammar has.
TEST(Scheme, RoundTripsThroughItsString) {
  std::vector<ElementFormat> elements;
  for (const NamedFormat& named : named_formats()) elements.push_back(named.format);
  for (const char* name : {"e4m4", "e5m3", "e5m4ieee", "e3m3fnuz", "e5m2fn", "e3m4finite", "k8p3se", "e2m0"}) {
    elements.push_back(format_or_fail(name));
  }
  std::size_t checked = 0;
  std::set<std::string> strings;
  const auto check = [&](const Scheme& scheme) {
    const std::string text = to_string(scheme);
    ASSERT_EQ(parse_scheme(text), scheme) << text;
    EXPECT_TRUE(strings.insert(text).second) << text;
    ++checked;
  };
  for (const ElementFormat& element : elements) {
    if (element.kind == FormatKind::exponent) continue;
    for (int g = 0; g < 8; ++g) {
      Scheme scheme;
      scheme.element = element;
      if (g == 0) {
        if (element.kind == FormatKind::floating) check(scheme);
        continue;
      }
      scheme.granularity = g == 1   ? Granularity::tensor
                           : g == 2 ? Granularity::channel
                           : g == 3 ? Granularity::token
                           : g < 7  ? Granularity::group
                                    : Granularity::block;
      if (scheme.granularity == Granularity::group) scheme.group = g == 4 ? 16 : g == 5 ? 32 : 100;
      if (g == 7) {
        scheme.block_rows = 128;
        scheme.block_cols = 64;
      }
      for (const ElementFormat& scale :
           {bf16_format(), fp16_format(), fp32_format(), e8m0_format(), fp8_e4m3_format()}) {
        for (const bool two_level : {false, true}) {
          for (const bool symmetric : {true, false}) {
            scheme.scale = scale;
            scheme.two_level = two_level;
            scheme.symmetric = symmetric;
            const bool integer = element.kind == FormatKind::integer && element.bias == 0;
            if (!symmetric && (!integer || scale == e8m0_format() || two_level)) continue;
            for (const ScaleRule rule : {ScaleRule::ceil, ScaleRule::floor, ScaleRule::ct_round, ScaleRule::search}) {
              scheme.scale_rule = rule;
              if (rule != ScaleRule::ceil && !(scale == e8m0_format())) continue;
              check(scheme);
            }
          }
        }
      }
    }
  }
  for (const GgmlTypeInfo& info : ggml_types()) {
    Scheme scheme;
    scheme.ggml = info.type;
    check(scheme);
  }
  EXPECT_GT(checked, 2500U);
}

TEST(Scheme, ErrorsNameThePartAndTheRemedy) {
  const std::vector<std::pair<std::string, std::string>> table = {
      {"int9:g64", "'int9'"},
      {"fp8_e4m2:channel", "fp8_e4m3"},
      {"mxfp5", "mxfp4"},
      {"q4_kk", "q4_k"},
      {"int4:chanel", "did you mean 'channel'"},
      {"int4:g0", "'g0'"},
      {"int4:g99999999999999999999", "no group"},
      {"int4:128x", "no block"},
      {"int4:0x128", "no block"},
      {"int4:-5", "'-5'"},
      {"int4:g64:g32", "'g64' and 'g32'"},
      {"int4:g64:channel", "the granularity"},
      {"int4:fp16:bf16", "the scale format"},
      {"int4:sym:asym", "the symmetry"},
      {"mxfp4:floor:ceil", "the rule"},
      {"fp8_e4m3:asym", "asym needs an integer format"},
      {"int4:g32:e8m0:asym", "asym needs fp32, bf16 or fp16"},
      {"int8:none", "need a scale"},
      {"bf16:fp16", "without scales"},
      {"fp8_e4m3:none:e8m0", "without scales"},
      {"int4:g64:floor", "'floor' is a rule for e8m0"},
      {"e8m0:g32", "e8m0 codes scales"},
      {"q4_k:g64", "takes no parts"},
      {"", "empty"},
      {"int4::g64", "empty"},
      {"int4:", "empty"},
  };
  for (const auto& [text, part] : table) {
    const std::string message = message_of(text);
    EXPECT_NE(message.find(part), std::string::npos) << text << " -> " << message;
    EXPECT_NE(message.find("scheme '" + text + "'"), std::string::npos) << message;
  }
  message_of(std::string(100000, 'x'));
  message_of("int4:" + std::string(100000, '9'));
}

TEST(Scheme, PresetsOfBothSides) {
  const auto expect = [](const char* text, const char* weights, const char* activations) {
    const SchemePair pair = parse_scheme_or_alias(text);
    EXPECT_EQ(to_string(pair.weights), weights) << text;
    EXPECT_EQ(pair.activations ? to_string(*pair.activations) : "", activations) << text;
  };
  expect("FP8", "fp8_e4m3:channel", "fp8_e4m3:token");
  expect("FP8_DYNAMIC", "fp8_e4m3:channel", "fp8_e4m3:token");
  expect("fp8_block", "fp8_e4m3:128x128", "fp8_e4m3:g128");
  expect("W8A8", "int8:channel", "int8:token");
  expect("a8w8", "int8:channel", "int8:token");
  expect("W4A16", "int4:g128", "");
  expect("W8A16", "int8:channel", "");
  expect("wint8", "int8:channel", "");
  expect("INT4_SYM", "int4:g128", "");
  expect("MXFP4", "mxfp4", "");
  expect("NVFP4", "nvfp4", "");
  expect("NVFP4A4", "nvfp4", "nvfp4");
  expect("MXFP8A8", "mxfp8", "mxfp8");
  expect("Q4_K_M", "q4_k", "");
  expect("Q8_0", "q8_0", "");
  expect("bf16", "bf16", "");
  expect("int4:g64:asym", "int4:g64:asym", "");
  for (const std::string& name : scheme_alias_names()) EXPECT_NO_THROW(parse_scheme_or_alias(name)) << name;
}

TEST(Scheme, ShapesAndBytes) {
  const auto shape = [](const char* text, std::int64_t rows, std::int64_t cols) {
    const SchemeShape s = scale_shape(parse_scheme(text), rows, cols);
    return std::pair(s.scale_rows, s.scale_cols);
  };
  using Pair = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(shape("bf16", 5, 7), (Pair{0, 0}));
  EXPECT_EQ(shape("fp8_e4m3:tensor", 5, 7), (Pair{1, 1}));
  EXPECT_EQ(shape("int8:channel", 5, 7), (Pair{5, 1}));
  EXPECT_EQ(shape("int4:g128", 8, 136), (Pair{8, 2}));
  EXPECT_EQ(shape("fp8_e4m3:128x128", 576, 200), (Pair{5, 2}));

  const auto bytes = [](const char* text, std::int64_t rows, std::int64_t cols) {
    return scheme_bytes(parse_scheme(text), rows, cols);
  };
  EXPECT_EQ(bytes("bf16", 3, 5), 30);
  EXPECT_EQ(bytes("int8:channel", 4, 64), 4 * 64 + 4 * 2);
  EXPECT_EQ(bytes("int4:g64", 2, 128), 2 * 64 + 4 * 2);
  EXPECT_EQ(bytes("int4:g64:asym", 2, 128), 2 * 64 + 4 * 2 + 2 * 1);  // two 4-bit zero points a row fill one byte
  EXPECT_EQ(bytes("int3:g32:asym", 2, 96), 2 * 36 + 6 * 2 + 2 * 2);   // three 3-bit zero points a row take two bytes
  EXPECT_EQ(bytes("int3:g32", 1, 5), 2 + 2);
  EXPECT_EQ(bytes("mxfp4", 2, 64), 2 * 32 + 4);
  EXPECT_EQ(bytes("nvfp4", 2, 64), 2 * 32 + 8 + 4);
  EXPECT_EQ(bytes("q4_k", 2, 512), 2 * 2 * 144);
  EXPECT_EQ(bytes("int4:g128", 0, 128), 0);
  EXPECT_DOUBLE_EQ(bits_per_weight(parse_scheme("mxfp4"), 1024, 1024), 4.25);
  EXPECT_DOUBLE_EQ(bits_per_weight(parse_scheme("q4_k"), 16, 256), 4.5);
  EXPECT_THROW(bytes("int8:channel", std::int64_t{1} << 40, std::int64_t{1} << 40), Error);
  EXPECT_THROW(bytes("q4_k", std::int64_t{1} << 40, std::int64_t{1} << 40), Error);
}

// users.md C13: rows of 288 or 896 under a type of 256.
TEST(Scheme, RefusalsGiveTheReason) {
  EXPECT_FALSE(scheme_refusal(parse_scheme("int4:g128"), 8, 136));
  EXPECT_FALSE(scheme_refusal(parse_scheme("q4_k"), 8, 512));
  EXPECT_EQ(scheme_refusal(parse_scheme("q4_k"), 8, 288), "q4_k needs rows of a multiple of 256, not 288");
  EXPECT_EQ(scheme_refusal(parse_scheme("q8_0"), 8, 33), "q8_0 needs rows of a multiple of 32, not 33");
  EXPECT_EQ(scheme_refusal(parse_scheme("iq2_xxs"), 8, 256), "iq2_xxs can be read, not written");
  EXPECT_TRUE(scheme_refusal(parse_scheme("int8"), 0, 4));
}

}  // namespace
}  // namespace halftone
