#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <numeric>
#include <set>
#include <vector>

#include "base/cpu.h"
#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"
#include "base/random.h"
#include "base/testing.h"
#include "base/threads.h"

namespace halftone {
namespace {

CpuFeatures avx2_cpu() {
  CpuFeatures cpu;
  cpu.avx2 = cpu.fma = cpu.f16c = cpu.bmi2 = true;
  return cpu;
}

CpuFeatures avx512_cpu() {
  CpuFeatures cpu = avx2_cpu();
  cpu.avx512f = cpu.avx512bw = cpu.avx512vl = cpu.avx512dq = true;
  cpu.avx512vbmi = cpu.avx512vnni = cpu.avx512bf16 = true;
  return cpu;
}

TEST(Cpu, SelectsTheWidestThatTheProcessorHas) {
  EXPECT_EQ(select_isa(avx512_cpu(), std::nullopt, Isa::avx512).isa, Isa::avx512);
  EXPECT_EQ(select_isa(avx2_cpu(), std::nullopt, Isa::avx512).isa, Isa::avx2);
  EXPECT_EQ(select_isa(CpuFeatures{}, std::nullopt, Isa::avx512).isa, Isa::scalar);
}

TEST(Cpu, CapAndBuildLowerTheChoice) {
  EXPECT_EQ(select_isa(avx512_cpu(), Isa::avx2, Isa::avx512).isa, Isa::avx2);
  EXPECT_EQ(select_isa(avx512_cpu(), Isa::scalar, Isa::avx512).isa, Isa::scalar);
  EXPECT_EQ(select_isa(avx512_cpu(), std::nullopt, Isa::scalar).isa, Isa::scalar);
}

TEST(Cpu, EveryMissingFeatureRefusesAndIsNamed) {
  for (bool CpuFeatures::*flag : {&CpuFeatures::avx512f, &CpuFeatures::avx512bw, &CpuFeatures::avx512vl,
                                  &CpuFeatures::avx512dq, &CpuFeatures::avx512vbmi, &CpuFeatures::avx512vnni,
                                  &CpuFeatures::avx512bf16}) {
    CpuFeatures cpu = avx512_cpu();
    cpu.*flag = false;
    const IsaChoice choice = select_isa(cpu, std::nullopt, Isa::avx512);
    EXPECT_EQ(choice.isa, Isa::avx2);
    EXPECT_NE(choice.reason.find("avx512 refused: no AVX512"), std::string::npos) << choice.reason;
  }
  for (bool CpuFeatures::*flag : {&CpuFeatures::avx2, &CpuFeatures::fma, &CpuFeatures::f16c, &CpuFeatures::bmi2}) {
    CpuFeatures cpu = avx512_cpu();
    cpu.*flag = false;
    EXPECT_EQ(select_isa(cpu, std::nullopt, Isa::avx512).isa, Isa::scalar);
  }
}

TEST(Cpu, NamesRoundTrip) {
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) EXPECT_EQ(parse_isa(isa_name(isa)), isa);
  EXPECT_FALSE(parse_isa("sse").has_value());
}

// Known answers published with the Philox reference implementation (Random123, kat_vectors).
TEST(Random, PhiloxKnownAnswers) {
  using Words = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, StreamDependsOnSeedStreamAndIndexAlone) {
  CounterRng a(7, 3);
  std::vector<std::uint32_t> words;
  for (int i = 0; i < 100; ++i) words.push_back(a.next_bits());
  const CounterRng b(7, 3);
  for (int i = 99; i >= 0; --i) EXPECT_EQ(b.bits_at(i), words[i]);
  EXPECT_NE(CounterRng(8, 3).bits_at(0), words[0]);
  EXPECT_NE(CounterRng(7, 4).bits_at(0), words[0]);
}

TEST(Random, MomentsOfUniformAndNormal) {
  CounterRng rng(1);
  double sum = 0, normal_sum = 0, normal_square = 0;
  constexpr int kN = 100000;
  for (int i = 0; i < kN; ++i) {
    const float u = rng.next_uniform();
    ASSERT_GE(u, 0.0F);
    ASSERT_LT(u, 1.0F);
    sum += u;
    const double n = rng.next_normal();
    normal_sum += n;
    normal_square += n * n;
  }
  EXPECT_NEAR(sum / kN, 0.5, 0.005);
  EXPECT_NEAR(normal_sum / kN, 0.0, 0.02);
  EXPECT_NEAR(normal_square / kN, 1.0, 0.03);
}

TEST(Threads, EveryTaskRunsOnce) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    for (const int tasks : {0, 1, 2, 5, 1000}) {
      std::vector<std::atomic<int>> ran(tasks);
      pool.run(tasks, [&](std::int64_t task, int worker) {
        EXPECT_GE(worker, 0);
        EXPECT_LT(worker, threads);
        ++ran[task];
      });
      for (const auto& count : ran) EXPECT_EQ(count, 1);
    }
  }
}

