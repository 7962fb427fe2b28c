#include "pipeline/stored.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/testing.h"
#include "numeric/packing.h"
#include "pipeline/stored_config.h"
#include "pipeline/testing_checkpoint.h"

namespace halftone {
namespace {

using Json = nlohmann::ordered_json;
using testing::ElementsAre;
using testing::HasSubstr;

TensorStats stats_of(const std::vector<float>& values) {
  TensorStats stats;
  accumulate_stats(stats, values, 0);
  return stats;
}

Scheme scheme_of(const std::string& text) {
  if (text.starts_with("ggml ")) {
    Scheme scheme;
    scheme.ggml = find_ggml_type(std::string_view(text).substr(5))->type;
    return scheme;
  }
  return parse_scheme(text);
}

// Stores a matrix in chunks of `chunk` rows and opens it again.
std::shared_ptr<const WeightSource> store_and_open(const std::filesystem::path& folder, StoredMethod method,
                                                   const StoredModule& module, const std::vector<float>& values,
                                                   std::int64_t chunk, QuantizedTensor* expected) {
  const TensorStats stats = stats_of(values);
  *expected = quantize_rows(module.weights, values, module.rows, module.cols, stats);
  const std::vector<TensorInfo> infos = stored_tensors(method, module);
  std::vector<std::vector<std::byte>> data(infos.size());
  for (std::int64_t first = 0; first < module.rows; first += chunk) {
    const std::int64_t count = std::min(chunk, module.rows - first);
    const std::span<const float> rows(values.data() + first * module.cols,
                                      static_cast<std::size_t>(count * module.cols));
    const QuantizedTensor part = quantize_rows(module.weights, rows, count, module.cols, stats);
    for (std::size_t i = 0; i < infos.size(); ++i) {
      const std::vector<std::byte> bytes = store_rows(method, module, i, first, part);
      data[i].insert(data[i].end(), bytes.begin(), bytes.end());
    }
  }
  CheckpointBuilder builder;
  for (std::size_t i = 0; i < infos.size(); ++i) {
    EXPECT_EQ(data[i].size(), infos[i].bytes) << infos[i].name;
    builder.add(infos[i].name, infos[i].dtype, infos[i].shape, data[i]);
  }
  builder.write(folder);
  const Json config = {{"quantization_config", quantization_config(method, {module}, {"lm_head"})}};
  return stored_weights(std::make_shared<ShardedSafetensors>(folder), config);
}

struct RoundTrip {
  const char* scheme;
  std::int64_t rows, cols;
  StoredMethod method;
  const char* activations = nullptr;
};

void PrintTo(const RoundTrip& c, std::ostream* out) { *out << c.scheme << " [" << c.rows << ", " << c.cols << "]"; }

class StoredRoundTrip : public testing::TestWithParam<RoundTrip> {};

TEST_P(StoredRoundTrip, CodesScalesAndZerosComeBackFromAnyChunks) {
  const RoundTrip& c = GetParam();
  StoredModule module{"model.layers.0.mlp.up_proj", scheme_of(c.scheme), std::nullopt, c.rows, c.cols};
  if (c.activations != nullptr) module.activations = parse_scheme(c.activations);
  std::string why;
  EXPECT_EQ(choose_method({module}, &why), c.method) << why;
  const std::vector<float> values = bf16_values(static_cast<std::size_t>(c.rows * c.cols), 7);
  const std::int64_t multiple = store_row_multiple(c.method, module);
  for (const std::int64_t chunk : {multiple, 2 * multiple, (c.rows + multiple - 1) / multiple * multiple}) {
    const TempFolder folder;
    QuantizedTensor expected;
    const auto weights = store_and_open(folder.path(), c.method, module, values, chunk, &expected);
    const std::optional<WeightInfo> info = weights->find(module.module);
    ASSERT_TRUE(info.has_value());
    EXPECT_EQ(info->scheme, module.weights) << to_string(info->scheme);
    EXPECT_EQ(info->rows, c.rows);
    EXPECT_EQ(info->cols, c.cols);
    EXPECT_EQ(info->activations.has_value(), module.activations.has_value());
    if (info->activations && module.activations) {
      EXPECT_EQ(info->activations->element, module.activations->element);
      EXPECT_EQ(info->activations->granularity, module.activations->granularity);
    }
    const QuantizedTensor whole = weights->rows(*info, 0, c.rows);
    EXPECT_TRUE(std::equal(whole.codes.begin(), whole.codes.end(), expected.codes.begin(), expected.codes.end()));
    EXPECT_EQ(whole.scales, expected.scales);
    EXPECT_EQ(whole.zeros, expected.zeros);
    EXPECT_FLOAT_EQ(whole.global_scale, expected.global_scale);
    // A part of the rows is the same part of the matrix.
    const std::int64_t step = row_multiple(module.weights);
    if (c.rows > step) {
      std::vector<float> all(values.size()), part(static_cast<std::size_t>((c.rows - step) * c.cols));
      dequantize_rows(whole, 0, c.rows, all);
      dequantize_rows(weights->rows(*info, step, c.rows - step), 0, c.rows - step, part);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + step * c.cols));
    }
  }
}

