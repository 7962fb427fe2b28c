#include "kernels/matmul/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "base/testing.h"
#include "kernels/matmul/packed.h"

namespace halftone {
namespace {

QuantizedTensor make_weights(const Scheme& scheme, std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  std::vector<float> values = normal_values(rows * cols, seed, 0.1F);
  if (scheme.is_dense()) {
    for (float& v : values) v = static_cast<float>(round_to(scheme.element, v));
  }
  TensorStats stats;
  accumulate_stats(stats, values, 0);
  return quantize_rows(scheme, values, rows, cols, stats);
}

// The formula itself, in double: sum over k of decoded weight x decoded activation.
std::vector<double> plain_product(const QuantizedTensor& w, std::vector<float> x, std::int64_t m,
                                  const std::optional<Scheme>& activations, std::vector<double>& magnitude) {
  if (activations && activations->granularity == Granularity::tensor) {
    fake_quantize_rows(*activations, x, m, w.cols);
  } else if (activations) {
    for (std::int64_t r = 0; r < m; ++r) {
      fake_quantize_rows(*activations,
                         std::span(x).subspan(static_cast<std::size_t>(r * w.cols), static_cast<std::size_t>(w.cols)),
                         1, w.cols);
    }
  }
  std::vector<float> decoded(static_cast<std::size_t>(w.rows * w.cols));
  dequantize_rows(w, 0, w.rows, decoded);
  std::vector<double> y(static_cast<std::size_t>(m * w.rows));
  magnitude.assign(y.size(), 0);
  for (std::int64_t r = 0; r < m; ++r) {
    for (std::int64_t n = 0; n < w.rows; ++n) {
      for (std::int64_t k = 0; k < w.cols; ++k) {
        const double p =
            double{x[static_cast<std::size_t>(r * w.cols + k)]} * decoded[static_cast<std::size_t>(n * w.cols + k)];
        y[static_cast<std::size_t>(r * w.rows + n)] += p;
        magnitude[static_cast<std::size_t>(r * w.rows + n)] += std::fabs(p);
      }
    }
  }
  return y;
}

std::vector<float> run(const PackedMatrix& w, const std::vector<float>& x, std::int64_t m, ThreadPool& pool,
                       const float* bias = nullptr) {
  Activations prepared;
  prepared.assign(x, m, w.cols(), w.activations(), pool);
  std::vector<float> y(static_cast<std::size_t>(m * w.rows()), -77.0F);
  matmul(w, prepared, bias, y.data(), w.rows(), pool);
  return y;
}

const char* const kMatmulSchemes[] = {"fp32",
                                      "bf16",
                                      "fp16",
                                      "fp8_e4m3:none",
                                      "fp8_e5m2:none",
                                      "e5m4:none",
                                      "e4m4:channel",
                                      "fp8_e4m3:channel",
                                      "fp8_e5m2:channel",
                                      "fp8_e3m4:channel",
                                      "fp8_e4m3fnuz:channel",
                                      "fp8_e4m3:tensor",
                                      "fp8_e4m3:128x128",
                                      "fp8_e4m3:g32",
                                      "fp6_e3m2:g32",
                                      "fp6_e2m3:channel",
                                      "int8:channel",
                                      "int8:channel:asym",
                                      "int8:tensor",
                                      "int7:g32",
                                      "int6:g64",
                                      "int6:g48:asym",
                                      "int5:g64",
                                      "int4:channel",
                                      "int4:g128",
                                      "int4:g64:asym",
                                      "int4:g33",
                                      "int4:g16:asym",
                                      "int3:g64",
                                      "int3:g32:asym",
                                      "int2:g32",
                                      "int2:g32:asym",
                                      "nf4:g64",
                                      "nf4:channel",
                                      "mxfp4",
                                      "mxfp6",
                                      "mxfp8",
                                      "mxfp8_e5m2",
                                      "nvfp4",
                                      "fp4_e2m1:channel",
                                      "e3m0:g32",
                                      "mxint8:g32:e8m0",
                                      "int8:g32:fp16",
                                      "int8:7x5",
                                      "int4:16x32"};
const char* const kBlockTypes[] = {"q4_0", "q4_1", "q5_0", "q5_1",   "q8_0",   "q2_k",  "q3_k",
                                   "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "tq1_0", "tq2_0"};

struct Case {
  std::string weights, activations;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const char* scheme : kMatmulSchemes) list.push_back({scheme, ""});
  for (const char* scheme : kBlockTypes) list.push_back({scheme, ""});
  for (const char* w : {"int8:channel", "int8:g64", "int8:channel:asym", "int4:g64", "int4:g64:asym", "int4:g33",
                        "int2:g32", "fp8_e4m3:channel", "nf4:g64", "q4_0", "q8_0", "q4_k"}) {
    list.push_back({w, "int8:token"});
  }
  for (const char* a : {"fp8_e4m3:token", "fp8_e5m2:token", "fp8_e4m3:g128", "int8:g32", "nvfp4", "mxfp8",
                        "fp8_e4m3:tensor", "int4:token"}) {
    list.push_back({"fp8_e4m3:channel", a});
    list.push_back({"int4:g64:asym", a});
  }
  return list;
}

class Product : public testing::TestWithParam<Case> {
 protected:
  Scheme weights() const { return parse_scheme(GetParam().weights); }
  std::optional<Scheme> activations() const {
    return GetParam().activations.empty() ? std::nullopt : std::optional(parse_scheme(GetParam().activations));
  }
  std::vector<std::pair<std::int64_t, std::int64_t>> shapes() const {
    if (weights().ggml) return {{16, 256}, {35, 512}, {1, 768}};
    return {{1, 1}, {16, 256}, {33, 70}, {7, 300}, {64, 128}, {17, 577}};
  }
};

TEST_P(Product, IsTheFormulaWithinRounding) {
  ThreadPool pool(2);
  for (const auto& [rows, cols] : shapes()) {
    const QuantizedTensor w = make_weights(weights(), rows, cols, 5);
    for (const std::int64_t m : {1, 3, 9}) {
      const std::vector<float> x = normal_values(m * cols, 6);
      std::vector<double> magnitude;
      const std::vector<double> wanted = plain_product(w, x, m, activations(), magnitude);
      const std::vector<float> y = run(pack_matrix(w, activations(), pool, Isa::scalar), x, m, pool);
      for (std::size_t i = 0; i < y.size(); ++i) {
        // Every term is rounded once where it is added (2^-24 a step, at most cols steps); asymmetric groups cancel.
        const double bound = (magnitude[i] * 4 + 1e-3) * static_cast<double>(cols + 8) * 0x1p-24;
        ASSERT_NEAR(y[i], wanted[i], bound)
            << GetParam().weights << " x " << GetParam().activations << " " << rows << "x" << cols << " m " << m;
      }
    }
  }
}

TEST_P(Product, TheSameBitsFromEveryInstructionSetBatchAndThreadCount) {
  ThreadPool one(1), three(3);
  for (const auto& [rows, cols] : shapes()) {
    const QuantizedTensor w = make_weights(weights(), rows, cols, 7);
    const std::int64_t most = 21;
    const std::vector<float> x = normal_values(most * cols, 8), bias = normal_values(rows, 9);
    const std::vector<float> wanted = run(pack_matrix(w, activations(), one, Isa::scalar), x, most, one, bias.data());
    const bool by_row = !activations() || activations()->granularity != Granularity::tensor;
    for (const Isa isa : runnable_isas()) {
      const PackedMatrix packed = pack_matrix(w, activations(), three, isa);
      for (const std::int64_t m : {1, 2, 3, 4, 5, 8, 17, 21}) {
        if (m != most && !by_row) continue;
        for (ThreadPool* pool : {&one, &three}) {
          const std::vector<float> part(x.begin(), x.begin() + m * cols);
          const std::vector<float> y = run(packed, part, m, *pool, bias.data());
          ASSERT_EQ(std::memcmp(y.data(), wanted.data(), y.size() * sizeof(float)), 0)
              << packed.kernel_name() << " " << GetParam().weights << " x " << GetParam().activations << " " << rows
              << "x" << cols << " m " << m;
        }
      }
    }
  }
}

TEST_P(Product, RowsDecodeAsTheScalarReferenceDoes) {
  ThreadPool pool(1);
  for (const auto& [rows, cols] : shapes()) {
    const QuantizedTensor w = make_weights(weights(), rows, cols, 3);
    const PackedMatrix packed = pack_matrix(w, activations(), pool);
    std::vector<float> wanted(static_cast<std::size_t>(cols)), got(wanted.size());
    for (std::int64_t r = 0; r < rows; ++r) {
      dequantize_rows(w, r, 1, wanted);
      packed.decode_row(r, got);
      for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_EQ(got[i], wanted[i]) << GetParam().weights << " row " << r << " col " << i;
    }
  }
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  std::string name = info.param.weights + (info.param.activations.empty() ? "" : "_x_" + info.param.activations);
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}
INSTANTIATE_TEST_SUITE_P(Schemes, Product, testing::ValuesIn(cases()), case_name);

TEST(Matmul, ChunksOfRowsMakeTheSameMatrix) {
  ThreadPool pool(2);
  for (const char* text : {"int4:g32", "fp8_e4m3:32x16", "bf16", "q4_0"}) {
    const Scheme scheme = parse_scheme(text);
    const std::vector<float> values = normal_values(100 * 64, 4);
    TensorStats stats;
    accumulate_stats(stats, values, 0);
    PackedMatrixBuilder builder(100, 64, scheme, std::nullopt);
    const std::int64_t step = builder.row_alignment();
    for (std::int64_t first = (99 / step) * step; first >= 0; first -= step) {  // in any order
      const std::int64_t n = std::min(step, 100 - first);
      builder.add_rows(
          first,
          quantize_rows(
              scheme, std::span(values).subspan(static_cast<std::size_t>(first * 64), static_cast<std::size_t>(n * 64)),
              n, 64, stats),
          pool);
    }
    const PackedMatrix chunked = builder.finish();
    const PackedMatrix whole = pack_matrix(quantize_rows(scheme, values, 100, 64, stats), std::nullopt, pool);
    const std::vector<float> x = normal_values(3 * 64, 5);
    EXPECT_EQ(run(chunked, x, 3, pool), run(whole, x, 3, pool)) << text;
  }
}

TEST(Matmul, CodesThatAreNoNumbersAreRefused) {
  ThreadPool pool(1);
  const auto refuses = [&](const char* text, std::size_t at, std::initializer_list<std::uint8_t> bytes) {
    QuantizedTensor w = make_weights(parse_scheme(text), 4, 32, 1);
    std::vector<std::byte> codes(w.codes.begin(), w.codes.end());
    for (const std::uint8_t byte : bytes) codes[at++] = static_cast<std::byte>(byte);
    w.codes = codes;
    EXPECT_THROW(pack_matrix(w, std::nullopt, pool), Error) << text;
  };
  refuses("fp8_e4m3:channel", 5, {0x7F});
  refuses("fp8_e4m3:channel", 5, {0xFF});
  refuses("fp8_e5m2:channel", 5, {0x7C});
  refuses("fp8_e5m2:none", 5, {0xFE});
  refuses("bf16", 10, {0x80, 0x7F});
  refuses("fp16", 10, {0x01, 0x7C});
  refuses("fp32", 12, {0, 0, 0xC0, 0x7F});
  QuantizedTensor w = make_weights(parse_scheme("int4:g32"), 4, 32, 1);
  w.scales[2] = NAN;
  EXPECT_THROW(pack_matrix(w, std::nullopt, pool), Error);
}

TEST(Matmul, ZeroAndNonFiniteRowsOfActivations) {
  ThreadPool pool(1);
  for (const char* activations : {"fp8_e4m3:token", "int8:token", "fp8_e4m3:g32"}) {
    const PackedMatrix w =
        pack_matrix(make_weights(parse_scheme("int8:channel"), 20, 64, 2), parse_scheme(activations), pool);
    std::vector<float> x = normal_values(4 * 64, 3);
    std::fill(x.begin() + 64, x.begin() + 128, 0.0F);
    const std::vector<float> clean = run(w, x, 4, pool);
    for (int i = 0; i < 20; ++i) EXPECT_EQ(clean[20 + i], 0.0F);
    x[3 * 64 + 7] = NAN;
    const std::vector<float> dirty = run(w, x, 4, pool);
    EXPECT_TRUE(std::equal(clean.begin(), clean.begin() + 60, dirty.begin()));
    for (int i = 60; i < 80; ++i) EXPECT_TRUE(std::isnan(dirty[static_cast<std::size_t>(i)])) << activations;
  }
}

TEST(Matmul, EveryKindHasAKernelInEveryInstructionSet) {
  for (const MatmulKernelInfo& kernel : matmul_kernels()) EXPECT_FALSE(kernel.covers.empty());
  for (const Isa isa : runnable_isas()) {
    for (int kind = 0; kind < kWeightKinds; ++kind)
      EXPECT_TRUE(kernel_set(isa).product[kind] != nullptr || kernel_set(isa).integer[kind] != nullptr);
  }
}

TEST(Matmul, PackedMatricesHoldNoFloats) {
  ThreadPool pool(1);
  const auto bytes = [&](const char* scheme) {
    return pack_matrix(make_weights(parse_scheme(scheme), 64, 512, 1), std::nullopt, pool).bytes();
  };
  EXPECT_EQ(bytes("fp8_e4m3:channel:fp32"), 64U * 512 + 64 * 4);
  EXPECT_EQ(bytes("int4:g64:fp16"), 64U * 512 / 2 + 64 * 8 * 2);
  EXPECT_EQ(bytes("int4:g64:asym:fp16"), 64U * 512 / 2 + 64 * 8 * 3);
  EXPECT_EQ(bytes("mxfp4"), 64U * 512 / 2 + 64 * 16);
  EXPECT_EQ(bytes("bf16"), 64U * 512 * 2);
  EXPECT_EQ(bytes("nvfp4"), 64U * 512 / 2 + 64 * 32);
}

}  // namespace
}  // namespace halftone
