#include "pipeline/quantize_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <map>
#include <thread>

#include "base/error.h"
#include "base/testing.h"
#include "pipeline/testing_checkpoint.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using testing::HasSubstr;

Json llama_config() {
  return {{"architectures", {"LlamaForCausalLM"}}, {"model_type", "llama"}, {"hidden_size", 64},
          {"tie_word_embeddings", false},          {"torch_dtype", "bfloat16"}};
}

// Two layers of a Llama with odd sizes.
void write_llama(const fs::path& folder, bool with_head = true, std::int64_t vocabulary = 90) {
  CheckpointBuilder builder;
  std::uint64_t seed = 1;
  const auto matrix = [&](const std::string& name, std::int64_t rows, std::int64_t cols) {
    builder.add_bf16(name, {rows, cols}, bf16_values(static_cast<std::size_t>(rows * cols), seed++));
  };
  matrix("model.embed_tokens.weight", vocabulary, 64);
  for (int layer = 0; layer < 2; ++layer) {
    const std::string p = "model.layers." + std::to_string(layer) + ".";
    builder.add_bf16(p + "input_layernorm.weight", {64}, std::vector<float>(64, 1.0F));
    matrix(p + "self_attn.q_proj.weight", 64, 64);
    matrix(p + "self_attn.k_proj.weight", 32, 64);
    matrix(p + "self_attn.v_proj.weight", 32, 64);
    matrix(p + "self_attn.o_proj.weight", 64, 64);
    matrix(p + "mlp.gate_proj.weight", 96, 64);
    matrix(p + "mlp.up_proj.weight", 96, 64);
    matrix(p + "mlp.down_proj.weight", 64, 96);
  }
  builder.add_bf16("model.norm.weight", {64}, std::vector<float>(64, 1.0F));
  if (with_head) matrix("lm_head.weight", vocabulary, 64);
  Json config = llama_config();
  config["tie_word_embeddings"] = !with_head;
  builder.write(folder, config);
}

QuantizeOptions options_for(const std::string& scheme) {
  QuantizeOptions options;
  options.recipe = recipe_for(scheme);
  return options;
}

QuantizeResult run(const fs::path& in, const fs::path& out, const QuantizeOptions& options, int threads = 2) {
  ThreadPool pool(threads);
  return quantize_checkpoint(plain_checkpoint(in), out, options, pool);
}

std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) {
      files[fs::relative(entry.path(), folder).string()] = read_text_file(entry.path());
    }
  }
  return files;
}

template <class Body>
std::string error_of(ErrorKind kind, Body body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

std::uint64_t weight_file_bytes(const fs::path& folder) {
  std::uint64_t sum = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".safetensors") || name == "model.safetensors.index.json") sum += fs::file_size(entry.path());
  }
  return sum;
}

TEST(QuantizeJob, PlanKnowsTheOutputToTheByte) {
  const TempFolder folder;
  write_llama(folder.path() / "in");
  int number = 0;
  for (const char* scheme : {"fp8", "w8a8", "int4", "fp8_block", "nvfp4", "mxfp4", "q4_k_m", "int3:g32:asym", "e4m4:g50",
                             "int4:g64:asym", "q8_0", "bf16", "fp8_e4m3:none"}) {
    for (const std::uint64_t shard : {std::uint64_t{5'000'000'000}, std::uint64_t{20'000}}) {
      QuantizeOptions options = options_for(scheme);
      options.shard_bytes = shard;
      const fs::path out = folder.path() / ("out" + std::to_string(number++));
      const Plan plan = plan_quantization(plain_checkpoint(folder.path() / "in"), options);
      const QuantizeResult result = run(folder.path() / "in", out, options);
      EXPECT_EQ(plan.output_bytes, weight_file_bytes(out)) << scheme;
      EXPECT_EQ(result.plan.output_bytes, plan.output_bytes) << scheme;
      std::uint64_t sum = 0;
      for (const PlannedTensor& tensor : plan.tensors) sum += tensor.bytes;
      EXPECT_LE(sum, plan.output_bytes) << scheme;
      EXPECT_EQ(plan.tensors.size(), result.tensors.size()) << scheme;
      EXPECT_FALSE(fs::exists(fs::path(out.string() + ".partial")));
      // What was written opens, and decodes to what the report says.
      const Checkpoint written = plain_checkpoint(out);
      const Checkpoint source = plain_checkpoint(folder.path() / "in");
      for (const TensorOutcome& outcome : result.tensors) {
        if (outcome.action != "quantized") continue;
        const std::string module = module_of(outcome.name);
        const std::vector<float> x = weight_values(*source.weights, module), y = weight_values(*written.weights, module);
        ASSERT_EQ(x.size(), y.size()) << outcome.name;
        double signal = 0, noise = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
          signal += static_cast<double>(x[i]) * static_cast<double>(x[i]);
          noise += std::pow(static_cast<double>(x[i]) - static_cast<double>(y[i]), 2);
        }
        EXPECT_NEAR(10 * std::log10(signal / noise), outcome.sqnr_db, 1e-6) << scheme << " " << outcome.name;
      }
    }
  }
}