constexpr auto kCt = StoredMethod::compressed_tensors;
constexpr auto kOwn = StoredMethod::halftone;
INSTANTIATE_TEST_SUITE_P(
    Schemes, StoredRoundTrip,
    testing::Values(RoundTrip{"fp8_e4m3:channel", 40, 64, kCt, "fp8_e4m3:token"},
                    RoundTrip{"fp8_e4m3:channel", 40, 64, kCt}, RoundTrip{"fp8_e4m3:tensor", 40, 64, kCt},
                    RoundTrip{"fp8_e4m3:128x128", 200, 300, kCt, "fp8_e4m3:g128"},
                    RoundTrip{"int8:channel", 40, 64, kCt, "int8:token"}, RoundTrip{"int8:channel", 33, 64, kCt},
                    RoundTrip{"int8:channel:asym", 33, 64, kCt, "int8:token"}, RoundTrip{"int4:g32", 40, 64, kCt},
                    RoundTrip{"int4:g32:asym", 71, 64, kCt}, RoundTrip{"int3:g32:asym", 71, 96, kCt},
                    RoundTrip{"int5:g32:asym", 71, 32, kCt}, RoundTrip{"int6:channel", 40, 50, kCt},
                    RoundTrip{"int7:channel:asym", 40, 50, kCt}, RoundTrip{"int2:g16:asym", 40, 48, kCt},
                    RoundTrip{"nvfp4", 40, 64, kCt}, RoundTrip{"mxfp4", 40, 64, kCt},
                    RoundTrip{"fp8_e4m3:g32:e8m0", 40, 64, kCt}, RoundTrip{"fp6_e2m3:g32:e8m0", 40, 64, kCt},
                    RoundTrip{"int4:g32", 40, 70, kOwn}, RoundTrip{"int3:g32:asym", 41, 71, kOwn},
                    RoundTrip{"int4:g32:fp16", 40, 71, kOwn}, RoundTrip{"fp8_e5m2:channel", 40, 64, kOwn},
                    RoundTrip{"fp6_e3m2:g32:e8m0", 40, 70, kOwn}, RoundTrip{"nf4:g64", 40, 96, kOwn},
                    RoundTrip{"mxfp4", 40, 70, kOwn}, RoundTrip{"nvfp4", 41, 70, kOwn},
                    RoundTrip{"e4m4:channel", 40, 33, kOwn}, RoundTrip{"e5m4:g16:fp32", 40, 40, kOwn},
                    RoundTrip{"int8:16x16", 40, 40, kOwn}, RoundTrip{"mxint8:g32:e8m0", 40, 64, kOwn},
                    RoundTrip{"int4:tensor:asym", 40, 64, kOwn}, RoundTrip{"ggml q4_0", 40, 64, kOwn},
                    RoundTrip{"ggml q6_k", 5, 512, kOwn}, RoundTrip{"ggml mxfp4", 5, 64, kOwn}));

Json pack_config(int bits, bool symmetric, int group) {
  return {{"quantization_config",
           {{"quant_method", "compressed-tensors"},
            {"format", "pack-quantized"},
            {"quantization_status", "compressed"},
            {"config_groups",
             {{"group_0",
               {{"targets", {"Linear"}},
                {"weights",
                 {{"num_bits", bits}, {"type", "int"}, {"symmetric", symmetric}, {"strategy", "group"},
                  {"group_size", group}, {"dynamic", false}}},
                {"input_activations", nullptr}}}}},
            {"ignore", {"lm_head"}}}}};
}

