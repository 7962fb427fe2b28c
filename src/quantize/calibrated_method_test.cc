#include "quantize/calibrated_method.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/random.h"
#include "quantize/observers.h"

namespace halftone {
namespace {

using ::testing::HasSubstr;

// Inputs with a few strong directions, as hidden states have them, and an original version that differs by noise.
struct Example {
  std::int64_t rows, cols, count;
  std::vector<float> weights, quantized, original;  // [rows, cols], [count, cols] twice
  ProblemInputs inputs;
};

Example make_example(std::int64_t rows, std::int64_t cols, std::int64_t count, std::uint64_t seed, float drift = 0.0F,
                     double damping = 0.01) {
  Example e{rows, cols, count, {}, {}, {}, {}};
  CounterRng rng(seed);
  const std::int64_t directions = std::max<std::int64_t>(1, cols / 6);
  std::vector<float> mixing(static_cast<std::size_t>(directions * cols));
  for (float& value : mixing) value = rng.next_normal();
  e.weights.resize(static_cast<std::size_t>(rows * cols));
  for (float& value : e.weights) value = rng.next_normal() * 0.05F;
  e.original.resize(static_cast<std::size_t>(count * cols));
  e.quantized.resize(e.original.size());
  std::vector<float> hidden(static_cast<std::size_t>(directions));
  for (std::int64_t t = 0; t < count; ++t) {
    for (float& value : hidden) value = rng.next_normal();
    for (std::int64_t c = 0; c < cols; ++c) {
      float sum = 0.3F * rng.next_normal();
      for (std::int64_t d = 0; d < directions; ++d) {
        sum += hidden[static_cast<std::size_t>(d)] * mixing[static_cast<std::size_t>(d * cols + c)] * 0.3F;
      }
      const auto i = static_cast<std::size_t>(t * cols + c);
      e.original[i] = sum;
      e.quantized[i] = sum * (1.0F - 0.5F * drift) + drift * rng.next_normal();
    }
  }
  ThreadPool pool(2);
  InputStatistics statistics(cols);
  statistics.add(e.quantized, e.original, count, pool);
  e.inputs = ProblemInputs(statistics, damping);
  return e;
}

// Mean square of W z - V x over the rows of the example.
double output_error(const Example& e, const QuantizedTensor& solution) {
  std::vector<float> values(e.weights.size());
  dequantize_rows(solution, 0, e.rows, values);
  double sum = 0;
  for (std::int64_t t = 0; t < e.count; ++t) {
    for (std::int64_t r = 0; r < e.rows; ++r) {
      double difference = 0;
      for (std::int64_t c = 0; c < e.cols; ++c) {
        const auto w = static_cast<std::size_t>(r * e.cols + c), x = static_cast<std::size_t>(t * e.cols + c);
        difference += double{e.weights[w]} * double{e.original[x]} - double{values[w]} * double{e.quantized[x]};
      }
      sum += difference * difference;
    }
  }
  return sum / static_cast<double>(e.count * e.rows);
}

QuantizedTensor solve(const Example& e, const std::string& scheme, const std::vector<std::string>& methods,
                      int threads = 2) {
  ThreadPool pool(threads);
  MatrixProblem problem("m", parse_scheme(scheme), e.weights, e.rows, e.inputs);
  for (const auto& method : make_calibrated_methods(methods)) method->apply(problem, pool);
  QuantizedTensor out = problem.solution();
  EXPECT_TRUE(std::isfinite(problem.loss(pool)));
  return out;
}

TEST(InputStatistics, MomentsAreThoseOfThePlainSums) {
  const Example e = make_example(1, 20, 70, 3, 0.3F);
  ThreadPool one(1), three(3);
  InputStatistics whole(20), parts(20);
  whole.add(e.quantized, e.original, 70, three);
  const auto split = static_cast<std::size_t>(20 * 30);
  parts.add(std::span(e.quantized).first(split), std::span(e.original).first(split), 30, one);
  parts.add(std::span(e.quantized).subspan(split), std::span(e.original).subspan(split), 40, one);
  EXPECT_EQ(parts.rows(), 70);
  for (std::int64_t i = 0; i < 20; ++i) {
    for (std::int64_t j = 0; j < 20; ++j) {
      double moment = 0, cross = 0;
      for (std::int64_t t = 0; t < 70; ++t) {
        const double x = e.quantized[static_cast<std::size_t>(t * 20 + j)];
        moment += double{e.quantized[static_cast<std::size_t>(t * 20 + i)]} * x / 70;
        cross += double{e.original[static_cast<std::size_t>(t * 20 + i)]} * x / 70;
      }
      const auto at = static_cast<std::size_t>(i * 20 + j);
      EXPECT_NEAR(whole.second_moment()[at], moment, 1e-5);
      EXPECT_NEAR(parts.second_moment()[at], moment, 1e-5);
      EXPECT_NEAR(whole.cross_moment()[at], cross, 1e-5);
    }
  }
  std::vector<float> bad(20, 1.0F);
  bad[7] = INFINITY;
  EXPECT_THROW(whole.add(bad, bad, 1, one), Error);
}

TEST(HessianFactor, IsTheCholeskyFormOfTheInverse) {
  const Example e = make_example(1, 24, 200, 5);
  const HessianFactor& f = e.inputs.factor;
  double mean = 0;
  for (std::int64_t i = 0; i < 24; ++i) mean += double{e.inputs.second_moment[static_cast<std::size_t>(i * 25)]} / 24;
  const auto u = [&](std::int64_t i, std::int64_t j) { return double{f.upper[static_cast<std::size_t>(i * 24 + j)]}; };
  for (std::int64_t i = 1; i < 24; ++i) {
    const auto activity = [&](std::int64_t at) {
      return e.inputs.second_moment[static_cast<std::size_t>(f.order[static_cast<std::size_t>(at)] * 25)];
    };
    EXPECT_GE(activity(i - 1), activity(i));
    for (std::int64_t j = 0; j < i; ++j) EXPECT_EQ(u(i, j), 0.0);
  }
  // (U^T U) (H + damping) = 1
  for (std::int64_t i = 0; i < 24; ++i) {
    for (std::int64_t j = 0; j < 24; ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k < 24; ++k) {
        double inverse = 0;
        for (std::int64_t l = 0; l < 24; ++l) inverse += u(l, i) * u(l, k);
        const auto h =
            static_cast<std::size_t>(f.order[static_cast<std::size_t>(k)] * 24 + f.order[static_cast<std::size_t>(j)]);
        sum += inverse * (double{e.inputs.second_moment[h]} + (k == j ? f.damping * mean : 0.0));
      }
      EXPECT_NEAR(sum, i == j ? 1.0 : 0.0, 1e-3);
    }
  }
}

TEST(HessianFactor, RaisesTheDampingUntilItWorksAndSaysSo) {
  // Fewer rows than channels, and two channels that never move.
  Example e = make_example(1, 16, 4, 9);
  for (std::int64_t t = 0; t < 4; ++t) {
    e.original[static_cast<std::size_t>(t * 16 + 3)] = e.original[static_cast<std::size_t>(t * 16 + 8)] = 0;
  }
  ThreadPool pool(1);
  InputStatistics statistics(16);
  statistics.add(e.original, e.original, 4, pool);
  const HessianFactor f = factor_hessian(statistics.second_moment(), 16, 0.0, true);
  EXPECT_EQ(f.dead, 2);
  EXPECT_GT(f.tries, 1);
  EXPECT_GT(f.damping, 0.0);
  for (const float value : f.upper) EXPECT_TRUE(std::isfinite(value));
  const HessianFactor nothing = factor_hessian(std::vector<float>(9, 0.0F), 3, 0.01, true);
  EXPECT_EQ(nothing.dead, 3);
}

TEST(CalibratedMethods, EachBeatsTheOneBeforeOnEveryKindOfScheme) {
  const Example e = make_example(40, 96, 600, 11);
  for (const char* scheme : {"int4:g32:asym", "int4:g32", "int3:g32", "int2:g16:asym", "int5:channel", "int8:channel",
                             "fp8_e4m3:channel", "fp8_e4m3:32x32", "fp8_e5m2:tensor", "fp4_e2m1:g16:fp16", "nf4:g32",
                             "nvfp4", "mxfp4", "mxint8", "e2m3:g32", "e3m2:channel"}) {
    ThreadPool pool(2);
    MatrixProblem problem("m", parse_scheme(scheme), e.weights, e.rows, e.inputs);
    const double plain = problem.weighted_error(pool);
    make_weighted_rounding()->apply(problem, pool);
    EXPECT_LE(problem.weighted_error(pool), plain * (1 + 1e-6)) << scheme;
    const double rtn = output_error(e, solve(e, scheme, {"rtn"}));
    const double gptq = output_error(e, solve(e, scheme, {"gptq"}));
    const double descent = output_error(e, solve(e, scheme, {"gptq", "quantease"}));
    const double alone = output_error(e, solve(e, scheme, {"rtn", "quantease"}));
    EXPECT_LT(gptq, 0.8 * rtn) << scheme;
    EXPECT_LE(descent, gptq * 1.0001) << scheme;
    EXPECT_LT(alone, 0.8 * rtn) << scheme;
  }
}

TEST(CalibratedMethods, GptaqMakesUpForWhatTheInputsHaveLost) {
  const Example e = make_example(40, 96, 800, 12, 0.25F);
  for (const char* scheme : {"int4:g32:asym", "int8:channel", "fp8_e4m3:channel"}) {
    const double without = output_error(e, solve(e, scheme, {"gptq"}));
    const double with = output_error(e, solve(e, scheme, {"gptaq", "gptq"}));
    EXPECT_LT(with, 0.8 * without) << scheme;
  }
  // Where nothing is lost, nothing moves.
  const Example same = make_example(24, 48, 300, 13);
  const double without = output_error(same, solve(same, "int4:g16", {"gptq"}));
  EXPECT_NEAR(output_error(same, solve(same, "int4:g16", {"gptaq", "gptq"})), without, 0.02 * without);
}

TEST(CalibratedMethods, TheResultIsTheSameForAnyNumberOfThreads) {
  const Example e = make_example(33, 64, 300, 14, 0.1F);
  for (const char* scheme : {"int4:g32:asym", "nvfp4", "fp8_e4m3:32x32"}) {
    const QuantizedTensor a = solve(e, scheme, {"gptaq", "gptq", "quantease"}, 1);
    const QuantizedTensor b = solve(e, scheme, {"gptaq", "gptq", "quantease"}, 3);
    EXPECT_TRUE(std::equal(a.codes.begin(), a.codes.end(), b.codes.begin(), b.codes.end())) << scheme;
    EXPECT_EQ(a.scales, b.scales) << scheme;
    EXPECT_EQ(a.zeros, b.zeros) << scheme;
  }
}

TEST(CalibratedMethods, ChannelsThatNeverMovedAreRoundedToNearest) {
  Example e = make_example(8, 32, 200, 15);
  for (std::int64_t t = 0; t < e.count; ++t) e.original[static_cast<std::size_t>(t * 32 + 5)] = 0;
  for (std::size_t r = 0; r < 8; ++r) e.weights[r * 32 + 5] *= 0.3F;  // well within the range, which may be clipped
  ThreadPool pool(1);
  InputStatistics statistics(32);
  statistics.add(e.original, e.original, e.count, pool);
  e.inputs = ProblemInputs(statistics, 0.01);
  for (const auto& methods : {std::vector<std::string>{"gptq"}, {"gptaq", "gptq", "quantease"}}) {
    const QuantizedTensor solution = solve(e, "int8:channel:fp32", methods);
    std::vector<float> values(e.weights.size());
    dequantize_rows(solution, 0, 8, values);
    for (std::size_t r = 0; r < 8; ++r)
      EXPECT_NEAR(values[r * 32 + 5], e.weights[r * 32 + 5], 0.51F * solution.scales[r]);
  }
}

TEST(CalibratedMethods, ZeroMatricesStayZeroAndScalesAreSound) {
  Example e = make_example(6, 32, 100, 16);
  std::fill(e.weights.begin(), e.weights.begin() + 64, 0.0F);
  for (const char* scheme : {"int4:g16:asym", "nvfp4", "mxfp4", "int8:channel"}) {
    const QuantizedTensor solution = solve(e, scheme, {"gptq", "quantease"});
    std::vector<float> values(e.weights.size());
    dequantize_rows(solution, 0, 6, values);
    for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(values[i], 0.0F) << scheme;
    for (const float scale : solution.scales) EXPECT_TRUE(std::isfinite(scale) && scale > 0) << scheme;
  }
}

TEST(CalibratedMethods, NamesAndTheirOrderAreChecked) {
  const auto refusal = [](const std::vector<std::string>& names) -> std::string {
    try {
      make_calibrated_methods(names);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal({"gptaq", "gptq", "quantease"}), "");
  EXPECT_THAT(refusal({"gptqq"}), HasSubstr("gptaq"));
  EXPECT_THAT(refusal({"gptq", "gptq"}), HasSubstr("twice"));
  EXPECT_THAT(refusal({"gptq", "gptaq"}), HasSubstr("cannot come after"));
  EXPECT_THAT(refusal({"gptaq"}), HasSubstr("that rounds"));
  EXPECT_THAT(refusal({"rtn", "gptq"}), HasSubstr("that rounds"));
  EXPECT_THAT(refusal({}), HasSubstr("that rounds"));
  EXPECT_FALSE(needs_calibration({"rtn"}));
  EXPECT_TRUE(needs_calibration({"gptq"}));
  EXPECT_FALSE(MatrixProblem::can_solve(parse_scheme("bf16")));
  EXPECT_FALSE(MatrixProblem::can_solve(parse_scheme("q4_k")));
}

}  // namespace
}  // namespace halftone