TEST(QuantizeJob, OutputDependsNeitherOnThreadsNorOnMemoryAndIsTheSameTwice) {
  const TempFolder folder;
  write_llama(folder.path() / "in");
  for (const char* scheme : {"fp8", "int4", "nvfp4", "fp8_block"}) {
    QuantizeOptions options = options_for(scheme);
    const fs::path base = folder.path() / scheme;
    run(folder.path() / "in", base / "a", options, 1);
    run(folder.path() / "in", base / "b", options, 3);
    options.max_memory = plan_quantization(plain_checkpoint(folder.path() / "in"), options).peak_memory_bytes;
    run(folder.path() / "in", base / "c", options, 2);
    EXPECT_EQ(contents(base / "a"), contents(base / "b")) << scheme;
    EXPECT_EQ(contents(base / "a"), contents(base / "c")) << scheme;
  }
}

TEST(QuantizeJob, SidecarsAndConfigAreCarriedOver) {
  const TempFolder folder;
  write_llama(folder.path() / "in");
  Checkpoint source = plain_checkpoint(folder.path() / "in");
  source.sidecars["tokenizer.json"] = "{\"a\":\r\n1}";
  ThreadPool pool(2);
  quantize_checkpoint(source, folder.path() / "out", options_for("fp8"), pool);
  EXPECT_EQ(read_text_file(folder.path() / "out" / "tokenizer.json"), "{\"a\":\r\n1}");
  const Json config = Json::parse(read_text_file(folder.path() / "out" / "config.json"));
  EXPECT_EQ(config["model_type"], "llama");
  EXPECT_EQ(config["quantization_config"]["quant_method"], "compressed-tensors");
  EXPECT_EQ(config["quantization_config"]["ignore"], Json({"lm_head"}));
  const Json report = Json::parse(read_text_file(folder.path() / "out" / "report.json"));
  EXPECT_EQ(report["tensors"].size(), 19U);
  EXPECT_EQ(report["totals"]["quantized"], 14);
  EXPECT_TRUE(report["quality"].is_null());
}

// users.md C01
TEST(QuantizeJob, ZeroBlocksStayZero) {
  const TempFolder folder;
  CheckpointBuilder builder;
  std::vector<float> values(256 * 256, 0.0F);
  values[0] = 1.0F;
  builder.add_bf16("a.weight", {256, 256}, values);
  builder.write(folder.path() / "in");
  int number = 0;
  for (const char* scheme : {"fp8_block", "fp8_e4m3:tensor", "int8:channel", "int4:g128", "mxfp4", "nvfp4", "q4_0"}) {
    const fs::path out = folder.path() / std::to_string(number++);
    const QuantizeResult result = run(folder.path() / "in", out, options_for(scheme));
    const std::vector<float> back = weight_values(*plain_checkpoint(out).weights, "a");
    ASSERT_EQ(back.size(), values.size()) << scheme;
    EXPECT_NEAR(back[0], 1.0F, 0.13F) << scheme;
    for (std::size_t i = 1; i < back.size(); ++i) ASSERT_EQ(back[i], 0.0F) << scheme << " " << i;
    if (std::string(scheme) == "fp8_block") {
      EXPECT_EQ(result.report["tensors"][0]["zero_blocks"], 3);
    }
  }
}