TEST(StoredRead, OldPaddedWordsAreTold) {
  // 3 bits, 64 columns: 7 padded words against 6 dense ones.
  const TempFolder folder;
  std::vector<std::uint8_t> codes(64);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>((i * 5 + 1) % 8);
  std::vector<std::uint32_t> padded(7);
  pack_padded32(codes, 3, padded);
  CheckpointBuilder builder;
  builder.add_raw("a.weight_packed", DType::i32, {1, 7}, padded);
  builder.add_raw("a.weight_shape", DType::i64, {2}, std::vector<std::int64_t>{1, 64});
  builder.add_bf16("a.weight_scale", {1, 2}, {1.0F, 0.5F});
  builder.write(folder.path());
  const auto weights = stored_weights(std::make_shared<ShardedSafetensors>(folder.path()), pack_config(3, true, 32));
  const std::vector<float> values = weight_values(*weights, "a");
  ASSERT_EQ(values.size(), 64U);
  for (std::size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(values[i], static_cast<float>(codes[i] - 4) * (i < 32 ? 1.0F : 0.5F)) << i;
  }
}

struct BlockFp8 {
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
  static BlockFp8 make() {
    BlockFp8 b;
    b.codes.resize(200 * 300);
    for (std::size_t i = 0; i < b.codes.size(); ++i) {
      const auto code = static_cast<std::uint8_t>((i * 37 + i / 300) % 256);
      b.codes[i] = (code & 0x7F) == 0x7F ? 0 : code;
    }
    for (int i = 0; i < 6; ++i) b.scales.push_back(0.25F * static_cast<float>(i + 1));
    return b;
  }
};

Json fp8_config() {
  return {{"quantization_config",
           {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"activation_scheme", "dynamic"},
            {"weight_block_size", {128, 128}}}}};
}

TEST(StoredRead, DeepSeekBlocksWithPartialTiles) {
  const TempFolder folder;
  const BlockFp8 b = BlockFp8::make();
  CheckpointBuilder builder;
  builder.add_raw("m.weight", DType::f8_e4m3, {200, 300}, b.codes);
  builder.add_raw("m.weight_scale_inv", DType::f32, {2, 3}, b.scales);
  builder.write(folder.path());
  const auto weights = stored_weights(std::make_shared<ShardedSafetensors>(folder.path()), fp8_config());
  const std::vector<float> values = weight_values(*weights, "m");
  ASSERT_EQ(values.size(), 200U * 300U);
  for (std::size_t r = 0; r < 200; ++r) {
    for (std::size_t c = 0; c < 300; ++c) {
      const float expected = static_cast<float>(decode(fp8_e4m3_format(), b.codes[r * 300 + c])) *
                             b.scales[r / 128 * 3 + c / 128];
      ASSERT_EQ(values[r * 300 + c], expected) << r << ", " << c;
    }
  }
  const std::optional<WeightInfo> info = weights->find("m");
  ASSERT_TRUE(info && info->activations);
  EXPECT_EQ(to_string(*info->activations), to_string(parse_scheme("fp8_e4m3:g128:fp32")));
}

