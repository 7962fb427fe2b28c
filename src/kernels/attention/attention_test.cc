#include "kernels/attention/attention.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "base/testing.h"
#include "kernels/attention/kernels.h"
#include "kernels/attention/page.h"

namespace halftone {
namespace {

// A cache of `tokens` tokens with random keys and values; slots beyond hold NaN bytes.
struct Cache {
  KvLayout layout;
  std::int64_t tokens;
  std::vector<float> k, v;
  std::vector<std::vector<std::byte>> storage;
  std::vector<const std::byte*> pages;

  Cache(const KvLayout& l, std::int64_t n, std::uint64_t seed) : layout(l), tokens(n) {
    const std::int64_t width = l.kv_heads * l.head_dim;
    k = normal_values(n * width, seed);
    v = normal_values(n * width, seed + 1);
    for (std::int64_t p = 0; p * kKvPageTokens < n; ++p) {
      storage.emplace_back(l.page_bytes(), std::byte{0xFF});
    }
    for (std::int64_t t = 0; t < n; ++t) {
      kv_write(l, storage[static_cast<std::size_t>(t / kKvPageTokens)].data(), t % kKvPageTokens, k.data() + t * width,
               v.data() + t * width);
    }
    for (const auto& page : storage) pages.push_back(page.data());
  }
};

// The definition, in double, on the FP32 keys and values.
std::vector<double> naive(const AttentionSpec& spec, const Cache& c, const std::vector<float>& q, std::int64_t rows,
                          std::int64_t first) {
  const std::int64_t dim = c.layout.head_dim, group = spec.heads / c.layout.kv_heads;
  std::vector<double> out;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t h = 0; h < spec.heads; ++h) {
      const std::int64_t position = first + r;
      std::vector<double> sum(static_cast<std::size_t>(dim), 0.0);
      std::vector<double> scores;
      std::int64_t low = spec.window > 0 ? std::max<std::int64_t>(0, position - spec.window + 1) : 0;
      double top = -1e300, total = 0;
      for (std::int64_t t = low; t <= position; ++t) {
        double s = 0;
        for (std::int64_t d = 0; d < dim; ++d) {
          s += static_cast<double>(q[static_cast<std::size_t>((r * spec.heads + h) * dim + d)]) *
               static_cast<double>(c.k[static_cast<std::size_t>((t * c.layout.kv_heads + h / group) * dim + d)]);
        }
        s *= static_cast<double>(spec.scale);
        if (spec.softcap > 0) s = static_cast<double>(spec.softcap) * std::tanh(s / static_cast<double>(spec.softcap));
        scores.push_back(s);
        top = std::max(top, s);
      }
      for (std::int64_t t = low; t <= position; ++t) {
        const double p = std::exp(scores[static_cast<std::size_t>(t - low)] - top);
        total += p;
        for (std::int64_t d = 0; d < dim; ++d) {
          sum[static_cast<std::size_t>(d)] +=
              p * static_cast<double>(c.v[static_cast<std::size_t>((t * c.layout.kv_heads + h / group) * dim + d)]);
        }
      }
      for (const double s : sum) out.push_back(s / total);
    }
  }
  return out;
}

std::vector<float> run(Isa isa, const AttentionSpec& spec, const Cache& c, const std::vector<float>& q,
                       std::int64_t rows, std::int64_t first, int threads, std::int64_t chunk = 0) {
  ThreadPool pool(threads);
  std::vector<float> out(q.size());
  const std::int64_t width = spec.heads * c.layout.head_dim;
  if (chunk == 0) chunk = rows;
  for (std::int64_t r = 0; r < rows; r += chunk) {
    attention_with(isa, spec, c.layout, q.data() + r * width, std::min(chunk, rows - r), first + r, c.pages,
                   out.data() + r * width, pool);
  }
  return out;
}

bool same_bytes(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct Shape {
  std::int64_t heads, kv_heads, dim, rows, first, window;
  float softcap;
};
const Shape kShapes[] = {
    {1, 1, 8, 1, 0, 0, 0},     {4, 2, 16, 70, 0, 0, 0},      {9, 3, 64, 130, 0, 0, 0},    {4, 1, 64, 40, 100, 0, 30.0F},
    {2, 2, 20, 65, 63, 0, 0},  {4, 1, 24, 90, 0, 17, 0},     {2, 1, 32, 100, 150, 64, 0}, {3, 3, 5, 66, 1, 1, 5.0F},
    {8, 4, 128, 9, 60, 65, 0}, {4, 1, 256, 20, 200, 100, 0}, {6, 2, 72, 3, 300, 0, 2.0F},
};

TEST(Attention, MatchesTheDefinition) {
  for (const Shape& s : kShapes) {
    const Cache cache({s.kv_heads, s.dim, fp32_format()}, s.first + s.rows, 7);
    const AttentionSpec spec{s.heads, 1.0F / std::sqrt(static_cast<float>(s.dim)), s.window, s.softcap};
    const auto q = normal_values(s.rows * s.heads * s.dim, 9);
    const auto want = naive(spec, cache, q, s.rows, s.first);
    for (const Isa isa : runnable_isas(Isa::avx2)) {
      const auto got = run(isa, spec, cache, q, s.rows, s.first, 2);
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_NEAR(static_cast<double>(got[i]), want[i], 5e-6) << s.heads << ' ' << s.dim << " at " << i;
      }
    }
  }
}