// users.md C12
TEST(QuantizeJob, TailGroupsAreAsGoodAndForeignStorageIsRefusedByName) {
  const TempFolder folder;
  CheckpointBuilder builder;
  builder.add_bf16("a.weight", {64, 136}, bf16_values(64 * 136, 5));
  builder.write(folder.path() / "in");
  QuantizeOptions options = options_for("int4:g128");
  const QuantizeResult result = run(folder.path() / "in", folder.path() / "out", options);
  EXPECT_EQ(result.plan.storage, "halftone");
  const std::vector<float> x = bf16_values(64 * 136, 5), y = weight_values(*plain_checkpoint(folder.path() / "out").weights, "a");
  double whole = 0, tail = 0;
  for (std::size_t r = 0; r < 64; ++r) {
    for (std::size_t c = 0; c < 136; ++c) {
      const double d = std::pow(static_cast<double>(x[r * 136 + c]) - static_cast<double>(y[r * 136 + c]), 2);
      (c < 128 ? whole : tail) += d;
    }
  }
  EXPECT_LE(tail / (64 * 8), whole / (64 * 128));  // eight values share a scale more easily than 128
  EXPECT_GT(tail, 0.0);
  options.storage = "compressed-tensors";
  EXPECT_THAT(error_of(ErrorKind::unsupported, [&] { run(folder.path() / "in", folder.path() / "ct", options); }),
              HasSubstr("a: rows of 136"));
  EXPECT_FALSE(fs::exists(folder.path() / "ct"));
  EXPECT_FALSE(fs::exists(folder.path() / "ct.partial"));
}

// users.md C13
TEST(QuantizeJob, StrictRefusesSubstitutionsBeforeWriting) {
  const TempFolder folder;
  write_llama(folder.path() / "in");
  QuantizeOptions options = options_for("q4_k");
  options.strict = true;
  EXPECT_THAT(error_of(ErrorKind::unsupported, [&] { run(folder.path() / "in", folder.path() / "out", options); }),
              HasSubstr("--strict"));
  EXPECT_FALSE(fs::exists(folder.path() / "out.partial"));
  options.strict = false;
  const QuantizeResult result = run(folder.path() / "in", folder.path() / "out", options);
  EXPECT_EQ(result.report["substitutions"].size(), 14U);
  EXPECT_EQ(result.report["substitutions"][0]["given"], "q4_1");
}

// users.md C14
TEST(QuantizeJob, CastsToFp16AreCountedAndRefusedWhereTheyOverflow) {
  const TempFolder folder;
  const std::vector<std::uint16_t> codes = {float_to_bf16(7e4F), float_to_bf16(3e38F), float_to_bf16(1e-7F), 0x0001,
                                            0x7FC1,              float_to_bf16(1.5F),  0x8000,               0x3F80};
  CheckpointBuilder builder;
  builder.add_raw("a.weight", DType::bf16, {2, 4}, codes);
  builder.write(folder.path() / "in", llama_config());
  QuantizeOptions options;
  options.recipe = dense_recipe("bf16");
  const QuantizeResult same = run(folder.path() / "in", folder.path() / "bf16", options);
  EXPECT_EQ(same.tensors[0].non_finite, 1);
  std::vector<std::byte> scratch;
  const Checkpoint copy = plain_checkpoint(folder.path() / "bf16");
  const auto bytes = copy.tensors->rows(copy.tensors->at("a.weight"), 0, 2, scratch);
  EXPECT_EQ(std::memcmp(bytes.data(), codes.data(), 16), 0);

  options.recipe = dense_recipe("fp16");
  EXPECT_THAT(error_of(ErrorKind::unsupported, [&] { run(folder.path() / "in", folder.path() / "f16", options); }),
              HasSubstr("'a.weight': 2 of its values"));
  EXPECT_FALSE(fs::exists(folder.path() / "f16"));
  EXPECT_FALSE(fs::exists(folder.path() / "f16.partial"));
  options.allow_lossy_f16 = true;
  const QuantizeResult lossy = run(folder.path() / "in", folder.path() / "f16", options);
  EXPECT_EQ(lossy.tensors[0].clipped, 2);
  EXPECT_EQ(lossy.tensors[0].underflow, 1);
  EXPECT_EQ(lossy.tensors[0].non_finite, 1);
  const std::vector<float> back = weight_values(*plain_checkpoint(folder.path() / "f16").weights, "a");
  EXPECT_EQ(back[0], 65504.0F);
  EXPECT_EQ(back[2], fp16_to_float(float_to_fp16(bf16_to_float(codes[2]))));
  EXPECT_TRUE(std::isnan(back[4]));
  EXPECT_EQ(Json::parse(read_text_file(folder.path() / "f16" / "config.json"))["torch_dtype"], "float16");
}