TEST(Threads, RangesCoverWithoutOverlapAndRespectTheGrain) {
  ThreadPool pool(3);
  for (const std::int64_t n : {1, 5, 16, 17, 100, 1000}) {
    for (const std::int64_t grain : {1, 4, 16}) {
      std::vector<std::atomic<int>> seen(n);
      pool.run_ranges(n, grain, [&](std::int64_t begin, std::int64_t end, int) {
        EXPECT_EQ(begin % grain, 0);
        EXPECT_TRUE(end % grain == 0 || end == n);
        for (std::int64_t i = begin; i < end; ++i) ++seen[i];
      });
      for (const auto& count : seen) EXPECT_EQ(count, 1);
    }
  }
}

TEST(Threads, ExceptionsComeBackAndThePoolGoesOn) {
  ThreadPool pool(2);
  EXPECT_THROW(pool.run(100, [](std::int64_t task, int) {
    if (task == 50) fail(ErrorKind::bad_input, "task {}", task);
  }), Error);
  std::atomic<int> ran{0};
  pool.run(10, [&](std::int64_t, int) { ++ran; });
  EXPECT_EQ(ran, 10);
}

TEST(Threads, NestedRunsAreSerialOnTheSameWorker) {
  ThreadPool pool(2);
  std::atomic<int> ran{0};
  pool.run(4, [&](std::int64_t, int outer) {
    pool.run(5, [&](std::int64_t, int inner) {
      EXPECT_EQ(inner, outer);
      ++ran;
    });
  });
  EXPECT_EQ(ran, 20);
}

TEST(Threads, ManyShortRunsFromASleepingPool) {
  ThreadPool pool(4);
  std::atomic<std::int64_t> total{0};
  for (int round = 0; round < 2000; ++round) pool.run(4, [&](std::int64_t task, int) { total += task; });
  EXPECT_EQ(total, 2000 * 6);
}

TEST(Threads, BudgetIsWithinTheHost) {
  const ThreadBudget budget = thread_budget();
  EXPECT_GE(budget.threads, 1);
  EXPECT_FALSE(budget.reason.empty());
  EXPECT_THROW(ThreadPool(0), Error);
}

TEST(File, WritesReadsAndRefuses) {
  const TempFolder folder;
  const auto path = folder.path() / "a.bin";
  {
    OutputFile file(path, false);
    file.append("hello");
    file.write_at(8, std::as_bytes(std::span("world", 5)));
    file.close();
  }
  EXPECT_EQ(read_text_file(path), std::string("hello\0\0\0world", 13));
  const MappedFile mapped(path);
  EXPECT_EQ(mapped.bytes().size(), 13U);
  mapped.forget(mapped.bytes());
  EXPECT_EQ(static_cast<char>(mapped.bytes()[8]), 'w');
  try {
    MappedFile missing(folder.path() / "none");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_input);
    EXPECT_NE(std::string(error.what()).find("none: no such file"), std::string::npos);
  }
  EXPECT_THROW(MappedFile(folder.path()), Error);
  EXPECT_THROW(OutputFile(folder.path() / "no" / "such", false), Error);
}

TEST(File, EmptyFilesMap) {
  const TempFolder folder;
  write_text_file(folder.path() / "empty", "");
  EXPECT_EQ(MappedFile(folder.path() / "empty").bytes().size(), 0U);
}

TEST(File, TextIsReplacedAsAWhole) {
  const TempFolder folder;
  const auto path = folder.path() / "t.json";
  write_text_file(path, "one");
  write_text_file(path, "two\r\n");
  EXPECT_EQ(read_text_file(path), "two\r\n");
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "t.json.partial"));
}

TEST(File, SameFileSeesThroughLinks) {
  const TempFolder folder;
  const auto a = folder.path() / "a", b = folder.path() / "b";
  write_text_file(a, "x");
  write_text_file(b, "x");
  std::filesystem::create_hard_link(a, folder.path() / "hard");
  std::filesystem::create_symlink(a, folder.path() / "soft");
  EXPECT_TRUE(same_file(a, folder.path() / "hard"));
  EXPECT_TRUE(same_file(a, folder.path() / "soft"));
  EXPECT_FALSE(same_file(a, b));
  EXPECT_FALSE(same_file(a, folder.path() / "none"));
}

TEST(File, DiskAndMemoryFiguresAreThere) {
  EXPECT_GT(free_disk_bytes("/tmp/does/not/exist/yet"), 0U);
  EXPECT_GT(peak_resident_bytes(), 0U);
  EXPECT_GE(peak_resident_bytes(), current_resident_bytes());
}

TEST(Errors, KindIsTheExitCode) {
  try {
    fail(ErrorKind::unsupported, "{}: no {}", "file", 3);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 4);
    EXPECT_STREQ(error.what(), "file: no 3");
  }
  EXPECT_THROW(HT_CHECK(1 == 2), CheckFailed);
}

TEST(Progress, InterruptFlagThrows) {
  EXPECT_NO_THROW(throw_if_interrupted());
  interrupt_flag() = true;
  EXPECT_THROW(throw_if_interrupted(), Error);
  interrupt_flag() = false;
}

}  // namespace
}  // namespace halftone
