#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "base/file.h"
#include "base/random.h"
#include "model/testing_model.h"
#include "pipeline/calibration_data.h"
#include "pipeline/calibration_walk.h"
#include "pipeline/quantize_job.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class Calibration : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("halftone-calibration-{}-{}", ::getpid(),
                                                      ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  static fs::path golden(const std::string& name) {
    return fs::path(HALFTONE_SOURCE_DIR) / "tests" / "golden_models" / name;
  }

  static QuantizeOptions options(const Checkpoint& checkpoint, const std::string& recipe, int samples = 6) {
    QuantizeOptions out;
    out.recipe = parse_recipe(recipe, "test");
    out.recipe.calibration.samples = samples;
    out.recipe.calibration.length = 24;
    const std::int64_t vocabulary = checkpoint.model->vocabulary;
    out.calibration_identity = "random";
    out.calibration = [vocabulary, samples](Progress&) {
      std::vector<TokenId> tokens;
      CounterRng rng(5);
      for (int i = 0; i < samples * 24; ++i) {
        tokens.push_back(static_cast<TokenId>(rng.next_bits() % static_cast<std::uint64_t>(vocabulary)));
      }
      return calibration_of_tokens(std::move(tokens), 24, vocabulary, "random");
    };
    return out;
  }

  static std::map<std::string, std::string> files(const fs::path& folder) {
    std::map<std::string, std::string> out;
    for (const auto& entry : fs::directory_iterator(folder)) {
      out[entry.path().filename().string()] = read_text_file(entry.path());
    }
    return out;
  }

  std::string error_of(const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  fs::path folder_;
};

// Stops the run after so many notes of progress, as Ctrl-C would.
class Interrupter final : public Progress {
 public:
  explicit Interrupter(int after) : left_(after) {}
  void begin(std::string_view, std::uint64_t, std::string_view) override {}
  void advance(std::uint64_t, std::string_view) override {
    if (--left_ == 0) interrupt_flag() = true;
  }
  void end() override {}
  void note(std::string_view) override {}

 private:
  int left_;
};

constexpr const char* kRecipe =
    R"({"default": {"weights": "int4:g16:asym"}, "rules": [{"match": "head", "weights": "int8:g16"},
  {"match": "*.v_proj", "keep": true}, {"match": "*.o_proj", "weights": "bf16"}], "methods": ["gptaq", "gptq", "quantease"]})";

// The mean squared difference of the final hidden states from those of the source.
double drift(const Checkpoint& source, const fs::path& output) {
  ThreadPool pool(2);
  const Checkpoint written = open_checkpoint(output);
  const Model a(*source.model, *source.weights, pool), b(*written.model, *written.weights, pool);
  std::vector<std::int32_t> tokens;
  CounterRng rng(99);
  for (int i = 0; i < 60; ++i) {
    tokens.push_back(static_cast<std::int32_t>(rng.next_bits() % static_cast<std::uint64_t>(source.model->vocabulary)));
  }
  std::vector<float> x, y;
  KvCache first(*source.model, fp32_format(), 64), second(*written.model, fp32_format(), 64);
  a.forward(tokens, first, x, pool);
  b.forward(tokens, second, y, pool);
  double sum = 0, energy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    sum += (double{x[i]} - double{y[i]}) * (double{x[i]} - double{y[i]});
    energy += double{x[i]} * double{x[i]};
  }
  return sum / energy;
}

TEST_F(Calibration, WholeModelsOfEveryFamilyAreQuantizedBetterThanByRounding) {
  for (const char* name : {"llama_tied", "llama_untied", "gemma3", "qwen3", "qwen2"}) {
    SCOPED_TRACE(name);
    const Checkpoint source = open_checkpoint(golden(name));
    ThreadPool pool(2);
    const auto run = [&](const std::string& methods) {
      const fs::path out = folder_ / (std::string(name) + methods.substr(0, 6));
      const auto job = options(
          source, R"({"default": {"weights": "int3:g16:asym", "activations": null}, "methods": [)" + methods + "]}",
          60);
      const QuantizeResult result = quantize_checkpoint(source, out, job, pool);
      for (const TensorOutcome& tensor : result.tensors) {
        if (tensor.action == "quantized" && methods != "\"rtn\"") {
          EXPECT_GT(tensor.output_error, 0.0) << tensor.name;
          EXPECT_LT(tensor.output_error, 0.5) << tensor.name;
        }
      }
      return drift(source, out);
    };
    const double plain = run("\"rtn\""), gptq = run("\"gptq\"");
    EXPECT_LT(gptq, 0.95 * plain);
  }
}

TEST_F(Calibration, TheSameBytesForAnyThreadsAndAfterAnyInterruption) {
  const Checkpoint source = open_checkpoint(golden("llama_tied"));
  const QuantizeOptions job = options(source, kRecipe);
  ThreadPool one(1), three(3);
  const QuantizeResult straight = quantize_checkpoint(source, folder_ / "a", job, one);
  EXPECT_TRUE(straight.report.contains("calibration"));
  quantize_checkpoint(source, folder_ / "b", job, three);
  const auto wanted = files(folder_ / "a");
  EXPECT_EQ(wanted, files(folder_ / "b"));
  int interrupted = 0;
  for (int after = 1; after < 40; ++after) {
    const fs::path out = folder_ / fmt::format("i{}", after);
    Interrupter progress(after);
    try {
      quantize_checkpoint(source, out, job, three, progress);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::interrupted);
      ++interrupted;
    }
    interrupt_flag() = false;
    quantize_checkpoint(source, out, job, three);
    ASSERT_EQ(wanted, files(out)) << after;
  }
  EXPECT_GT(interrupted, 5);
}