TEST(QuantizeJob, NonFiniteInputIsNamedAndLeavesNothing) {
  const TempFolder folder;
  for (const char* scheme : {"fp8", "nvfp4", "fp8_e4m3:tensor"}) {
    CheckpointBuilder builder;
    std::vector<float> values = bf16_values(300 * 64, 4);
    values[64 * 7 + 3] = INFINITY;
    values[64 * 290 + 5] = NAN;
    builder.add_bf16("x.weight", {300, 64}, values);
    builder.write(folder.path() / "in");
    const std::string message =
        error_of(ErrorKind::bad_input, [&] { run(folder.path() / "in", folder.path() / "out", options_for(scheme)); });
    EXPECT_THAT(message, HasSubstr("'x.weight': 2 of its values are not finite"));
    EXPECT_THAT(message, HasSubstr("index 451 (row 7, column 3)"));
    EXPECT_FALSE(fs::exists(folder.path() / "out"));
    EXPECT_FALSE(fs::exists(folder.path() / "out.partial"));
  }
}

// users.md C29
TEST(QuantizeJob, OutputMayNotBeTheInput) {
  const TempFolder folder;
  const fs::path in = folder.path() / "in";
  write_llama(in);
  const auto before = contents(in);
  fs::create_directory_symlink(in, folder.path() / "link");
  fs::create_directory(folder.path() / "hard");
  fs::create_hard_link(in / "model.safetensors", folder.path() / "hard" / "model.safetensors");
  QuantizeOptions options = options_for("fp8");
  options.force = true;
  for (const fs::path& out : {in, in / "sub", in / "model.safetensors", folder.path() / "link",
                              folder.path() / "link" / "deep" / "er", folder.path() / "hard", in / "..", in / "." }) {
    if (out == in / "..") continue;  // the parent folder is another matter: not a model folder
    EXPECT_THAT(error_of(ErrorKind::usage, [&] { run(in, out, options); }), HasSubstr("is the input")) << out;
  }
  EXPECT_THAT(error_of(ErrorKind::usage, [&] { run(in, in / "..", options); }), HasSubstr("not a model folder"));
  EXPECT_EQ(contents(in), before);
}

TEST(QuantizeJob, ExistingOutputsAreReplacedOnlyByForceAndOnlyAtTheEnd) {
  const TempFolder folder;
  const fs::path in = folder.path() / "in", out = folder.path() / "out";
  write_llama(in);
  run(in, out, options_for("fp8"));
  const auto fp8 = contents(out);
  EXPECT_TRUE(run(in, out, options_for("fp8")).already_complete);
  EXPECT_THAT(error_of(ErrorKind::usage, [&] { run(in, out, options_for("w8a8")); }), HasSubstr("--force"));
  EXPECT_EQ(contents(out), fp8);
  QuantizeOptions options = options_for("w8a8");
  options.force = true;
  bool old_there = false;
  options.quality = [&](const fs::path&) {
    old_there = contents(out) == fp8;
    return Json{{"kl_mean", 0.25}};
  };
  const QuantizeResult result = run(in, out, options);
  EXPECT_TRUE(old_there);
  EXPECT_NE(contents(out), fp8);
  EXPECT_EQ(result.report["quality"]["kl_mean"], 0.25);
  EXPECT_FALSE(fs::exists(folder.path() / "out.replaced"));
  EXPECT_FALSE(fs::exists(folder.path() / "out.partial"));
  // A folder of something else is never removed.
  fs::create_directory(folder.path() / "letters");
  write_text_file(folder.path() / "letters" / "dear.txt", "x");
  EXPECT_THAT(error_of(ErrorKind::usage, [&] { run(in, folder.path() / "letters", options); }),
              HasSubstr("not a model folder"));
  EXPECT_TRUE(fs::exists(folder.path() / "letters" / "dear.txt"));
}