TEST(Attention, InstructionSetsThreadsAndChunksAgreeBitForBit) {
  for (const Shape& s : kShapes) {
    for (const auto& format : {fp32_format(), bf16_format(), int_format(8), fp8_e4m3_format()}) {
      const Cache cache({s.kv_heads, s.dim, format}, s.first + s.rows, 11);
      const AttentionSpec spec{s.heads, 1.0F / std::sqrt(static_cast<float>(s.dim)), s.window, s.softcap};
      const auto q = normal_values(s.rows * s.heads * s.dim, 13);
      const auto want = run(Isa::scalar, spec, cache, q, s.rows, s.first, 1);
      for (const Isa isa : runnable_isas(Isa::avx2)) {
        for (const int threads : {1, 2, 5}) {
          EXPECT_TRUE(same_bytes(run(isa, spec, cache, q, s.rows, s.first, threads), want)) << s.heads << ' ' << s.dim;
        }
        for (const std::int64_t chunk : {1, 7, 64}) {
          EXPECT_TRUE(same_bytes(run(isa, spec, cache, q, s.rows, s.first, 2, chunk), want)) << s.dim << ' ' << chunk;
        }
      }
    }
  }
}

// A row must not see what lies after it, whether those slots are unwritten (NaN bytes, see Cache) or hold later tokens.
TEST(Attention, LaterTokensDoNotMatter) {
  const KvLayout layout{2, 16, fp32_format()};
  Cache cache(layout, 100, 3);
  const AttentionSpec spec{4, 0.25F, 0, 0};
  const auto q = normal_values(4 * 16, 4);
  for (const Isa isa : runnable_isas(Isa::avx2)) {
    const auto before = run(isa, spec, cache, q, 1, 70, 1);
    const std::vector<float> bad(2 * 16, std::numeric_limits<float>::quiet_NaN());
    Cache poisoned = cache;
    poisoned.pages.clear();
    for (std::int64_t t = 71; t < 128; ++t)
      kv_write(layout, poisoned.storage[1].data(), t - 64, bad.data(), bad.data());
    for (const auto& page : poisoned.storage) poisoned.pages.push_back(page.data());
    EXPECT_TRUE(same_bytes(run(isa, spec, poisoned, q, 1, 70, 1), before));
    // Together with a later row that does see them.
    auto two = q;
    two.insert(two.end(), q.begin(), q.end());
    auto both = run(isa, spec, poisoned, two, 2, 70, 1);
    EXPECT_TRUE(std::isnan(both.back()));
    both.resize(before.size());
    EXPECT_TRUE(same_bytes(both, before));
  }
}

TEST(Attention, PagesBeforeTheWindowMayBeAbsent) {
  Cache cache({1, 16, bf16_format()}, 300, 5);
  const AttentionSpec spec{2, 0.25F, 50, 0};
  const auto q = normal_values(3 * 2 * 16, 6);
  const auto want = run(Isa::scalar, spec, cache, q, 3, 297, 2);
  cache.pages[0] = cache.pages[1] = cache.pages[2] = nullptr;  // 297 - 49 = 248: page 3
  for (const int threads : {1, 2})
    EXPECT_TRUE(same_bytes(run(active_isa().isa, spec, cache, q, 3, 297, threads), want));
}

TEST(Attention, ZeroRowsAndOneKey) {
  const Cache cache({1, 8, fp32_format()}, 1, 5);
  const AttentionSpec spec{1, 1.0F, 0, 0};
  ThreadPool pool(1);
  attention(spec, cache.layout, nullptr, 0, 0, {}, nullptr, pool);
  const auto q = normal_values(8, 1);
  EXPECT_EQ(run(active_isa().isa, spec, cache, q, 1, 0, 1), cache.v);  // the only key has weight one
}