std::string error_of(const CheckpointBuilder& builder, const Json& config, ErrorKind kind) {
  const TempFolder folder;
  builder.write(folder.path());
  try {
    stored_weights(std::make_shared<ShardedSafetensors>(folder.path()), config);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return "no error";
}

TEST(StoredRead, ScalesAndWeightsBelongTogether) {
  const BlockFp8 b = BlockFp8::make();
  CheckpointBuilder no_scale, no_weight, wrong_shape, bare, transposed;
  no_scale.add_raw("m.weight", DType::f8_e4m3, {200, 300}, b.codes);
  EXPECT_THAT(error_of(no_scale, fp8_config(), ErrorKind::bad_input), HasSubstr("m.weight_scale_inv"));
  no_weight.add_raw("m.weight_scale_inv", DType::f32, {2, 3}, b.scales);
  EXPECT_THAT(error_of(no_weight, fp8_config(), ErrorKind::bad_input), HasSubstr("a scale without its weight"));
  wrong_shape.add_raw("m.weight", DType::f8_e4m3, {200, 300}, b.codes);
  wrong_shape.add_raw("m.weight_scale_inv", DType::f32, {2, 2}, std::vector<float>(4, 1.0F));
  EXPECT_THAT(error_of(wrong_shape, fp8_config(), ErrorKind::bad_input), HasSubstr("expected [2, 3]"));
  transposed.add_raw("m.weight", DType::f8_e4m3, {200, 300}, b.codes);
  transposed.add_raw("m.weight_scale_inv", DType::f32, {3, 2}, b.scales);
  EXPECT_THAT(error_of(transposed, fp8_config(), ErrorKind::bad_input), HasSubstr("expected [2, 3]"));
  bare.add_raw("m.weight", DType::f8_e4m3, {200, 300}, b.codes);
  bare.add_raw("m.weight_scale_inv", DType::f32, {2, 3}, b.scales);
  EXPECT_THAT(error_of(bare, nullptr, ErrorKind::bad_input), HasSubstr("no quantization_config"));
}

TEST(StoredRead, HostileShapesAreRefusedBeforeAnythingIsAllocated) {
  for (const std::int64_t cols : {std::int64_t{-64}, std::int64_t{0}, std::int64_t{65}, std::int64_t{1} << 62}) {
    CheckpointBuilder builder;
    builder.add_raw("a.weight_packed", DType::i32, {1, 8}, std::vector<std::int32_t>(8, 0));
    builder.add_raw("a.weight_shape", DType::i64, {2}, std::vector<std::int64_t>{1, cols});
    builder.add_bf16("a.weight_scale", {1, 2}, {1.0F, 0.5F});
    EXPECT_NE(error_of(builder, pack_config(4, true, 32), ErrorKind::bad_input), "no error") << cols;
  }
  CheckpointBuilder rows;
  rows.add_raw("a.weight_packed", DType::i32, {1, 8}, std::vector<std::int32_t>(8, 0));
  rows.add_raw("a.weight_shape", DType::i64, {2}, std::vector<std::int64_t>{std::int64_t{1} << 40, 64});
  rows.add_bf16("a.weight_scale", {1, 2}, {1.0F, 0.5F});
  EXPECT_THAT(error_of(rows, pack_config(4, true, 32), ErrorKind::bad_input), HasSubstr("weight_shape"));
  CheckpointBuilder empty;
  empty.add_raw("a.weight_packed", DType::i32, {0, 8}, std::vector<std::int32_t>());
  empty.add_raw("a.weight_shape", DType::i64, {2}, std::vector<std::int64_t>{0, 64});
  empty.add_raw("a.weight_scale", DType::f32, {0, 2}, std::vector<float>());
  EXPECT_NE(error_of(empty, pack_config(4, true, 32), ErrorKind::bad_input), "no error");
}

TEST(StoredRead, WhatCannotBeReadIsNamed) {
  CheckpointBuilder builder;
  builder.add_bf16("a.weight", {2, 2}, {1, 2, 3, 4});
  const auto with = [](Json quantization) { return Json{{"quantization_config", std::move(quantization)}}; };
  EXPECT_THAT(error_of(builder, with({{"quant_method", "gptq"}}), ErrorKind::unsupported), HasSubstr("'gptq'"));
  EXPECT_THAT(error_of(builder, with({{"quant_method", "halftone"}, {"version", 2}}), ErrorKind::unsupported),
              HasSubstr("version 1"));
  Json marlin = pack_config(4, true, 32);
  marlin["quantization_config"]["format"] = "marlin-24";
  EXPECT_THAT(error_of(builder, marlin, ErrorKind::unsupported), HasSubstr("marlin-24"));
  Json frozen = pack_config(4, true, 32);
  frozen["quantization_config"]["quantization_status"] = "frozen";
  EXPECT_THAT(error_of(builder, frozen, ErrorKind::unsupported), HasSubstr("frozen"));
  CheckpointBuilder ordered;
  ordered.add_raw("a.weight_packed", DType::i32, {1, 8}, std::vector<std::int32_t>(8, 0));
  ordered.add_raw("a.weight_shape", DType::i64, {2}, std::vector<std::int64_t>{1, 64});
  ordered.add_bf16("a.weight_scale", {1, 2}, {1.0F, 0.5F});
  ordered.add_raw("a.weight_g_idx", DType::i32, {64}, std::vector<std::int32_t>(64, 0));
  EXPECT_THAT(error_of(ordered, pack_config(4, true, 32), ErrorKind::unsupported), HasSubstr("g_idx"));
}

TEST(StoredRead, ScalesThatAreNotFiniteAreNamedWhenRead) {
  const TempFolder folder;
  CheckpointBuilder builder;
  builder.add_raw("a.weight", DType::f8_e4m3, {2, 4}, std::vector<std::uint8_t>(8, 0x38));
  builder.add_bf16("a.weight_scale", {2, 1}, {1.0F, INFINITY});
  builder.write(folder.path());
  Json config = pack_config(8, true, 32);
  config["quantization_config"]["format"] = "float-quantized";
  config["quantization_config"]["config_groups"]["group_0"]["weights"] = {
      {"num_bits", 8}, {"type", "float"}, {"symmetric", true}, {"strategy", "channel"}, {"dynamic", false}};
  const auto weights = stored_weights(std::make_shared<ShardedSafetensors>(folder.path()), config);
  const std::optional<WeightInfo> info = weights->find("a");
  ASSERT_TRUE(info.has_value());
  EXPECT_NO_THROW(weights->rows(*info, 0, 1));
  try {
    weights->rows(*info, 0, 2);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("a.weight_scale"));
  }
}