TEST(QuantizeJob, AFailedGateLeavesNothingUnderTheFinalName) {
  const TempFolder folder;
  write_llama(folder.path() / "in");
  QuantizeOptions options = options_for("fp8");
  options.quality = [](const fs::path& staged) -> Json {
    EXPECT_TRUE(fs::exists(staged / "model.safetensors"));
    EXPECT_TRUE(fs::exists(staged / "config.json"));
    fail(ErrorKind::quality_gate, "mean KL 0.2 is above 0.1");
  };
  EXPECT_THAT(error_of(ErrorKind::quality_gate, [&] { run(folder.path() / "in", folder.path() / "out", options); }),
              HasSubstr("out.rejected"));
  EXPECT_FALSE(fs::exists(folder.path() / "out"));
  EXPECT_TRUE(fs::exists(folder.path() / "out.rejected" / "model.safetensors"));
}

// users.md C31
TEST(QuantizeJob, KilledAnywhereAndRunAgainGivesTheSameBytes) {
  const TempFolder folder;
  const fs::path in = folder.path() / "in";
  write_llama(in, true, 3000);
  QuantizeOptions options = options_for("int4");
  options.shard_bytes = 60'000;
  const auto start = std::chrono::steady_clock::now();
  run(in, folder.path() / "whole", options);
  const auto whole_time = std::chrono::steady_clock::now() - start;
  const auto expected = contents(folder.path() / "whole");
  CounterRng rng(42);
  int killed = 0;
  for (int trial = 0; trial < 10; ++trial) {
    const fs::path out = folder.path() / ("out" + std::to_string(trial));
    for (int attempt = 0; attempt < 3; ++attempt) {
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        try {
          run(in, out, options);
        } catch (...) {
          ::_exit(1);
        }
        ::_exit(0);
      }
      const double part = static_cast<double>(rng.next_uniform()) * 0.9;
      std::this_thread::sleep_for(
          std::chrono::duration_cast<std::chrono::microseconds>(whole_time * part));
      ::kill(child, SIGKILL);
      int status = 0;
      ::waitpid(child, &status, 0);
      killed += WIFSIGNALED(status) ? 1 : 0;
      ASSERT_FALSE(WIFEXITED(status) && WEXITSTATUS(status) != 0);
      // Under the final name stands nothing or all of it.
      if (fs::exists(out)) {
        EXPECT_TRUE(fs::exists(out / "report.json"));
      }
    }
    run(in, out, options);
    EXPECT_EQ(contents(out), expected) << trial;
    EXPECT_FALSE(fs::exists(out.string() + ".partial"));
  }
  EXPECT_GE(killed, 10);
}

TEST(QuantizeJob, InterruptedRunsAreTakenUpAndOtherJobsRefused) {
  const TempFolder folder;
  const fs::path in = folder.path() / "in", out = folder.path() / "out";
  write_llama(in);
  class StopAfter final : public Progress {
   public:
    void begin(std::string_view, std::uint64_t, std::string_view) override {}
    void advance(std::uint64_t, std::string_view) override {
      if (++count_ == 5) interrupt_flag() = true;
    }
    void end() override {}
    void note(std::string_view) override {}

   private:
    int count_ = 0;
  } stop;
  ThreadPool pool(2);
  // Every tensor becomes durable at once only after a while: interrupt, then look what the journal kept.
  error_of(ErrorKind::interrupted,
           [&] { quantize_checkpoint(plain_checkpoint(in), out, options_for("fp8"), pool, stop); });
  interrupt_flag() = false;
  EXPECT_FALSE(fs::exists(out));
  EXPECT_TRUE(fs::exists(folder.path() / "out.partial"));
  EXPECT_THAT(error_of(ErrorKind::usage, [&] { run(in, out, options_for("w8a8")); }), HasSubstr("another job"));
  const QuantizeResult result = run(in, out, options_for("fp8"));
  EXPECT_EQ(result.resumed_tensors, 5);
  run(in, folder.path() / "whole", options_for("fp8"));
  EXPECT_EQ(contents(out), contents(folder.path() / "whole"));
}

