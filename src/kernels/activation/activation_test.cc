#include "kernels/activation/activation.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"
#include "base/testing.h"
#include "kernels/activation/elementary.h"
#include "kernels/activation/kernels.h"

namespace halftone {
namespace {

// Distance in units of the last place of `want`'s rounding to FP32.
double ulps(float got, double want) {
  const float nearest = std::fabs(static_cast<float>(want));
  const double unit = static_cast<double>(std::nextafter(nearest, std::numeric_limits<float>::infinity())) -
                      static_cast<double>(nearest);
  return std::fabs(static_cast<double>(got) - want) / unit;
}

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(a[i]), std::bit_cast<std::uint32_t>(b[i]))
        << i << ": " << a[i] << ' ' << b[i];
  }
}

// Every sign and exponent, mantissas at random and at the ends; no NaN.
std::vector<float> all_exponents() {
  std::vector<float> v;
  CounterRng rng(5);
  for (std::uint32_t top = 0; top < 512; ++top) {
    for (const std::uint32_t mantissa : {0U, 1U, 0x7FFFFFU, rng.next_bits() >> 9, rng.next_bits() >> 9}) {
      const float x = std::bit_cast<float>(top << 23 | mantissa);
      if (!std::isnan(x)) v.push_back(x);
    }
  }
  return v;
}

TEST(Elementary, ExpIsWithinTwoUlp) {
  double worst = 0;
  for (float x = -87.0F; x < 88.7F; x += 0.00137F)
    worst = std::max(worst, ulps(scalar::exp_f32(x), std::exp(double{x})));
  for (float x = -1.0F; x < 1.0F; x += 0.0000731F)
    worst = std::max(worst, ulps(scalar::exp_f32(x), std::exp(double{x})));
  EXPECT_LT(worst, 2.0);
  EXPECT_EQ(scalar::exp_f32(0.0F), 1.0F);
  EXPECT_EQ(scalar::exp_f32(-0.0F), 1.0F);
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(scalar::exp_f32(inf), inf);
  EXPECT_EQ(scalar::exp_f32(-inf), 0.0F);
  EXPECT_EQ(scalar::exp_f32(-1000.0F), 0.0F);
  EXPECT_EQ(scalar::exp_f32(1000.0F), inf);
  EXPECT_TRUE(std::isnan(scalar::exp_f32(std::numeric_limits<float>::quiet_NaN())));
  // Subnormal results: within one unit of the smallest number.
  for (float x = -103.9F; x < -87.0F; x += 0.01F) {
    EXPECT_NEAR(static_cast<double>(scalar::exp_f32(x)), std::exp(double{x}), 1.5 * 0x1p-149) << x;
  }
}

TEST(Elementary, TanhIsWithinFourUlp) {
  double worst = 0;
  for (float x = -10.0F; x < 10.0F; x += 0.000173F)
    worst = std::max(worst, ulps(scalar::tanh_f32(x), std::tanh(double{x})));
  EXPECT_LT(worst, 4.0);
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(scalar::tanh_f32(inf), 1.0F);
  EXPECT_EQ(scalar::tanh_f32(-inf), -1.0F);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(scalar::tanh_f32(-0.0F)), 0x80000000U);
  EXPECT_EQ(scalar::tanh_f32(1e-30F), 1e-30F);
}

TEST(Elementary, InstructionSetsAgreeBitForBit) {
  std::vector<float> x = all_exponents();
  for (float v = -110.0F; v < 95.0F; v += 0.0371F) x.push_back(v);
  for (const Isa isa : runnable_isas(Isa::avx2)) {
    std::vector<float> e(x.size()), t(x.size()), want_e, want_t;
    for (const float v : x) {
      want_e.push_back(scalar::exp_f32(v));
      want_t.push_back(scalar::tanh_f32(v));
    }
    activation_kernels(isa).exp(x.data(), e.data(), static_cast<std::int64_t>(x.size()));
    activation_kernels(isa).tanh(x.data(), t.data(), static_cast<std::int64_t>(x.size()));
    expect_same_bits(e, want_e);
    expect_same_bits(t, want_t);
  }
}

double reference(GateActivation act, double x) {
  switch (act) {
    case GateActivation::silu:
      return x / (1.0 + std::exp(-x));
    case GateActivation::gelu_tanh:
      return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
    case GateActivation::gelu_erf:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case GateActivation::relu:
      return x > 0 ? x : 0;
  }
  return 0;
}

constexpr GateActivation kAll[] = {GateActivation::silu, GateActivation::gelu_tanh, GateActivation::gelu_erf,
                                   GateActivation::relu};