TEST(StoredRead, PlainTensorsAreDenseAndVectorsAreVectors) {
  const TempFolder folder;
  CheckpointBuilder builder;
  builder.add_bf16("model.norm.weight", {3}, {1, 2, 3});
  builder.add_bf16("a.weight", {2, 2}, {1, 2, 3, 4});
  builder.add_raw("b.weight", DType::f64, {1, 2}, std::vector<double>{0.5, -2.0});
  builder.add_raw("mask", DType::boolean, {2, 2}, std::vector<std::uint8_t>(4, 1));
  builder.write(folder.path());
  const auto tensors = std::make_shared<ShardedSafetensors>(folder.path());
  const auto weights = stored_weights(tensors, nullptr);
  EXPECT_EQ(weight_values(*weights, "a"), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(weight_values(*weights, "b"), (std::vector<float>{0.5F, -2.0F}));
  EXPECT_FALSE(weights->find("model.norm").has_value());
  EXPECT_FALSE(weights->find("mask").has_value());
  EXPECT_EQ(weights->vector("model.norm.weight"), (std::vector<float>{1, 2, 3}));
  EXPECT_FALSE(weights->vector("no.such").has_value());
  EXPECT_EQ(stored_entries(*tensors, nullptr).size(), 4U);
}

TEST(StoredRead, GroupsFindTheirModules) {
  const TempFolder folder;
  CheckpointBuilder builder;
  StoredModule eight{"model.layers.0.mlp.down_proj", parse_scheme("int8:channel"), std::nullopt, 4, 32};
  StoredModule four{"model.layers.0.mlp.up_proj", parse_scheme("int4:g32"), std::nullopt, 4, 32};
  const std::vector<float> values = bf16_values(128, 3);
  for (const StoredModule& module : {eight, four}) {
    const QuantizedTensor q = quantize_rows(module.weights, values, 4, 32, stats_of(values));
    const auto infos = stored_tensors(kCt, module);
    for (std::size_t i = 0; i < infos.size(); ++i) {
      builder.add(infos[i].name, infos[i].dtype, infos[i].shape, store_rows(kCt, module, i, 0, q));
    }
  }
  builder.write(folder.path());
  const Json config = {{"quantization_config", quantization_config(kCt, {eight, four}, {"lm_head"})}};
  const auto weights = stored_weights(std::make_shared<ShardedSafetensors>(folder.path()), config);
  EXPECT_EQ(to_string(weights->find(eight.module)->scheme), to_string(eight.weights));
  EXPECT_EQ(to_string(weights->find(four.module)->scheme), to_string(four.weights));
}

TEST(StoredWrite, NamesThatDifferInNumbersShareAPattern) {
  const std::vector<std::string> all = {"model.layers.0.a", "model.layers.1.a", "model.layers.0.b",
                                        "model.layers.1.b", "lm_head"};
  EXPECT_THAT(compact_names({"model.layers.0.a", "model.layers.1.a", "model.layers.0.b", "lm_head"}, all),
              ElementsAre("re:model\\.layers\\.\\d+\\.a$", "model.layers.0.b", "lm_head"));
  const ModulePattern pattern("re:model\\.layers\\.\\d+\\.a$", "test");
  EXPECT_TRUE(pattern.matches("model.layers.12.a"));
  EXPECT_FALSE(pattern.matches("model.layers.12.ab"));
}

TEST(StoredWrite, TablesAndOddShapesNeedOurOwnFormat) {
  StoredModule table{"model.embed_tokens", parse_scheme("int8:channel"), std::nullopt, 8, 32};
  table.is_table = true;
  std::string why;
  EXPECT_EQ(choose_method({table}, &why), kOwn);
  EXPECT_THAT(why, HasSubstr("model.embed_tokens"));
  const StoredModule odd{"a", parse_scheme("int4:g128"), std::nullopt, 8, 136};
  EXPECT_EQ(choose_method({odd}, &why), kOwn);
  EXPECT_THAT(why, HasSubstr("136"));
  EXPECT_EQ(choose_method({}, &why), StoredMethod::none);
}

}  // namespace
}  // namespace halftone