TEST(QuantizeJob, AChangedSourceOrRecipeRefusesTheOldJournalUnlessForced) {
  const TempFolder folder;
  const fs::path in = folder.path() / "in", out = folder.path() / "out";
  write_llama(in);
  QuantizeOptions options = options_for("fp8");
  options.quality = [](const fs::path&) -> Json { fail(ErrorKind::resources, "no memory for the gate"); };
  error_of(ErrorKind::resources, [&] { run(in, out, options); });
  ASSERT_TRUE(fs::exists(folder.path() / "out.partial"));
  const Json config = Json::parse(read_text_file(in / "config.json"));
  Json changed = config;
  changed["hidden_size"] = 65;
  write_text_file(in / "config.json", changed.dump(2));
  EXPECT_THAT(error_of(ErrorKind::usage, [&] { run(in, out, options_for("fp8")); }), HasSubstr("source"));
  QuantizeOptions force = options_for("w8a8");
  force.force = true;
  const QuantizeResult result = run(in, out, force);
  EXPECT_EQ(result.resumed_tensors, 0);
  EXPECT_FALSE(fs::exists(folder.path() / "out.partial"));
}

// users.md C30: a full disk in the middle of the run, as a limit on file sizes.
TEST(QuantizeJob, AFullDiskIsAnErrorOfResourcesAndResumable) {
  const TempFolder folder;
  const fs::path in = folder.path() / "in", out = folder.path() / "out";
  write_llama(in);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{40'000, 40'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      run(in, out, options_for("fp8"));
    } catch (const Error& error) {
      ::_exit(error.exit_code());
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 5);
  EXPECT_FALSE(fs::exists(out));
  run(in, out, options_for("fp8"));
  run(in, folder.path() / "whole", options_for("fp8"));
  EXPECT_EQ(contents(out), contents(folder.path() / "whole"));
}

TEST(QuantizeJob, TooSmallADiskIsRefusedBeforeWriting) {
  const TempFolder folder;
  const fs::path disk = folder.path() / "disk";
  fs::create_directory(disk);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "SKIPPED: mounting a small tmpfs needs root";
  }
  write_llama(folder.path() / "in");
  const std::string message =
      error_of(ErrorKind::resources, [&] { run(folder.path() / "in", disk / "out", options_for("fp8")); });
  EXPECT_THAT(message, HasSubstr("are free"));
  EXPECT_TRUE(fs::is_empty(disk));
  ::umount(disk.c_str());
}

TEST(QuantizeJob, AReadOnlyTargetIsAnErrorOfResources) {
  const TempFolder folder;
  write_llama(folder.path() / "in");
  write_text_file(folder.path() / "file", "x");
  error_of(ErrorKind::resources, [&] { run(folder.path() / "in", folder.path() / "file" / "out", options_for("fp8")); });
}

TEST(QuantizeJob, MemoryBelowTheMinimumIsRefusedWithBothNumbers) {
  const TempFolder folder;
  write_llama(folder.path() / "in");
  QuantizeOptions options = options_for("fp8");
  options.max_memory = 1'000'000;
  EXPECT_THAT(error_of(ErrorKind::resources, [&] { run(folder.path() / "in", folder.path() / "out", options); }),
              HasSubstr("1000000 bytes is less than the "));
  EXPECT_FALSE(fs::exists(folder.path() / "out.partial"));
}