struct FormatCase {
  ElementFormat format;
  double relative;  // to the largest value of the head (scaled formats) or to the value itself
};
std::vector<FormatCase> format_cases() {
  // Nearest even of m significant bits is off by at most 2^-m of the value (the worst is just above a power of two).
  return {{fp32_format(), 0.0},       {bf16_format(), 0x1p-8},
          {fp16_format(), 0x1p-11},  // and half a subnormal unit, see below
          {int_format(8), 0.5 / 127}, {fp8_e4m3_format(), 0x1p-4},
          {fp8_e5m2_format(), 0x1p-3}};
}

std::vector<float> decoded(Isa isa, const KvLayout& layout, const std::byte* page, std::int64_t slot, bool values) {
  const PageMap map(layout);
  std::vector<float> out(static_cast<std::size_t>(layout.kv_heads * layout.head_dim));
  for (std::int64_t h = 0; h < layout.kv_heads; ++h) {
    const auto row = static_cast<std::size_t>(h * kKvPageTokens + slot);
    float scale = 1.0F;
    if (layout.has_scales()) std::memcpy(&scale, page + (values ? map.value_scale(row) : map.key_scale(row)), 4);
    attention_kernels(isa).decode(map.kind, page + (values ? map.value_codes(row) : map.key_codes(row)), scale,
                                  layout.head_dim, out.data() + h * layout.head_dim);
  }
  return out;
}

TEST(KvCache, WritesAndReadsWithinTheFormatsEpsilon) {
  for (const FormatCase& c : format_cases()) {
    const KvLayout layout{3, 20, c.format};
    EXPECT_EQ(layout.page_bytes() % 64, 0U);
    std::vector<std::byte> page(layout.page_bytes());
    for (const float size : {1.0F, 1e-3F, 30.0F}) {
      for (const std::int64_t slot : {0, 17, 63}) {
        auto k = normal_values(60, 1), v = normal_values(60, 2);
        for (float& x : k) x *= size;
        kv_write(layout, page.data(), slot, k.data(), v.data());
        for (const Isa isa : runnable_isas(Isa::avx2)) {
          for (const bool values : {false, true}) {
            const auto& want = values ? v : k;
            const auto got = decoded(isa, layout, page.data(), slot, values);
            for (std::size_t i = 0; i < 60; ++i) {
              double amax = 0;
              for (std::size_t j = i / 20 * 20; j < i / 20 * 20 + 20; ++j)
                amax = std::max(amax, std::fabs(double{want[j]}));
              const double base = layout.has_scales() ? amax : std::fabs(double{want[i]});
              const double subnormal = c.format == fp16_format() ? 0x1p-25 : 0.0;
              ASSERT_LE(std::fabs(double{got[i]} - double{want[i]}), c.relative * base * 1.000001 + subnormal)
                  << format_name(c.format) << ' ' << size;
            }
          }
        }
      }
    }
  }
}

// The cache's own encoders against the codec of numeric/: every code of the minifloats, the midpoints between
// neighbours and their neighbours, under scale 1 (a value at the format's largest number fixes the scale).
TEST(KvCache, EncodesAsTheScalarCodec) {
  for (const auto& format : {fp8_e4m3_format(), fp8_e5m2_format()}) {
    const float top = static_cast<float>(max_finite(format));
    std::vector<float> inputs;
    for (std::uint32_t code = 0; code < 0x7F; ++code) {
      const auto a = static_cast<float>(decode(format, code)), b = static_cast<float>(decode(format, code + 1));
      if (!std::isfinite(a) || a > top) continue;
      inputs.push_back(a);
      if (!std::isfinite(b) || b > top) continue;
      const float middle = 0.5F * (a + b);
      inputs.insert(inputs.end(), {middle, std::nextafter(middle, 0.0F), std::nextafter(middle, top)});
    }
    CounterRng rng(3);
    for (int i = 0; i < 2000; ++i) inputs.push_back(top * std::exp2(-20.0F * rng.next_uniform()));
    for (const float sign : {1.0F, -1.0F}) {
      const KvLayout layout{1, 8, format};
      std::vector<std::byte> page(layout.page_bytes());
      for (std::size_t i = 0; i < inputs.size(); i += 7) {
        std::vector<float> x(8, 0.0F);
        for (std::size_t j = 0; j < 7 && i + j < inputs.size(); ++j) x[j] = sign * inputs[i + j];
        x[7] = top;
        kv_write(layout, page.data(), 0, x.data(), x.data());
        for (std::size_t j = 0; j < 8; ++j) {
          ASSERT_EQ(static_cast<std::uint32_t>(page[j]), encode(format, double{x[j]}))
              << format_name(format) << ' ' << x[j];
        }
      }
    }
  }
}

