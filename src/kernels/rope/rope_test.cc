#include "kernels/rope/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "base/testing.h"

namespace halftone {
namespace {

void expect_golden(const RopeSpec& spec, const nlohmann::json& want) {
  const RopeFrequencies got = rope_frequencies(spec);
  ASSERT_EQ(got.inverse.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double v = want[i].get<double>();  // nine digits
    EXPECT_NEAR(static_cast<double>(got.inverse[i]), v, 7e-8 * v) << i;
  }
}

TEST(Rope, GoldenFrequencies) {
  if (!have_shared()) GTEST_SKIP() << "SKIPPED: no shared folder";
  std::ifstream file(shared_folder() / "golden" / "rope.json");
  const auto golden = nlohmann::json::parse(file);
  RopeSpec spec;
  spec.dim = 64;
  expect_golden(spec, golden["default dim=64 theta=10000"]);

  spec.type = RopeSpec::Type::linear;
  spec.theta = 1e6;
  spec.factor = 8;
  expect_golden(spec, golden["linear dim=64 theta=1e6 factor=8"]);

  spec = {.type = RopeSpec::Type::llama3,
          .theta = 500000,
          .dim = 128,
          .factor = 8,
          .low_freq_factor = 1,
          .high_freq_factor = 4,
          .original_context = 8192};
  expect_golden(spec, golden["llama3 dim=128 theta=500000 factor=8 low=1 high=4 orig=8192"]);

  spec = {.type = RopeSpec::Type::yarn, .theta = 10000, .dim = 64, .factor = 40, .original_context = 4096};
  expect_golden(spec, golden["yarn dim=64 theta=10000 factor=40 orig=4096 fast=32 slow=1 truncate"]);
  EXPECT_FLOAT_EQ(rope_frequencies(spec).attention_factor, golden["yarn attention factor, factor=40"].get<float>());

  spec.theta = 150000;
  spec.factor = 32;
  spec.truncate = false;
  expect_golden(spec, golden["yarn dim=64 theta=150000 factor=32 orig=4096 fast=32 slow=1 no truncate"]);
}

TEST(Rope, YarnAttentionFactor) {
  RopeSpec spec{.type = RopeSpec::Type::yarn, .dim = 64, .factor = 40, .original_context = 4096};
  spec.mscale = 1.0;
  spec.mscale_all_dim = 1.0;
  EXPECT_EQ(rope_frequencies(spec).attention_factor, 1.0F);
  spec.mscale_all_dim = 0.5;
  EXPECT_FLOAT_EQ(rope_frequencies(spec).attention_factor,
                  static_cast<float>((0.1 * std::log(40.0) + 1) / (0.05 * std::log(40.0) + 1)));
  spec.attention_factor = 1.25;
  EXPECT_EQ(rope_frequencies(spec).attention_factor, 1.25F);
}

TEST(Rope, DivisorsAndBadSpecs) {
  RopeSpec spec;
  spec.dim = 4;
  spec.divisors = {2.0F, 4.0F};
  EXPECT_FLOAT_EQ(rope_frequencies(spec).inverse[0], 0.5F);
  EXPECT_FLOAT_EQ(rope_frequencies(spec).inverse[1], 0.0025F);
  spec.divisors = {2.0F};
  EXPECT_THROW(rope_frequencies(spec), Error);
  EXPECT_THROW(rope_frequencies({.type = RopeSpec::Type::linear, .dim = 4, .factor = 0}), Error);
  EXPECT_THROW(rope_frequencies({.theta = -1, .dim = 4}), Error);
  EXPECT_THROW(
      rope_frequencies({.type = RopeSpec::Type::llama3, .dim = 4, .low_freq_factor = 4, .high_freq_factor = 4}), Error);
  EXPECT_THROW(rope_frequencies({.type = RopeSpec::Type::yarn, .dim = 4, .original_context = 0}), Error);
}

TEST(Rope, RotatesPairs) {
  ThreadPool pool(2);
  RopeSpec spec;
  spec.dim = 6;
  const RopeFrequencies f = rope_frequencies(spec);
  const std::int64_t rows = 11, heads = 3, head_dim = 8, first = 100;
  CounterRng rng(1);
  std::vector<float> x(static_cast<std::size_t>(rows * heads * head_dim));
  for (float& v : x) v = rng.next_normal();
  for (const bool interleaved : {false, true}) {
    std::vector<float> y = x;
    rope(y.data(), rows, heads, head_dim, first, f, interleaved, pool);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t h = 0; h < heads; ++h) {
        const auto base = static_cast<std::size_t>((r * heads + h) * head_dim);
        for (std::size_t i = 0; i < 3; ++i) {
          const std::size_t a = base + (interleaved ? 2 * i : i), b = base + (interleaved ? 2 * i + 1 : i + 3);
          const double angle = static_cast<double>(first + r) * std::pow(10000.0, -2.0 * static_cast<double>(i) / 6.0);
          const double xa = static_cast<double>(x[a]), xb = static_cast<double>(x[b]);
          EXPECT_NEAR(static_cast<double>(y[a]), xa * std::cos(angle) - xb * std::sin(angle), 2e-5);
          EXPECT_NEAR(static_cast<double>(y[b]), xb * std::cos(angle) + xa * std::sin(angle), 2e-5);
        }
        EXPECT_EQ(y[base + 6], x[base + 6]);  // beyond the rotated part
        EXPECT_EQ(y[base + 7], x[base + 7]);
      }
    }
    // One row at a time gives the same bytes.
    std::vector<float> z = x;
    for (std::int64_t r = 0; r < rows; ++r) {
      rope(z.data() + r * heads * head_dim, 1, heads, head_dim, first + r, f, interleaved, pool);
    }
    EXPECT_EQ(0, std::memcmp(y.data(), z.data(), y.size() * sizeof(float)));
  }
}

TEST(Rope, AttentionFactorScalesTheRotatedPart) {
  ThreadPool pool(1);
  RopeFrequencies f{{1.0F, 0.5F}, 2.0F};
  std::vector<float> x = {1, 2, 3, 4, 5};
  rope(x.data(), 1, 1, 5, 0, f, false, pool);
  EXPECT_EQ(x, (std::vector<float>{2, 4, 6, 8, 5}));
}

}  // namespace
}  // namespace halftone