// users.md C59, reduced: one table that is larger than the limit.
TEST(QuantizeJob, MemoryStaysBelowTheLimit) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "SKIPPED: sanitizers use memory of their own";
#endif
  const TempFolder folder;
  const fs::path in = folder.path() / "in";
  fs::create_directory(in);
  TensorInfo info;
  info.name = "a.weight";
  info.dtype = DType::bf16;
  info.shape = {25600, 1500};
  info.bytes = 25600ULL * 1500 * 2;  // 77 MB, sparse on disk
  {
    OutputFile file(in / "model.safetensors", false);
    const std::string header = safetensors_header({info});
    file.append(header);
    file.truncate(header.size() + info.bytes);
    const std::uint16_t one = float_to_bf16(1.0F);
    file.write_at(header.size() + info.bytes - 2, std::as_bytes(std::span(&one, 1)));
    file.close();
  }
  for (const char* scheme : {"fp8", "nvfp4", "bf16"}) {
    QuantizeOptions options = options_for(scheme);
    if (std::string(scheme) == "bf16") options.recipe = dense_recipe("fp32");
    options.max_memory = std::uint64_t{73} << 20;
    const fs::path out = folder.path() / scheme;
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      try {
        const QuantizeResult result = run(in, out, options);
        ::_exit(result.peak_memory_bytes <= options.max_memory ? 0 : 7);
      } catch (...) {
        ::_exit(1);
      }
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0) << scheme;
    const Checkpoint written = plain_checkpoint(out);
    const std::optional<WeightInfo> matrix = written.weights->find("a");
    ASSERT_TRUE(matrix.has_value());
    std::vector<float> last(1500);
    dequantize_rows(written.weights->rows(*matrix, 25599, 1), 0, 1, last);
    EXPECT_NEAR(last[1499], 1.0F, 0.1F) << scheme;
    EXPECT_EQ(last[0], 0.0F) << scheme;
    fs::remove_all(out);
  }
}

// users.md C32
TEST(QuantizeJob, BlockFp8BecomesBf16WithoutItsScales) {
  const TempFolder folder;
  std::vector<std::uint8_t> codes(200 * 300);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const auto code = static_cast<std::uint8_t>(i * 37 % 256);
    codes[i] = (code & 0x7F) == 0x7F ? 1 : code;
  }
  const std::vector<float> scales = {0.1F, 0.2F, 0.3F, 0.4F, 0.5F, 0.6F};
  CheckpointBuilder builder;
  builder.add_raw("m.weight", DType::f8_e4m3, {200, 300}, codes);
  builder.add_raw("m.weight_scale_inv", DType::f32, {2, 3}, scales);
  Json config = llama_config();
  config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  builder.write(folder.path() / "in", config);
  QuantizeOptions options;
  options.recipe = dense_recipe("bf16");
  run(folder.path() / "in", folder.path() / "out", options);
  const Checkpoint written = plain_checkpoint(folder.path() / "out");
  EXPECT_EQ(written.tensors->tensors().size(), 1U);
  EXPECT_FALSE(written.config.contains("quantization_config"));
  const std::vector<float> back = weight_values(*written.weights, "m");
  for (std::size_t r = 0; r < 200; ++r) {
    for (std::size_t c = 0; c < 300; ++c) {
      const float exact =
          static_cast<float>(decode(fp8_e4m3_format(), codes[r * 300 + c])) * scales[r / 128 * 3 + c / 128];
      ASSERT_EQ(back[r * 300 + c], bf16_to_float(float_to_bf16(exact))) << r << ", " << c;
    }
  }
}