TEST(KvCache, DecodesEveryCodeAsTheScalarCodec) {
  for (const auto& format : {bf16_format(), fp16_format(), int_format(8), fp8_e4m3_format(), fp8_e5m2_format()}) {
    const KvLayout layout{1, 8, format};
    const PageMap map(layout);
    const std::uint32_t count = format.bits == 8 ? 256U : 65536U;
    std::vector<std::byte> codes(count * map.code_bytes);
    for (std::uint32_t code = 0; code < count; ++code)
      std::memcpy(codes.data() + code * map.code_bytes, &code, map.code_bytes);
    for (const Isa isa : runnable_isas(Isa::avx2)) {
      std::vector<float> out(count);
      attention_kernels(isa).decode(map.kind, codes.data(), 1.0F, count, out.data());
      for (std::uint32_t code = 0; code < count; ++code) {
        const auto want = static_cast<float>(decode(format, code));
        if (std::isnan(want)) {
          ASSERT_TRUE(std::isnan(out[code])) << format_name(format) << ' ' << code;
        } else {
          ASSERT_EQ(out[code], want) << format_name(format) << ' ' << code;
        }
      }
    }
  }
}

TEST(KvCache, ZerosTinyHugeAndNanValues) {
  for (const FormatCase& c : format_cases()) {
    const KvLayout layout{1, 8, c.format};
    std::vector<std::byte> page(layout.page_bytes());
    const std::vector<float> zero(8, 0.0F);
    kv_write(layout, page.data(), 0, zero.data(), zero.data());
    EXPECT_EQ(decoded(Isa::scalar, layout, page.data(), 0, true), zero) << format_name(c.format);

    const std::vector<float> tiny(8, 1e-44F), huge(8, 3.0e38F);
    kv_write(layout, page.data(), 1, tiny.data(), tiny.data());
    for (const float v : decoded(Isa::scalar, layout, page.data(), 1, false)) EXPECT_LE(std::fabs(v), 2e-38F);
    kv_write(layout, page.data(), 2, huge.data(), huge.data());
    for (const float v : decoded(Isa::scalar, layout, page.data(), 2, false)) {
      if (c.format == fp16_format()) continue;  // overflows: the format cannot hold it
      EXPECT_NEAR(static_cast<double>(v), 3.0e38, 2e36) << format_name(c.format);
    }
    std::vector<float> bad(8, 1.0F);
    bad[3] = std::numeric_limits<float>::quiet_NaN();
    kv_write(layout, page.data(), 3, bad.data(), bad.data());
    EXPECT_TRUE(std::isnan(decoded(Isa::scalar, layout, page.data(), 3, false)[3])) << format_name(c.format);
  }
}

TEST(KvCache, RefusesOtherFormats) {
  const KvLayout layout{1, 8, fp4_e2m1_format()};
  try {
    layout.page_bytes();
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::unsupported);
    EXPECT_NE(std::string(e.what()).find("fp4_e2m1"), std::string::npos);
  }
}

// Quantizing keys and values moves the output by a bound that follows from the format: |v| errors are averaged (at most
// eps * amax), score errors e change a weight by a factor within exp(2e).
TEST(Attention, QuantizedCachesStayWithinTheirBound) {
  const std::int64_t heads = 2, dim = 32, tokens = 150;
  const AttentionSpec spec{heads, 1.0F / std::sqrt(32.0F), 0, 0};
  const auto q = normal_values(tokens * heads * dim, 21);
  for (const FormatCase& c : format_cases()) {
    const Cache cache({1, dim, c.format}, tokens, 23);
    const auto want = naive(spec, cache, q, tokens, 0);
    const auto got = run(active_isa().isa, spec, cache, q, tokens, 0, 2);
    double kmax = 0, vmax = 0;
    for (const float x : cache.k) kmax = std::max(kmax, std::fabs(double{x}));
    for (const float x : cache.v) vmax = std::max(vmax, std::fabs(double{x}));
    for (std::int64_t i = 0; i < tokens * heads; ++i) {
      double q1 = 0;
      for (std::int64_t d = 0; d < dim; ++d) q1 += std::fabs(double{q[static_cast<std::size_t>(i * dim + d)]});
      const double score_error = c.relative * kmax * q1 * double{spec.scale};
      const double bound = c.relative * vmax + vmax * std::expm1(2 * score_error) + 5e-6;
      double rms = 0;
      for (std::int64_t d = 0; d < dim; ++d) {
        const auto at = static_cast<std::size_t>(i * dim + d);
        const double error = std::fabs(double{got[at]} - want[at]);
        ASSERT_LE(error, bound) << format_name(c.format);
        rms += error * error;
      }
      // Errors of many keys are independent: what is seen is far below the worst case.
      if (i > 40) {
        EXPECT_LE(std::sqrt(rms / static_cast<double>(dim)),
                  5e-6 + 8 * c.relative / std::sqrt(static_cast<double>(dim)));
      }
    }
  }
}

}  // namespace
}  // namespace halftone
