#include "pipeline/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/random.h"
#include "model/model.h"
#include "pipeline/quantize_job.h"
#include "pipeline/smooth.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// Matrices whose losses differ by orders of magnitude; four times the loss for a bit less.
SensitivityReport made_up() {
  SensitivityReport report;
  for (const char* name : {"int2:g64:asym", "int4:g64:asym", "int6:g64:asym", "int8:g64"}) {
    report.candidates.push_back(parse_scheme(name));
  }
  CounterRng rng(3);
  const std::vector<std::pair<std::string, Role>> parts = {{"self_attn.q_proj", Role::attention_q}, {"mlp.down_proj", Role::ffn_down}};
  for (int layer = 0; layer < 6; ++layer) {
    for (const auto& [part, role] : parts) {
      Sensitivity item;
      item.module = fmt::format("model.layers.{}.{}", layer, part);
      item.role = role;
      item.rows = 64;
      item.cols = 128;
      item.measured = 1;
      const double loss = std::pow(10.0, -5.0 + 3 * static_cast<double>(rng.next_uniform()));
      for (const double bits : {2.0, 4.0, 6.0, 8.0}) {
        item.kl.push_back(loss * std::pow(4.0, 4.0 - bits));
        item.bytes.push_back(static_cast<std::uint64_t>(64 * 128 / 8 * bits));
      }
      item.importance.assign(128, 1.0F);
      report.matrices.push_back(item);
    }
  }
  Sensitivity head = report.matrices.front();
  head.module = "model.embed_tokens";
  head.role = Role::head;
  report.matrices.push_back(head);
  report.parameters = 13 * 64 * 128 + 100;
  report.other_bytes = 200;
  return report;
}

TEST(Search, AllocationsHoldTheBudgetAndBeatEveryUniformSchemeOfTheSize) {
  const SensitivityReport report = made_up();
  for (std::size_t uniform = 0; uniform < report.candidates.size(); ++uniform) {
    std::uint64_t bytes = report.other_bytes;
    double kl = 0;
    for (const Sensitivity& item : report.matrices) {
      bytes += item.bytes[uniform];
      kl += item.kl[uniform];
    }
    const Allocation found = allocate(report, bytes);
    EXPECT_LE(found.bytes, bytes);
    EXPECT_LE(found.predicted_kl, kl * (1 + 1e-9));
    if (uniform > 0 && uniform < 3) {
      EXPECT_LT(found.predicted_kl, 0.7 * kl);
    }
    EXPECT_NEAR(found.bits, 8.0 * static_cast<double>(found.bytes) / static_cast<double>(report.parameters), 1e-9);
  }
  EXPECT_THROW(allocate(report, 1000), Error);
}

TEST(Search, TheFrontGrowsInBytesAndFallsInLoss) {
  const std::vector<Allocation> front = pareto_front(made_up());
  ASSERT_GT(front.size(), 8U);
  for (std::size_t i = 1; i < front.size(); ++i) {
    EXPECT_GT(front[i].bytes, front[i - 1].bytes);
    EXPECT_LT(front[i].predicted_kl, front[i - 1].predicted_kl);
  }
}

