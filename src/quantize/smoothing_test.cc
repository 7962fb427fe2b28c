#include "quantize/smoothing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/testing.h"
#include "tensor/quantized.h"

namespace halftone {
namespace {

struct PlantedOutlier {
  std::int64_t channel;
  float factor;
};

// A problem with its own memory.
struct SmoothingCase {
  std::vector<float> samples;
  std::vector<std::vector<float>> weights;
  SmoothingProblem problem;

  SmoothingCase(std::int64_t count, std::int64_t cols, std::uint64_t seed,
                std::initializer_list<PlantedOutlier> planted = {}) {
    samples = normal_values(count * cols, seed);
    problem.count = count;
    problem.cols = cols;
    for (const PlantedOutlier& outlier : planted) {
      for (std::int64_t r = 0; r < count; ++r) samples[at(r, outlier.channel)] *= outlier.factor;
    }
    measure();
  }
  SmoothingCase(const SmoothingCase&) = delete;
  SmoothingCase& operator=(const SmoothingCase&) = delete;

  std::size_t at(std::int64_t row, std::int64_t col) const {
    return static_cast<std::size_t>(row * problem.cols + col);
  }

  void measure() {
    problem.samples = samples;
    problem.amax.assign(static_cast<std::size_t>(problem.cols), 0.0F);
    problem.mean_abs = problem.amax;
    for (std::int64_t r = 0; r < problem.count; ++r) {
      for (std::int64_t c = 0; c < problem.cols; ++c) {
        const float magnitude = std::fabs(samples[at(r, c)]);
        float& amax = problem.amax[static_cast<std::size_t>(c)];
        amax = std::max(amax, magnitude);
        problem.mean_abs[static_cast<std::size_t>(c)] += magnitude / static_cast<float>(problem.count);
      }
    }
  }

  SmoothingCase& add(std::int64_t rows, std::uint64_t seed, const char* weights_scheme, const char* activations,
                     float size = 0.05F) {
    weights.push_back(normal_values(rows * problem.cols, seed, size));
    SmoothingConsumer consumer;
    consumer.rows = rows;
    consumer.weight_scheme = parse_scheme(weights_scheme);
    if (activations != nullptr) consumer.activations = parse_scheme(activations);
    problem.consumers.push_back(consumer);
    connect();
    return *this;
  }

  void connect() {
    for (std::size_t i = 0; i < weights.size(); ++i) problem.consumers[i].weights = weights[i];
  }