// users.md C35
TEST(QuantizeJob, TiedTablesAreStoredOnce) {
  const TempFolder folder;
  const auto config_of = [&](const char* name) { return Json::parse(read_text_file(folder.path() / name / "config.json")); };
  // Absent: shared.
  write_llama(folder.path() / "absent", false);
  run(folder.path() / "absent", folder.path() / "absent_out", options_for("int4"));
  const Checkpoint absent = plain_checkpoint(folder.path() / "absent_out");
  EXPECT_EQ(to_string(absent.weights->find("model.embed_tokens")->scheme), "int8:channel");
  EXPECT_FALSE(absent.weights->find("lm_head").has_value());
  EXPECT_EQ(config_of("absent_out")["tie_word_embeddings"], true);
  // Equal: once. Different: both, and the flag tells so.
  for (const bool equal : {true, false}) {
    const std::string name = equal ? "equal" : "different";
    CheckpointBuilder builder;
    builder.add_bf16("model.embed_tokens.weight", {20, 64}, bf16_values(20 * 64, 1));
    builder.add_bf16("lm_head.weight", {20, 64}, bf16_values(20 * 64, equal ? 1 : 2));
    builder.add_bf16("model.layers.0.mlp.up_proj.weight", {64, 64}, bf16_values(64 * 64, 3));
    Json config = llama_config();
    config["tie_word_embeddings"] = true;
    builder.write(folder.path() / name, config);
    const QuantizeResult result = run(folder.path() / name, folder.path() / (name + "_out"), options_for("fp8"));
    const Checkpoint written = plain_checkpoint(folder.path() / (name + "_out"));
    EXPECT_EQ(written.tensors->find("lm_head.weight") == nullptr, equal);
    EXPECT_EQ(config_of((name + "_out").c_str())["tie_word_embeddings"], equal);
    EXPECT_EQ(result.report["dropped"].size(), equal ? 1U : 0U);
    if (!equal) {
      EXPECT_THAT(result.report["notes"][0].get<std::string>(), HasSubstr("differs from"));
    }
  }
}

// users.md C38
TEST(QuantizeJob, UnknownArchitecturesAreQuantizedAllTheSame) {
  const TempFolder folder;
  CheckpointBuilder builder;
  builder.add_bf16("foo.blocks.0.mixer.in.weight", {64, 64}, bf16_values(64 * 64, 1));
  builder.add_bf16("foo.blocks.0.scale", {64}, bf16_values(64, 2));
  builder.add_bf16("foo.blocks.0.kernel.weight", {64, 1, 4}, bf16_values(256, 3));
  builder.write(folder.path() / "in", {{"architectures", {"FooForCausalLM"}}});
  const QuantizeResult result = run(folder.path() / "in", folder.path() / "out", options_for("fp8"));
  EXPECT_EQ(result.tensors[0].action, "quantized");
  EXPECT_EQ(result.tensors[1].action, "copied");
  EXPECT_EQ(result.tensors[2].action, "copied");
}

TEST(QuantizeJob, QuantizedMatricesThatStayKeepEveryCode) {
  const TempFolder folder;
  write_llama(folder.path() / "in");
  run(folder.path() / "in", folder.path() / "fp8", options_for("fp8"));
  QuantizeOptions options;
  options.recipe = parse_recipe(R"({"rules": [{"match": "head", "weights": "int4:g32"}]})", "r");
  const QuantizeResult result = run(folder.path() / "fp8", folder.path() / "mixed", options);
  const Checkpoint a = plain_checkpoint(folder.path() / "fp8"), b = plain_checkpoint(folder.path() / "mixed");
  for (const char* module : {"model.layers.0.mlp.up_proj", "model.layers.1.self_attn.k_proj"}) {
    EXPECT_EQ(weight_values(*a.weights, module), weight_values(*b.weights, module)) << module;
    EXPECT_TRUE(b.weights->find(module)->activations.has_value());
  }
  EXPECT_EQ(to_string(b.weights->find("lm_head")->scheme), "int4:g32");
  EXPECT_EQ(result.plan.storage, "compressed-tensors");
}

TEST(QuantizeJob, ObserversChangeTheResult) {
  const TempFolder folder;
  write_llama(folder.path() / "in");
  QuantizeOptions options = options_for("int4:g32");
  const QuantizeResult plain = run(folder.path() / "in", folder.path() / "absmax", options);
  options.recipe.observer = "mse";
  const QuantizeResult mse = run(folder.path() / "in", folder.path() / "mse", options);
  double plain_sum = 0, mse_sum = 0;
  for (std::size_t i = 0; i < plain.tensors.size(); ++i) {
    if (plain.tensors[i].action != "quantized") continue;
    plain_sum += plain.tensors[i].sqnr_db;
    mse_sum += mse.tensors[i].sqnr_db;
  }
  EXPECT_GT(mse_sum, plain_sum);
}

}  // namespace
}  // namespace halftone