TEST(Search, TheRecipeGivesEveryMatrixItsScheme) {
  const SensitivityReport report = made_up();
  const Allocation found = allocate(report, 60'000);
  const Recipe recipe = parse_recipe(to_json(recipe_of(report, found, "n", "d")).dump(), "found");
  const RuleMatcher matcher(recipe);
  for (std::size_t m = 0; m < report.matrices.size(); ++m) {
    const Sensitivity& item = report.matrices[m];
    const bool table = item.role == Role::head;
    const RuleChoice choice = matcher.choose(item.module, table ? Role::embedding : item.role, table);
    ASSERT_TRUE(choice.weights.has_value()) << item.module;
    EXPECT_EQ(*choice.weights, report.candidates[found.choice[m]]) << item.module;
  }
}

TEST(Search, ReportsComeBackFromTheirFileAndOthersAreRefused) {
  const SensitivityReport report = made_up();
  const auto json = to_json(report);
  EXPECT_EQ(to_json(sensitivity_from_json(json, "f")), json);
  const auto refusal = [](const nlohmann::ordered_json& value) -> std::string {
    try {
      sensitivity_from_json(value, "file.json");
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refusal(nlohmann::ordered_json::object()), HasSubstr("file.json"));
  EXPECT_THAT(refusal(nlohmann::ordered_json()), HasSubstr("file.json"));
  auto broken = json;
  broken["matrices"][2]["kl"].erase(0);
  EXPECT_THAT(refusal(broken), HasSubstr("does not fit"));
}

CalibrationData random_data(const Checkpoint& source, int sequences, int length) {
  std::vector<TokenId> tokens;
  CounterRng rng(7);
  for (int i = 0; i < sequences * length; ++i) {
    tokens.push_back(static_cast<TokenId>(rng.next_bits() % static_cast<std::uint32_t>(source.model->vocabulary)));
  }
  return calibration_of_tokens(std::move(tokens), length, source.model->vocabulary, "random");
}

fs::path golden_model(const std::string& name) { return fs::path(HALFTONE_SOURCE_DIR) / "tests" / "golden_models" / name; }

TEST(Search, MeasuresARealModelAndItsSizesAreThoseOfTheFile) {
  for (const char* name : {"llama_tied", "llama_untied"}) {
    const Checkpoint source = open_checkpoint(golden_model(name));
    ThreadPool pool(2);
    std::vector<Scheme> candidates;
    for (const char* scheme : {"int3:g16:asym", "int4:g16:asym", "int8:g16"}) candidates.push_back(parse_scheme(scheme));
    const SensitivityReport report =
        measure_sensitivity(source, random_data(source, 2, 40), candidates, pool, no_progress());
    EXPECT_EQ(report.matrices.size(), 7 * source.model->layers.size() + 1);
    for (const Sensitivity& item : report.matrices) {
      EXPECT_GT(item.kl[1], 0.0) << item.module;
      EXPECT_GT(item.kl[0], item.kl[1]) << item.module;
      EXPECT_GT(item.kl[1], 10 * item.kl[2]) << item.module;
    }
    const Allocation found = allocate(report, pareto_front(report).back().bytes * 3 / 4);
    QuantizeOptions job;
    job.recipe = recipe_of(report, found, "n", "d");
    job.storage = "halftone";
    job.recipe.calibration.samples = job.recipe.calibration.length = 8;
    const Plan plan = plan_quantization(source, job);
    EXPECT_NEAR(plan.bits_per_weight, found.bits, 0.02 * found.bits) << name;
  }
}

// The relative squared difference of the final hidden states of two checkpoints.
double hidden_difference(const Checkpoint& a, const Checkpoint& b) {
  ThreadPool pool(2);
  const Model first(*a.model, *a.weights, pool), second(*b.model, *b.weights, pool);
  const CalibrationData data = random_data(a, 1, 50);
  std::vector<float> x, y;
  KvCache one(*a.model, fp32_format(), 64), two(*b.model, fp32_format(), 64);
  first.forward(data.sequences[0], one, x, pool);
  second.forward(data.sequences[0], two, y, pool);
  double sum = 0, energy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    sum += (double{x[i]} - double{y[i]}) * (double{x[i]} - double{y[i]});
    energy += double{x[i]} * double{x[i]};
  }
  return sum / energy;
}

TEST(Smoothing, ASmoothedCheckpointComputesTheSame) {
  for (const char* name : {"llama_tied", "llama_untied", "gemma3", "qwen2", "qwen3", "mistral"}) {
    const Checkpoint source = open_checkpoint(golden_model(name));
    ThreadPool pool(2);
    const FormatsOf formats = [](const std::string&) {
      return std::optional(MatrixFormats{parse_scheme("int8:channel"), parse_scheme("int8:token")});
    };
    for (const char* method : {"smoothquant", "pss", "awq"}) {
      const SmoothedCheckpoint smoothed =
          smooth_checkpoint(source, method, random_data(source, 3, 40).sequences, formats, pool, no_progress());
      EXPECT_EQ(smoothed.report.size(), 3 * source.model->layers.size());
      int moved = 0;
      for (const auto& entry : smoothed.report) {
        if (!entry.contains("loss")) {
          EXPECT_TRUE(source.model->ffn_bias) << entry.dump();
          EXPECT_THAT(entry["how"].get<std::string>(), HasSubstr("bias"));
          continue;
        }
        moved += entry.contains("loss") && entry["how"] != "identity" ? 1 : 0;
        if (std::string(method) != "smoothquant") {
          EXPECT_LE(entry["loss"], entry["identity_loss"]);
        }
      }
      EXPECT_GT(moved, 0) << name << " " << method;
      EXPECT_LT(hidden_difference(source, smoothed.checkpoint), 1e-8) << name << " " << method;
    }
  }
}

TEST(Smoothing, WhatIsNotQuantizedIsLeftAloneAndSaid) {
  const Checkpoint source = open_checkpoint(golden_model("llama_tied"));
  ThreadPool pool(1);
  const FormatsOf formats = [](const std::string& module) -> std::optional<MatrixFormats> {
    if (module.find("k_proj") != std::string::npos) return std::nullopt;
    return MatrixFormats{parse_scheme("int8:channel"), parse_scheme("int8:token")};
  };
  const SmoothedCheckpoint smoothed =
      smooth_checkpoint(source, "smoothquant", random_data(source, 2, 30).sequences, formats, pool, no_progress());
  EXPECT_THAT(smoothed.report[0]["how"].get<std::string>(), HasSubstr("k_proj"));
  EXPECT_EQ(smoothed.checkpoint.tensors->at("model.layers.0.self_attn.q_proj.weight").dtype,
            source.tensors->at("model.layers.0.self_attn.q_proj.weight").dtype);
  EXPECT_LT(hidden_difference(source, smoothed.checkpoint), 1e-8);
}

}  // namespace
}  // namespace halftone