  std::vector<float> ones() const { return std::vector<float>(static_cast<std::size_t>(problem.cols), 1.0F); }
};

// The definition, one value after another.
double plain_loss(const SmoothingProblem& p, const std::vector<float>& scales) {
  double sum = 0;
  const auto cols = static_cast<std::size_t>(p.cols);
  for (const SmoothingConsumer& consumer : p.consumers) {
    std::vector<float> x(p.samples.begin(), p.samples.end()), w(consumer.weights.begin(), consumer.weights.end());
    for (std::size_t i = 0; i < x.size(); ++i) x[i] /= scales[i % cols];
    for (std::size_t i = 0; i < w.size(); ++i) w[i] *= scales[i % cols];
    if (consumer.activations && consumer.activations->two_level) {  // the second level is a token's own
      for (std::size_t r = 0; r < x.size(); r += cols) {
        fake_quantize_rows(*consumer.activations, std::span(x).subspan(r, cols), 1, p.cols);
      }
    } else if (consumer.activations) {
      fake_quantize_rows(*consumer.activations, x, p.count, p.cols);
    }
    TensorStats stats;
    accumulate_stats(stats, w, 0);
    const QuantizedTensor coded = quantize_rows(consumer.weight_scheme, w, consumer.rows, p.cols, stats);
    dequantize_rows(coded, 0, consumer.rows, w);
    for (std::size_t r = 0; r < x.size(); r += cols) {
      for (std::size_t o = 0; o < w.size(); o += cols) {
        double wanted = 0, got = 0;
        for (std::size_t c = 0; c < cols; ++c) {
          wanted += static_cast<double>(p.samples[r + c]) * static_cast<double>(consumer.weights[o + c]);
          got += static_cast<double>(x[r + c]) * static_cast<double>(w[o + c]);
        }
        sum += (wanted - got) * (wanted - got);
      }
    }
  }
  return sum;
}

void expect_sound_scales(const SmoothingResult& result, const SmoothingProblem& problem) {
  ASSERT_EQ(result.scales.size(), static_cast<std::size_t>(problem.cols));
  for (const float scale : result.scales) {
    ASSERT_GE(scale, 1e-5F);
    ASSERT_LE(scale, 1e5F);  // false for NaN
  }
}

template <class Call>
void expect_error(ErrorKind kind, const Call& call, const char* part) {
  try {
    call();
    ADD_FAILURE() << "no error that says: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(SmoothingLoss, IsTheErrorOfTheQuantizedProducts) {
  ThreadPool pool(1);
  struct Schemes {
    const char *weights, *activations;
  };
  // 150 rows of x: more than are multiplied at once.
  for (const Schemes& schemes :
       {Schemes{"int8:channel", "int8:token"}, Schemes{"fp8_e4m3:channel", "fp8_e4m3:token"},
        Schemes{"fp8_e4m3:16x32", "fp8_e4m3:g32"}, Schemes{"int4:g32", nullptr}, Schemes{"int8:tensor", "int8:tensor"},
        Schemes{"nvfp4", "nvfp4"}, Schemes{"int4:g32:asym", "int8:token"}, Schemes{"q8_0", nullptr}}) {
    SmoothingCase c(150, 64, 3, {{5, 30.0F}, {40, 60.0F}});
    c.add(24, 4, schemes.weights, schemes.activations).add(40, 5, schemes.weights, schemes.activations, 0.2F);
    c.add(8, 6, "int8:channel", nullptr);
    std::vector<float> scales = normal_values(64, 9);
    for (float& scale : scales) scale = std::exp(scale);
    for (const std::vector<float>& s : {c.ones(), scales}) {
      const double expected = plain_loss(c.problem, s);
      EXPECT_NEAR(smoothing_loss(c.problem, s, pool), expected, 1e-4 * expected) << schemes.weights;
    }
  }
}

TEST(SmoothingLoss, PlainNumbersLoseNothingAndValuesBeyondTheFormatAreInfinitelyBad) {
  ThreadPool pool(1);
  SmoothingCase c(20, 32, 1);
  c.add(8, 2, "fp32", nullptr).add(4, 3, "fp32", nullptr);
  EXPECT_EQ(smoothing_loss(c.problem, c.ones(), pool), 0.0);
  const SmoothingResult result = piecewise_search(c.problem, {}, pool);
  EXPECT_EQ(result.how, "identity");
  EXPECT_EQ(result.scales, c.ones());
  std::vector<float> huge = c.ones();
  huge[3] = 1e38F;
  c.weights[0][3] = 1e10F;
  c.connect();
  EXPECT_TRUE(std::isinf(smoothing_loss(c.problem, huge, pool)));
  SmoothingCase half(20, 32, 1);
  half.add(8, 2, "fp16", nullptr);
  EXPECT_TRUE(std::isinf(smoothing_loss(half.problem, huge, pool)));
}

TEST(Smoothing, SmoothQuantIsTheFormulaOverAllConsumers) {
  ThreadPool pool(1);
  SmoothingCase c(2, 4, 1);
  c.samples = {1, -4, 0.25F, 0, -9, 2, 0.0625F, 0};
  c.measure();
  c.add(1, 1, "int8:channel", "int8:token").add(2, 1, "int8:channel", "int8:token");
  c.weights = {{0.5F, -1, 0, 3}, {0.25F, 0.25F, 0, 1, -4, 0.125F, 0, 2}};
  c.connect();
  // amax 9, 4, 1/4, 0; wmax 4, 1, 0, 3.
  std::vector<float> half = smooth_quant(c.problem, 0.5, pool).scales;
  EXPECT_FLOAT_EQ(half[0], 1.5F);
  EXPECT_FLOAT_EQ(half[1], 2.0F);
  EXPECT_FLOAT_EQ(half[2], 0.5F / std::sqrt(1e-5F));
  EXPECT_EQ(half[3], 1.0F);
  const std::vector<float> all = smooth_quant(c.problem, 1.0, pool).scales;
  EXPECT_EQ(all, (std::vector<float>{9, 4, 0.25F, 1}));
  const SmoothingResult none = smooth_quant(c.problem, 0.0, pool);
  EXPECT_EQ(none.scales, (std::vector<float>{0.25F, 1, 1e5F, 1}));
  EXPECT_EQ(none.how, "smoothquant alpha=0");
  EXPECT_EQ(none.identity_loss, smoothing_loss(c.problem, c.ones(), pool));
  EXPECT_EQ(none.loss, smoothing_loss(c.problem, none.scales, pool));
}

double recovered(const SmoothingResult& result) {
  return 1.0 - result.loss / result.identity_loss;
}

TEST(Smoothing, PiecewiseRecoversWhatOutlierChannelsCost) {
  ThreadPool pool(1);
  for (const std::uint64_t seed : {1, 2}) {
    const std::initializer_list<PlantedOutlier> planted = {{7, 40.0F}, {150, 70.0F}, {301, 100.0F}};
    SmoothingCase c(128, 384, seed, planted);
    c.add(96, seed + 100, "int8:channel", "int8:token").add(64, seed + 200, "int8:channel", "int8:token");
    const SmoothingResult plain = smooth_quant(c.problem, 0.5, pool);
    const SmoothingResult found = piecewise_search(c.problem, {}, pool);
    expect_sound_scales(found, c.problem);
    EXPECT_GE(recovered(found), 0.95) << found.how;
    EXPECT_LT(found.loss, plain.loss) << found.how;
    EXPECT_EQ(found.how.substr(0, 6), "pss k=");
    EXPECT_NEAR(found.loss, plain_loss(c.problem, found.scales), 1e-3 * found.loss);
    for (const PlantedOutlier& outlier : planted) EXPECT_GT(found.scales[static_cast<std::size_t>(outlier.channel)], 5);

    // Other rows of the same kind: what was found is no accident of the samples.
    SmoothingCase fresh(128, 384, seed + 1000, planted);
    fresh.add(96, seed + 100, "int8:channel", "int8:token").add(64, seed + 200, "int8:channel", "int8:token");
    const double before = smoothing_loss(fresh.problem, fresh.ones(), pool);
    EXPECT_LE(smoothing_loss(fresh.problem, found.scales, pool), 0.055 * before);
  }
}

// Besides outliers in every row of x, a channel that is enormous in the first row alone, as that of a first token is in
// trained models. The formula sees only its amax, and all weights pay for one row of x.
TEST(Smoothing, PiecewiseLeavesAloneWhatIsRare) {
  ThreadPool pool(1);
  const std::initializer_list<PlantedOutlier> planted = {{7, 40.0F}, {150, 70.0F}, {301, 100.0F}};
  SmoothingCase c(256, 384, 1, planted), fresh(256, 384, 2, planted);
  for (SmoothingCase* each : {&c, &fresh}) {
    each->samples[33] = 2000.0F;
    each->measure();
    each->add(96, 3, "int8:channel", "int8:token").add(64, 4, "int8:channel", "int8:token");
  }
  const SmoothingResult plain = smooth_quant(c.problem, 0.5, pool);
  const SmoothingResult found = piecewise_search(c.problem, {}, pool);
  EXPECT_GE(recovered(found), 0.9) << found.how;
  EXPECT_LT(found.loss, 0.7 * plain.loss) << found.how;
  EXPECT_LT(found.scales[33], 0.5F * plain.scales[33]);
  EXPECT_LT(smoothing_loss(fresh.problem, found.scales, pool), 0.7 * smoothing_loss(fresh.problem, plain.scales, pool));
}

TEST(Smoothing, PiecewiseFindsAnotherExponentWhereHalfIsFarOff) {
  // Groups of weights shield their neighbours from a grown column, so x can be flattened further.
  ThreadPool pool(1);
  const std::initializer_list<PlantedOutlier> planted = {{7, 40.0F}, {50, 70.0F}, {201, 100.0F}};
  SmoothingCase c(96, 256, 5, planted), fresh(96, 256, 6, planted);
  for (SmoothingCase* each : {&c, &fresh}) each->add(80, 6, "int8:g32", "int8:token");
  const SmoothingResult plain = smooth_quant(c.problem, 0.5, pool);
  const SmoothingResult found = piecewise_search(c.problem, {}, pool);
  EXPECT_LT(found.loss, 0.85 * plain.loss) << found.how;
  EXPECT_LT(smoothing_loss(fresh.problem, found.scales, pool), 0.9 * smoothing_loss(fresh.problem, plain.scales, pool));
}

TEST(Smoothing, PiecewiseWorksThroughFloats) {
  ThreadPool pool(1);
  SmoothingCase c(96, 128, 8, {{7, 40.0F}, {50, 70.0F}, {101, 100.0F}});
  c.add(80, 9, "fp8_e4m3:channel", "fp8_e4m3:token");
  const SmoothingResult found = piecewise_search(c.problem, {}, pool);
  EXPECT_LT(found.loss, 0.95 * found.identity_loss) << found.how;
  EXPECT_NEAR(found.identity_loss, plain_loss(c.problem, c.ones()), 1e-4 * found.identity_loss);
}

TEST(Smoothing, SearchesAreNeverWorseThanWhatTheyStartFrom) {
  ThreadPool pool(1);
  struct Schemes {
    const char *weights, *activations;
  };
  int gained = 0;
  for (const Schemes& schemes :
       {Schemes{"int8:channel", "int8:token"}, Schemes{"fp8_e4m3:channel", "fp8_e4m3:token"},
        Schemes{"int4:g32", nullptr}, Schemes{"nvfp4", "nvfp4"}, Schemes{"fp8_e4m3:16x32", "fp8_e4m3:g32"}}) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      SmoothingCase c(24, 64, seed);
      CounterRng rng(seed, 1);
      for (std::int64_t channel = 0; channel < 64; ++channel) {  // from even to very uneven channels
        const float factor = std::exp(static_cast<float>(seed) * 0.5F * rng.next_normal());
        for (std::int64_t r = 0; r < 24; ++r) c.samples[c.at(r, channel)] *= factor;
      }
      c.measure();
      c.add(24, seed + 10, schemes.weights, schemes.activations);
      c.add(48, seed + 20, schemes.weights, schemes.activations, 0.2F);
      const SmoothingResult plain = smooth_quant(c.problem, 0.5, pool);
      for (const std::int64_t compared_rows : {0, 20}) {  // few rows mislead: the result must still hold on all
        PiecewiseOptions options;
        options.pieces = 2;
        options.compared_rows = compared_rows;
        const SmoothingResult found = piecewise_search(c.problem, options, pool);
        expect_sound_scales(found, c.problem);
        EXPECT_LE(found.loss, plain.loss) << schemes.weights << " " << seed;
        EXPECT_LE(found.loss, found.identity_loss) << schemes.weights << " " << seed;
        EXPECT_EQ(found.loss, smoothing_loss(c.problem, found.scales, pool));
        gained += found.loss < std::min(plain.loss, found.identity_loss) ? 1 : 0;
      }
      const SmoothingResult awq = awq_search(c.problem, 20, pool);
      expect_sound_scales(awq, c.problem);
      EXPECT_LE(awq.loss, awq.identity_loss) << schemes.weights << " " << seed;
      EXPECT_EQ(awq.loss, smoothing_loss(c.problem, awq.scales, pool));
    }
  }
  EXPECT_GE(gained, 20);  // of 30
}

TEST(Smoothing, PiecewiseHoldsWhereSmoothQuantHarms) {
  ThreadPool pool(1);
  // Weights of four bits cannot take over what eight bits of x hold easily.
  SmoothingCase c(64, 64, 2, {{3, 12.0F}, {30, 8.0F}});
  c.add(64, 3, "int4:channel", "int8:token");
  const SmoothingResult plain = smooth_quant(c.problem, 0.5, pool);
  ASSERT_GT(plain.loss, plain.identity_loss);
  EXPECT_LE(piecewise_search(c.problem, {}, pool).loss, plain.identity_loss);
}

TEST(Smoothing, RowsThatMisleadTheSearchDoNotDecide) {
  // The one row that is compared does not read the outliers; for all others they are flattened far too much.
  ThreadPool pool(1);
  SmoothingCase c(64, 128, 11, {{7, 100.0F}, {50, 100.0F}});
  c.add(64, 12, "int8:channel", "int8:token");
  for (const std::int64_t channel : {7, 50}) c.weights[0][c.at(0, channel)] = 0.0F;
  c.connect();
  PiecewiseOptions options;
  options.alpha_min = options.alpha_max = 0.95;
  options.scale_max = options.scale_min;
  options.compared_rows = 1;
  const SmoothingResult found = piecewise_search(c.problem, options, pool);
  const SmoothingResult plain = smooth_quant(c.problem, 0.5, pool);
  EXPECT_EQ(found.how, plain.how);
  EXPECT_EQ(found.scales, plain.scales);
  EXPECT_EQ(found.loss, plain.loss);
}

TEST(Smoothing, EveryNumberOfPiecesStartsAfresh) {
  ThreadPool pool(1);
  SmoothingCase c(64, 96, 21, {{7, 40.0F}, {50, 12.0F}, {90, 100.0F}});
  c.add(40, 22, "int8:channel", "int8:token");
  PiecewiseOptions options;
  options.search_pieces = false;
  double smallest = std::numeric_limits<double>::infinity();
  std::set<double> different;
  for (options.pieces = 1; options.pieces <= 4; ++options.pieces) {
    const double loss = piecewise_search(c.problem, options, pool).loss;
    smallest = std::min(smallest, loss);
    different.insert(loss);
  }
  EXPECT_GE(different.size(), 3U);
  options.pieces = 4;
  options.search_pieces = true;
  EXPECT_EQ(piecewise_search(c.problem, options, pool).loss, smallest);
  PiecewiseOptions once = options;
  once.search_pieces = options.search_pieces = false;
  once.sweeps = 1;
  EXPECT_LT(piecewise_search(c.problem, options, pool).loss, piecewise_search(c.problem, once, pool).loss);
}

TEST(Smoothing, NothingBeyondTheRangesIsTried) {
  ThreadPool pool(1);
  // Alpha is so low that constants are wanted, the larger the better.
  SmoothingCase c(64, 96, 31, {{7, 40.0F}, {50, 60.0F}});
  c.add(40, 32, "int8:g32", "int8:token");
  PiecewiseOptions options;
  options.alpha_min = options.alpha_max = 0.0;
  options.scale_max = 20.25;
  options.scale_step = 2.0;
  options.pieces = 2;
  options.search_pieces = false;
  const SmoothingResult found = piecewise_search(c.problem, options, pool);
  const SmoothingResult plain = smooth_quant(c.problem, 0.5, pool), low = smooth_quant(c.problem, 0.0, pool);
  ASSERT_EQ(found.how.substr(0, 6), "pss k=") << found.how;
  int constants = 0;
  for (std::size_t channel = 0; channel < 96; ++channel) {
    const float scale = found.scales[channel];
    if (scale == plain.scales[channel] || scale == low.scales[channel]) continue;
    ++constants;
    EXPECT_TRUE(scale == 20.25F || (scale <= 19.0F && std::fmod(scale, 2.0F) == 1.0F)) << scale;
  }
  EXPECT_GT(constants, 0);
}

TEST(Smoothing, AllConsumersAreJudgedTogether) {
  // What is best for one is bad for the other: their weights are large in different outlier channels.
  ThreadPool pool(1);
  SmoothingCase c(96, 128, 41, {{7, 60.0F}, {90, 60.0F}});
  c.add(48, 42, "int8:channel", "int8:token").add(80, 43, "int8:channel", "int8:token");
  for (std::int64_t r = 0; r < 48; ++r) c.weights[0][c.at(r, 7)] *= 10.0F;
  for (std::int64_t r = 0; r < 80; ++r) c.weights[1][c.at(r, 90)] *= 10.0F;
  c.connect();
  const SmoothingResult joint = piecewise_search(c.problem, {}, pool);
  SmoothingProblem one = c.problem, other = c.problem, swapped = c.problem;
  one.consumers.pop_back();
  other.consumers.erase(other.consumers.begin());
  std::swap(swapped.consumers[0], swapped.consumers[1]);
  for (const SmoothingProblem& alone : {one, other}) {
    const SmoothingResult own = piecewise_search(alone, {}, pool);
    EXPECT_NE(own.scales, joint.scales);
    EXPECT_LT(joint.loss, 0.99 * smoothing_loss(c.problem, own.scales, pool));
  }
  EXPECT_EQ(piecewise_search(swapped, {}, pool).scales, joint.scales);  // and the last one does not win
  EXPECT_NEAR(joint.loss, smoothing_loss(one, joint.scales, pool) + smoothing_loss(other, joint.scales, pool),
              1e-9 * joint.loss);
}

TEST(Smoothing, ResultsDoNotDependOnThreads) {
  ThreadPool serial(1), three(3);
  SmoothingCase c(150, 96, 51, {{7, 40.0F}, {50, 9.0F}});
  c.add(37, 52, "int8:channel", "int8:token")
      .add(16, 53, "int8:channel", "int8:token")
      .add(20, 54, "int4:g32", nullptr);
  const auto expect_same = [](const SmoothingResult& a, const SmoothingResult& b) {
    EXPECT_EQ(a.scales, b.scales);
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_EQ(a.identity_loss, b.identity_loss);
    EXPECT_EQ(a.how, b.how);
  };
  PiecewiseOptions options;
  options.compared_rows = 40;
  expect_same(piecewise_search(c.problem, options, serial), piecewise_search(c.problem, options, three));
  expect_same(smooth_quant(c.problem, 0.7, serial), smooth_quant(c.problem, 0.7, three));
  expect_same(awq_search(c.problem, 20, serial), awq_search(c.problem, 20, three));
}

TEST(Smoothing, DeadChannelsAndDeadColumnsAreHarmless) {
  ThreadPool pool(1);
  SmoothingCase c(40, 64, 61, {{2, 50.0F}, {5, 0.0F}, {9, 0.0F}});
  c.add(24, 62, "int8:channel", "int8:token");
  for (std::int64_t r = 0; r < 24; ++r) c.weights[0][c.at(r, 9)] = c.weights[0][c.at(r, 20)] = 0.0F;
  c.connect();
  for (const SmoothingResult& result :
       {piecewise_search(c.problem, {}, pool), smooth_quant(c.problem, 0.5, pool), awq_search(c.problem, 20, pool)}) {
    expect_sound_scales(result, c.problem);
    EXPECT_EQ(result.scales[5], 1.0F);
    EXPECT_EQ(result.scales[9], 1.0F);
    EXPECT_TRUE(std::isfinite(result.loss));
    EXPECT_LT(result.loss, result.identity_loss);
  }
  SmoothingCase silent(4, 32, 1);
  std::fill(silent.samples.begin(), silent.samples.end(), 0.0F);
  silent.measure();
  silent.add(8, 2, "int8:channel", "int8:token");
  for (const SmoothingResult& result :
       {piecewise_search(silent.problem, {}, pool), smooth_quant(silent.problem, 0.5, pool),
        awq_search(silent.problem, 20, pool)}) {
    EXPECT_EQ(result.scales, silent.ones());
    EXPECT_EQ(result.loss, 0.0);
  }
}

TEST(Smoothing, AwqProtectsSalientChannels) {
  ThreadPool pool(1);
  const std::initializer_list<PlantedOutlier> planted = {{3, 20.0F}, {70, 30.0F}, {130, 15.0F}, {200, 40.0F}};
  SmoothingCase c(96, 256, 71, planted), fresh(96, 256, 72, planted);
  for (SmoothingCase* each : {&c, &fresh}) each->add(64, 73, "int4:g32", nullptr).add(32, 74, "int4:g32", nullptr);
  const SmoothingResult found = awq_search(c.problem, 20, pool);
  EXPECT_EQ(found.how.substr(0, 10), "awq ratio=");
  EXPECT_LT(found.loss, 0.7 * found.identity_loss) << found.how;
  EXPECT_LT(smoothing_loss(fresh.problem, found.scales, pool), 0.7 * smoothing_loss(fresh.problem, fresh.ones(), pool));
  const auto [smallest, largest] = std::minmax_element(found.scales.begin(), found.scales.end());
  EXPECT_NEAR(*smallest * *largest, 1.0F, 1e-4F);
  EXPECT_GT(found.scales[200], found.scales[3]);
  EXPECT_GT(found.scales[3], 2.0F * found.scales[4]);
}

TEST(Smoothing, ShiftIsTheMiddle) {
  const float most = std::numeric_limits<float>::max();
  const std::vector<float> low = {-1, 2, 0, most, -3}, high = {3, 5, 0, most, -1};
  EXPECT_EQ(shift_of(low, high), (std::vector<float>{1, 3.5F, 0, most, -2}));
  expect_error(
      ErrorKind::usage, [&] { shift_of(high, low); }, "channel 0 has no range");
  expect_error(
      ErrorKind::usage, [&] { shift_of(low, std::span(high).first(2)); }, "5 smallest values and 2");
}

TEST(Smoothing, SearchGridsEndAtTheirEnds) {
  using smoothing_detail::search_grid;
  EXPECT_EQ(search_grid(1.0, 5.0, 0.5), (std::vector<double>{1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5}));
  EXPECT_EQ(search_grid(1.0, 5.0, 3.0), (std::vector<double>{1, 4, 5}));
  EXPECT_EQ(search_grid(2.0, 2.0, 0.5), (std::vector<double>{2}));
  for (const double step : {0.01, 0.03, 0.05, 0.1, 0.2}) {
    const std::vector<double> grid = search_grid(0.2, 0.8, step);
    EXPECT_EQ(grid.size(), static_cast<std::size_t>(std::lround(0.6 / step)) + 1);
    EXPECT_EQ(grid.front(), 0.2);
    EXPECT_EQ(grid.back(), 0.8);
    EXPECT_TRUE(std::is_sorted(grid.begin(), grid.end()));
  }
}

TEST(Smoothing, PiecesAreRangesOfValuesTheLargestFirst) {
  using smoothing_detail::cut_into_pieces;
  const std::vector<double> values = {0.1, 5.0, 0.2, 9.1, 5.2, 0.0, 9.0, 0.15};
  EXPECT_EQ(cut_into_pieces(values, 3, 0), (std::vector<int>{2, 1, 2, 0, 1, 2, 0, 2}));
  EXPECT_EQ(cut_into_pieces(values, 1, 0), std::vector<int>(8, 0));
  EXPECT_EQ(cut_into_pieces(std::vector<double>{2, 3, 2, 3}, 5, 0), (std::vector<int>{1, 0, 1, 0}));
  const std::vector<float> random = normal_values(200, 81);
  const std::vector<double> many(random.begin(), random.end());
  for (const int k : {2, 3, 6, 12}) {
    const std::vector<int> pieces = cut_into_pieces(many, k, 7);
    EXPECT_EQ(pieces, cut_into_pieces(many, k, 7));
    EXPECT_EQ(std::set<int>(pieces.begin(), pieces.end()).size(), static_cast<std::size_t>(k));
    EXPECT_EQ(*std::max_element(pieces.begin(), pieces.end()), k - 1);
    for (std::size_t i = 0; i < many.size(); ++i) {
      for (std::size_t j = 0; j < many.size(); ++j) {
        if (many[i] > many[j]) {
          ASSERT_LE(pieces[i], pieces[j]);
        }
      }
    }
  }
}

TEST(Smoothing, MistakesAreNamed) {
  ThreadPool pool(1);
  SmoothingCase c(4, 32, 1);
  c.add(8, 2, "int8:channel", "int8:token");
  const auto with = [&](const auto& change) {
    SmoothingProblem p = c.problem;
    change(p);
    return [p, &pool] { piecewise_search(p, {}, pool); };
  };
  const ErrorKind usage = ErrorKind::usage;
  expect_error(usage, with([](SmoothingProblem& p) { p.count = 5; }), "128 sample values are not 5 rows of 32");
  expect_error(usage, with([](SmoothingProblem& p) { p.amax.pop_back(); }), "amax has 31 values");
  expect_error(usage, with([](SmoothingProblem& p) { p.amax[3] = -1.0F; }), "amax has a negative value");
  expect_error(usage, with([](SmoothingProblem& p) { p.consumers.clear(); }), "no linear");
  expect_error(usage, with([](SmoothingProblem& p) { p.consumers[0].rows = 9; }), "linear 0 has 256 weights");
  expect_error(usage, with([](SmoothingProblem& p) { p.consumers[0].weight_scheme = parse_scheme("int8:token"); }),
               "no scheme for weights");
  expect_error(usage, with([](SmoothingProblem& p) { p.consumers[0].activations = parse_scheme("int8:8x8"); }),
               "no scheme for activations");
  expect_error(ErrorKind::unsupported,
               with([](SmoothingProblem& p) { p.consumers[0].weight_scheme = parse_scheme("q4_k"); }), "q4_k");
  std::vector<float> broken = c.samples;
  broken[40] = std::numeric_limits<float>::quiet_NaN();
  expect_error(usage, with([&](SmoothingProblem& p) { p.samples = broken; }), "samples: value 40 is not finite");
  expect_error(
      usage, [&] { smoothing_loss(c.problem, std::vector<float>(31, 1.0F), pool); }, "scales has 31 values");
  expect_error(
      usage, [&] { smoothing_loss(c.problem, std::vector<float>(32, 0.0F), pool); }, "a scale is zero");
  expect_error(
      usage, [&] { smooth_quant(c.problem, 1.5, pool); }, "alpha must be from 0 to 1");
  expect_error(
      usage, [&] { awq_search(c.problem, 0, pool); }, "not 0");
  SmoothingProblem without = c.problem;
  without.mean_abs.clear();
  expect_error(
      usage, [&] { awq_search(without, 20, pool); }, "mean_abs has 0 values");
  const auto options = [&](const auto& change) {
    return [&c, &pool, change] {
      PiecewiseOptions o;
      change(o);
      piecewise_search(c.problem, o, pool);
    };
  };
  expect_error(usage, options([](PiecewiseOptions& o) { o.pieces = 0; }), "not 0");
  expect_error(usage, options([](PiecewiseOptions& o) { o.alpha_min = 0.9; }), "alpha_min 0.9 is above");
  expect_error(usage, options([](PiecewiseOptions& o) { o.scale_min = 0.0; }), "scale_min 0");
  expect_error(usage, options([](PiecewiseOptions& o) { o.alpha_step = 0.0; }), "alpha_step 0");
  expect_error(usage, options([](PiecewiseOptions& o) { o.scale_step = -1.0; }), "scale_step -1");
  expect_error(usage, options([](PiecewiseOptions& o) { o.sweeps = 0; }), "sweep");
}

}  // namespace
}  // namespace halftone