TEST_F(Calibration, WhatIsNotCalibratedIsSaidAndOtherDataIsAnotherJob) {
  const Checkpoint source = open_checkpoint(golden("llama_untied"));
  QuantizeOptions job = options(source, R"({"default": {"weights": "int8:channel"}, "rules": [
    {"match": "embedding", "weights": "int8:channel"}, {"match": "ffn.down", "weights": "bf16"}], "methods": ["gptq"]})");
  ThreadPool pool(2);
  const Plan plan = plan_quantization(source, job);
  EXPECT_THAT(plan.notes, ::testing::Contains(HasSubstr("model.embed_tokens.weight: rounded to nearest")));
  quantize_checkpoint(source, folder_ / "a", job, pool);
  job.calibration_identity = "other";
  EXPECT_THAT(error_of([&] { quantize_checkpoint(source, folder_ / "a", job, pool); }), HasSubstr("exists"));
  Checkpoint refused = source;
  refused.model.reset();
  refused.model_refusal = "no such architecture";
  EXPECT_THAT(error_of([&] { plan_quantization(refused, job); }), HasSubstr("no such architecture"));
}

TEST_F(Calibration, TokensOutsideTheVocabularyAreRefused) {
  const Checkpoint source = open_checkpoint(golden("llama_tied"));
  QuantizeOptions job = options(source, kRecipe);
  const std::int64_t vocabulary = source.model->vocabulary;
  job.calibration = [vocabulary](Progress&) {
    return calibration_of_tokens(std::vector<TokenId>(24, static_cast<TokenId>(vocabulary)), 24, vocabulary, "bad");
  };
  ThreadPool pool(1);
  EXPECT_THAT(error_of([&] { quantize_checkpoint(source, folder_ / "a", job, pool); }), HasSubstr("vocabulary"));
  EXPECT_FALSE(fs::exists(folder_ / "a"));
}

TEST_F(Calibration, ReadsTextsAndJsonLines) {
  std::vector<std::string> bytes{""};
  for (int i = 1; i < 256; ++i) bytes.push_back(std::string(1, static_cast<char>(i)));
  const ListTokenizer tokenizer(bytes);
  Checkpoint checkpoint;
  checkpoint.path = "model";
  const auto write = [&](const std::string& name, const std::string& text) {
    write_text_file(folder_ / name, text);
    return folder_ / name;
  };
  const CalibrationOptions options{.samples = 3, .length = 10, .chat = false};
  std::string text;
  for (int i = 0; i < 95; ++i) text += static_cast<char>('a' + i / 10);
  const CalibrationData windows = load_calibration(checkpoint, tokenizer, write("t.txt", text), options);
  ASSERT_EQ(windows.sequences.size(), 3U);  // of nine, evenly
  EXPECT_EQ(windows.sequences[0].front(), 'a');
  EXPECT_EQ(windows.sequences[1].front(), 'd');
  EXPECT_EQ(windows.sequences[2].front(), 'g');
  EXPECT_EQ(windows.unused_tokens, 65);
  EXPECT_EQ(to_json(windows).at("distinct_tokens"), 3);

  const CalibrationData rows = load_calibration(
      checkpoint, tokenizer,
      write("r.jsonl",
            "{\"text\": \"0123456789abc\"}\n\n{\"text\": \"short\"}\n{\"src\": [\"question\"], \"tgt\": \"answer\"}\n"
            "{\"messages\": [{\"role\": \"user\", \"content\": \"eight ch\"}]}\n{\"text\": \"one too many for it\"}\n"),
      options);
  ASSERT_EQ(rows.sequences.size(), 3U);
  EXPECT_EQ(rows.sequences[0].size(), 10U);
  EXPECT_EQ(rows.dropped_rows, 2);
  EXPECT_EQ(rows.unused_tokens, 3 + 5);
  EXPECT_THAT(rows.notes, ::testing::Contains(HasSubstr("fewer than")));

  const auto refusal = [&](const std::string& name, const std::string& content, const CalibrationOptions& with) {
    return error_of([&] { load_calibration(checkpoint, tokenizer, write(name, content), with); });
  };
  EXPECT_THAT(refusal("x.jsonl", "{\"text\": \"0123456789\"}\n{\"txt\": 1}\n", options), HasSubstr("line 2"));
  EXPECT_THAT(refusal("x.jsonl", "nonsense", options), HasSubstr("line 1"));
  EXPECT_THAT(refusal("x.jsonl", "", options), HasSubstr("no row"));
  EXPECT_THAT(refusal("x.txt", "abc", options), HasSubstr("fewer than one sample"));
  EXPECT_THAT(refusal("x.jsonl", "{}", {.samples = 1, .length = 10, .chat = true}), HasSubstr("chat template"));
  EXPECT_THAT(error_of([&] { load_calibration(checkpoint, tokenizer, folder_ / "absent.txt", options); }),
              HasSubstr("absent.txt"));
}

}  // namespace
}  // namespace halftone