TEST(GatedActivation, MatchesTheFormula) {
  const auto gate = normal_values(10007, 1, 3.0F), up = normal_values(10007, 2, 1.0F);
  for (const GateActivation act : kAll) {
    std::vector<float> out(gate.size());
    gated_activation(act, gate.data(), up.data(), out.data(), static_cast<std::int64_t>(out.size()));
    for (std::size_t i = 0; i < out.size(); ++i) {
      const double want = reference(act, static_cast<double>(gate[i])) * static_cast<double>(up[i]);
      // Relative, but for arguments whose exponential multiplies the rounding of its exponent.
      const double bound = 1e-6 * (1.0 + std::fabs(static_cast<double>(gate[i]))) * std::fabs(want) + 1e-7;
      ASSERT_NEAR(static_cast<double>(out[i]), want, bound) << static_cast<int>(act) << ' ' << gate[i];
    }
  }
}

TEST(GatedActivation, InstructionSetsLengthsAndAliasing) {
  for (const GateActivation act : kAll) {
    for (const std::int64_t n : {0, 1, 7, 8, 9, 31, 64, 1000}) {
      const auto gate = normal_values(static_cast<std::size_t>(n), 3, 20.0F),
                 up = normal_values(static_cast<std::size_t>(n), 4, 1.0F);
      std::vector<float> want(gate.size());
      activation_kernels(Isa::scalar).gated(act, gate.data(), up.data(), want.data(), n);
      for (const Isa isa : runnable_isas(Isa::avx2)) {
        std::vector<float> in_place = gate;
        activation_kernels(isa).gated(act, in_place.data(), up.data(), in_place.data(), n);
        expect_same_bits(in_place, want);
      }
    }
  }
}

TEST(GatedActivation, ThreadsDoNotMatter) {
  const auto gate = normal_values(100001, 5, 2.0F), up = normal_values(100001, 6, 1.0F);
  std::vector<float> one(gate.size()), three(gate.size());
  ThreadPool pool3(3);
  gated_activation(GateActivation::silu, gate.data(), up.data(), one.data(), 100001);
  pool3.run_ranges(100001, 1, [&](std::int64_t begin, std::int64_t end, int) {  // cut anywhere, as a product's blocks are
    gated_activation(GateActivation::silu, gate.data() + begin, up.data() + begin, three.data() + begin, end - begin);
  });
  expect_same_bits(one, three);
}

TEST(Add, Adds) {
  ThreadPool pool(2);
  auto y = normal_values(50001, 7, 1.0F);
  const auto x = normal_values(50001, 8, 1.0F), before = y;
  add(y.data(), x.data(), 50001, pool);
  for (std::size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], before[i] + x[i]);
}

TEST(LogSumExp, MatchesTheFormulaAndItsEdges) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const std::size_t n : {1U, 7U, 8U, 49152U}) {
    const auto x = normal_values(n, 9, 5.0F);
    double sum = 0;
    for (const float v : x) sum += std::exp(static_cast<double>(v));
    EXPECT_NEAR(log_sum_exp(x.data(), static_cast<std::int64_t>(n)), std::log(sum), 2e-7) << n;
  }
  EXPECT_EQ(log_sum_exp(nullptr, 0), -static_cast<double>(inf));
  const std::vector<float> low(9, -inf);
  EXPECT_EQ(log_sum_exp(low.data(), 9), -static_cast<double>(inf));
  const std::vector<float> high = {0.0F, inf, 1.0F};
  EXPECT_EQ(log_sum_exp(high.data(), 3), static_cast<double>(inf));
  const std::vector<float> large = {1e30F, 1e30F};
  EXPECT_DOUBLE_EQ(log_sum_exp(large.data(), 2), static_cast<double>(1e30F) + std::log(2.0));
}

TEST(LogSumExp, InstructionSetsAgreeBitForBit) {
  for (const std::int64_t n : {1, 3, 8, 15, 16, 1000, 4099}) {
    const auto x = normal_values(static_cast<std::size_t>(n), 10, 8.0F);
    const float max = activation_kernels(Isa::scalar).maximum(x.data(), n);
    const double want = activation_kernels(Isa::scalar).sum_exp(x.data(), n, max);
    for (const Isa isa : runnable_isas(Isa::avx2)) {
      EXPECT_EQ(activation_kernels(isa).maximum(x.data(), n), max);
      EXPECT_EQ(std::bit_cast<std::uint64_t>(activation_kernels(isa).sum_exp(x.data(), n, max)),
                std::bit_cast<std::uint64_t>(want));
    }
  }
}

}  // namespace
}  // namespace halftone
