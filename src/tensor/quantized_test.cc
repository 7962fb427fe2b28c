#include "tensor/quantized.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/testing.h"

namespace halftone {
namespace {

const char* const kScaled[] = {"int8:channel",
                               "int8:tensor",
                               "int8:tensor:asym",
                               "int4:g128",
                               "int4:g64:asym",
                               "int3:g32",
                               "int2:g16:asym",
                               "int7:g33:fp32",
                               "fp8_e4m3:tensor",
                               "fp8_e4m3:channel",
                               "fp8_e4m3:16x32",
                               "fp8_e5m2:g64",
                               "fp8_e4m3fnuz:g20",
                               "int8:7x11",
                               "int4:8x16:asym",
                               "fp4_e2m1:g16:e4m3:one_level",
                               "mxfp4",
                               "mxfp4:floor",
                               "mxfp4:search",
                               "fp4_e2m1:4x32:e8m0:search",
                               "mxfp6",
                               "mxfp6_e3m2",
                               "mxfp8",
                               "mxint8",
                               "nvfp4",
                               "nf4",
                               "nf4:channel:fp32",
                               "e4m4:g32",
                               "e5m7:channel",
                               "bf16:channel",
                               "fp16:g8:fp32",
                               "fp8_e4m3:token:fp32"};

TensorStats stats_of(const std::vector<float>& values) {
  TensorStats stats;
  accumulate_stats(stats, values, 0);
  return stats;
}

std::vector<float> decode_all(const QuantizedTensor& tensor) {
  std::vector<float> out(static_cast<std::size_t>(tensor.rows * tensor.cols));
  dequantize_rows(tensor, 0, tensor.rows, out);
  return out;
}

std::uint32_t code_at(const QuantizedTensor& tensor, std::size_t i) {
  std::uint32_t code = 0;
  std::memcpy(&code, tensor.codes.data() + i * static_cast<std::size_t>(tensor.code_bytes()),
              static_cast<std::size_t>(tensor.code_bytes()));
  return code & static_cast<std::uint32_t>(code_count(tensor.scheme.element) - 1);
}

// The definition, element by element: gather the cell, choose its scale, quantize and decode each value. Rows and
// columns leave short groups and partial tiles at both edges.
TEST(Quantized, EqualsTheDefinition) {
  const std::int64_t rows = 19, cols = 150;
  std::vector<float> values = normal_values(rows * cols, 1);
  values[40] = 12;
  values[41] = -0.0F;
  std::fill(values.begin() + 5 * cols, values.begin() + 6 * cols, 0.0F);
  const TensorStats whole = stats_of(values);
  for (const char* name : kScaled) {
    const Scheme scheme = parse_scheme(name);
    const QuantizedTensor tensor = quantize_rows(scheme, values, rows, cols, whole);
    const std::vector<float> out = decode_all(tensor);
    const SchemeShape shape = scale_shape(scheme, rows, cols);
    ASSERT_EQ(tensor.scales.size(), static_cast<std::size_t>(shape.scale_rows * shape.scale_cols)) << name;
    ASSERT_EQ(tensor.zeros.size(), scheme.symmetric ? 0 : tensor.scales.size()) << name;
    const std::int64_t cell_rows = scheme.granularity == Granularity::tensor  ? rows
                                   : scheme.granularity == Granularity::block ? scheme.block_rows
                                                                              : 1;
    const std::int64_t cell_cols = scheme.granularity == Granularity::group   ? scheme.group
                                   : scheme.granularity == Granularity::block ? scheme.block_cols
                                                                              : cols;
    const float global = scheme.two_level ? choose_global_scale(scheme, whole.amax) : 1.0F;
    ASSERT_EQ(tensor.global_scale, global);
    for (std::int64_t top = 0; top < rows; top += cell_rows) {
      for (std::int64_t left = 0; left < cols; left += cell_cols) {
        std::vector<float> cell;
        std::vector<std::size_t> where;
        for (std::int64_t r = top; r < std::min(rows, top + cell_rows); ++r) {
          for (std::int64_t c = left; c < std::min(cols, left + cell_cols); ++c) {
            where.push_back(static_cast<std::size_t>(r * cols + c));
            cell.push_back(values[where.back()]);
          }
        }
        const ScaleZero sz = choose_scale(scheme, cell, global);
        const auto index = static_cast<std::size_t>(top / cell_rows * shape.scale_cols + left / cell_cols);
        ASSERT_EQ(tensor.scales[index], sz.scale) << name << ' ' << top << ' ' << left;
        if (!scheme.symmetric) {
          ASSERT_EQ(tensor.zeros[index], sz.zero) << name;
        }
        for (std::size_t i = 0; i < cell.size(); ++i) {
          const std::uint32_t code = quantize_value(scheme, cell[i], sz, global);
          ASSERT_EQ(code_at(tensor, where[i]), code) << name << ' ' << where[i];
          const float want = dequantize_value(scheme, code, sz, global);
          ASSERT_EQ(std::bit_cast<std::uint32_t>(out[where[i]]), std::bit_cast<std::uint32_t>(want))
              << name << ' ' << cell[i];
        }
      }
    }
    if (scheme.element.kind == FormatKind::integer) {  // sign-extended bytes
      for (std::size_t i = 0; i < values.size(); ++i) {
        const auto byte = static_cast<std::int8_t>(tensor.codes[i]);
        ASSERT_LT(byte, 1 << (scheme.element.bits - 1)) << name;
        ASSERT_GE(byte, -(1 << (scheme.element.bits - 1))) << name;
      }
    }
  }
}

// Chunks of row_multiple rows give what the whole gives, and any rows decode alone.
TEST(Quantized, ChunksEqualTheWhole) {
  const std::int64_t rows = 21, cols = 96;
  const std::vector<float> values = normal_values(rows * cols, 2);
  const TensorStats whole = stats_of(values);
  std::vector<std::string> names(std::begin(kScaled), std::end(kScaled));
  for (const char* name : {"fp32", "bf16", "fp16", "fp8_e4m3:none", "e4m4:none", "q8_0", "q4_0", "ggml_mxfp4"})
    names.emplace_back(name);
  for (const std::string& name : names) {
    const Scheme scheme = parse_scheme(name);
    const QuantizedTensor all = quantize_rows(scheme, values, rows, cols, whole);
    const std::vector<float> out = decode_all(all);
    const std::int64_t step = row_multiple(scheme) * 2;
    std::vector<std::byte> codes;
    std::vector<float> scales;
    for (std::int64_t first = 0; first < rows; first += step) {
      const std::int64_t count = std::min(step, rows - first);
      const auto part = quantize_rows(
          scheme,
          std::span(values).subspan(static_cast<std::size_t>(first * cols), static_cast<std::size_t>(count * cols)),
          count, cols, needs_whole_tensor_stats(scheme) ? whole : TensorStats{});
      codes.insert(codes.end(), part.codes.begin(), part.codes.end());
      if (scheme.granularity != Granularity::tensor || first == 0)
        scales.insert(scales.end(), part.scales.begin(), part.scales.end());
      EXPECT_EQ(part.global_scale, all.global_scale);
    }
    EXPECT_TRUE(std::equal(codes.begin(), codes.end(), all.codes.begin(), all.codes.end())) << name;
    EXPECT_EQ(scales, all.scales) << name;
    for (const std::int64_t first : {0, 3, 17, 20, 21}) {
      const std::int64_t count = std::min<std::int64_t>(3, rows - first);
      std::vector<float> some(static_cast<std::size_t>(count * cols));
      dequantize_rows(all, first, count, some);
      EXPECT_TRUE(std::equal(some.begin(), some.end(), out.begin() + first * cols)) << name << ' ' << first;
    }
  }
}

// users.md C01: zeros decode to exact zero and the one to one within the type's error, whatever shares its matrix.
TEST(Quantized, ZeroMatrixWithOneOne) {
  const std::int64_t n = 256;
  std::vector<float> values(n * n);
  values[0] = 1;
  const TensorStats whole = stats_of(values);
  for (const char* name : {"fp8_e4m3:128x128", "fp8_e4m3:tensor", "int8:channel", "int8:tensor", "int4:g128",
                           "int4:g128:asym", "mxfp4", "mxfp8", "nvfp4", "nf4", "q4_k", "q8_0", "q6_k"}) {
    const std::vector<float> out = decode_all(quantize_rows(parse_scheme(name), values, n, n, whole));
    EXPECT_NEAR(out[0], 1,
                std::string(name).starts_with("int4") ? 1.0 / 14
                : std::string(name) == "nvfp4"        ? 0.001
                                                      : 0.01)
        << name;
    for (std::size_t i = 1; i < out.size(); ++i) ASSERT_EQ(out[i], 0.0F) << name << ' ' << i;
  }
}

// users.md C12: a tail group has the same error as the others.
TEST(Quantized, TailGroupsAreAsGoodAsTheOthers) {
  const std::int64_t rows = 400, cols = 136;
  const std::vector<float> values = normal_values(rows * cols, 3);
  for (const char* name : {"int4:g128", "int4:g128:asym", "int8:g128", "fp8_e4m3:128x128", "mxfp4"}) {
    const std::vector<float> out = decode_all(quantize_rows(parse_scheme(name), values, rows, cols, {}));
    double body = 0, tail = 0;
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      const auto at = static_cast<std::size_t>(i);
      (i % cols < 128 ? body : tail) += std::pow(double{values[at]} - out[at], 2);
    }
    // Fewer values share the scale, so that integers do better; floats have the same relative error.
    EXPECT_LT(tail / (rows * 8), 1.05 * body / (rows * 128)) << name;
    EXPECT_GT(tail, 0) << name;
  }
}

TEST(Quantized, DenseFormatsAreCasts) {
  std::vector<float> values = normal_values(64, 4);
  values[0] = 7e4F;
  values[1] = 3e38F;
  values[2] = std::numeric_limits<float>::infinity();
  values[3] = std::numeric_limits<float>::quiet_NaN();
  values[4] = -0.0F;
  const auto cast = [&](const char* name) { return decode_all(quantize_rows(parse_scheme(name), values, 8, 8, {})); };
  const std::vector<float> fp32 = cast("fp32"), bf16 = cast("bf16"), fp16 = cast("fp16"), fp8 = cast("fp8_e4m3:none");
  EXPECT_EQ(0, std::memcmp(fp32.data(), values.data(), values.size() * 4));
  EXPECT_TRUE(std::isinf(bf16[2]) && std::isnan(bf16[3]));
  EXPECT_TRUE(std::isinf(fp16[0]) && std::isinf(fp16[1]) && std::isinf(fp16[2]) && std::isnan(fp16[3]));
  EXPECT_EQ(fp8[0], 448);
  EXPECT_EQ(fp8[2], 448);
  EXPECT_TRUE(std::isnan(fp8[3]));
  EXPECT_TRUE(std::signbit(fp16[4]) && std::signbit(bf16[4]));
  for (std::size_t i = 4; i < values.size(); ++i) {
    EXPECT_EQ(bf16[i], static_cast<float>(round_to(bf16_format(), values[i])));
    EXPECT_EQ(fp16[i], static_cast<float>(round_to(fp16_format(), values[i])));
    EXPECT_EQ(fp8[i], static_cast<float>(round_to(fp8_e4m3_format(), values[i])));
  }
}

TEST(Quantized, BlockTypesRefuseRowsTheyCannotHold) {
  const std::vector<float> values(288 * 2, 1.0F);
  try {
    quantize_rows(parse_scheme("q4_k"), values, 2, 288, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unsupported);
    EXPECT_STREQ(error.what(), "q4_k needs rows of a multiple of 256, not 288");
  }
}

TEST(Quantized, EmptyMatrices) {
  for (const char* name : {"int4:g64", "bf16", "fp8_e4m3:128x128", "int8:channel", "mxfp4"}) {
    const QuantizedTensor tensor = quantize_rows(parse_scheme(name), {}, 0, 64, {});
    EXPECT_TRUE(tensor.codes.empty()) << name;
    dequantize_rows(tensor, 0, 0, {});
    const QuantizedTensor narrow = quantize_rows(parse_scheme(name), {}, 4, 0, {});
    dequantize_rows(narrow, 0, 4, {});
  }
}

TEST(Quantized, SizesThatOverflowAreRefused) {
  QuantizedTensor tensor;
  tensor.scheme = parse_scheme("fp32");
  tensor.rows = std::int64_t{1} << 40;
  tensor.cols = std::int64_t{1} << 40;
  EXPECT_THROW(allocate_codes(tensor), Error);
  tensor.cols = (std::int64_t{1} << 21);  // 2^61 values of 4 bytes
  EXPECT_THROW(allocate_codes(tensor), Error);
}

TEST(Stats, PiecesAddUp) {
  std::vector<float> values = normal_values(1000, 6);
  values[300] = std::numeric_limits<float>::quiet_NaN();
  values[700] = -std::numeric_limits<float>::infinity();
  values[10] = -9;
  const TensorStats all = stats_of(values);
  EXPECT_EQ(all.non_finite, 2);
  EXPECT_EQ(all.first_non_finite, 300);
  EXPECT_EQ(all.amax, 9);
  EXPECT_EQ(all.range.low, -9);
  EXPECT_GT(all.range.high, 1);
  TensorStats pieces;
  for (std::size_t at = 0; at < 1000; at += 130) {
    accumulate_stats(pieces, std::span(values).subspan(at, std::min<std::size_t>(130, 1000 - at)),
                     static_cast<std::int64_t>(at));
  }
  EXPECT_EQ(pieces.non_finite, 2);
  EXPECT_EQ(pieces.first_non_finite, 300);
  EXPECT_EQ(pieces.amax, all.amax);
  EXPECT_EQ(pieces.range.low, all.range.low);
  EXPECT_EQ(pieces.range.high, all.range.high);
}

// users.md C02: a row of zeros stays zeros and touches no other row.
TEST(FakeQuantize, RowsAreIndependentAndZeroRowsStayZero) {
  const std::int64_t rows = 6, cols = 80;
  std::vector<float> values = normal_values(rows * cols, 8);
  std::fill(values.begin() + 2 * cols, values.begin() + 3 * cols, 0.0F);
  for (const char* name : {"fp8_e4m3:token", "int8:token", "int4:token:asym", "fp8_e4m3:g32", "mxfp8", "mxfp4"}) {
    const Scheme scheme = parse_scheme(name);
    std::vector<float> all = values;
    fake_quantize_rows(scheme, all, rows, cols);
    for (std::int64_t r = 0; r < rows; ++r) {
      std::vector<float> row(values.begin() + r * cols, values.begin() + (r + 1) * cols);
      fake_quantize_rows(scheme, row, 1, cols);
      EXPECT_TRUE(std::equal(row.begin(), row.end(), all.begin() + r * cols)) << name << ' ' << r;
    }
    for (std::int64_t c = 0; c < cols; ++c) EXPECT_EQ(all[static_cast<std::size_t>(2 * cols + c)], 0.0F) << name;
    double error = 0, power = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      error += std::pow(double{values[i]} - all[i], 2);
      power += std::pow(double{values[i]}, 2);
    }
    EXPECT_GT(error, 0) << name;
    EXPECT_LT(error,
              power * (std::string(name).find('4') != std::string::npos && scheme.element.bits == 4 ? 0.03 : 0.002))
        << name;
  }
}

TEST(FakeQuantize, TokenScalesAreNotRounded) {
  // amax / 127.5 in FP32: BF16 would turn 1.01 / 127.5 into another scale.
  std::vector<float> values = {1.01F, -0.5F, 0.25F, 0.0F};
  const std::vector<float> before = values;
  fake_quantize_rows(parse_scheme("int8:token"), values, 1, 4);
  const float scale = static_cast<float>(1.01F / 127.5);
  for (std::size_t i = 0; i < 4; ++i) {
    const double code = std::min(127.0, std::nearbyint(double{before[i]} / scale));
    EXPECT_EQ(values[i], static_cast<float>(code) * scale);
  }
}

TEST(FakeQuantize, NonFiniteRowsAreLeftVisible) {
  std::vector<float> values = normal_values(4 * 8, 9);
  values[9] = std::numeric_limits<float>::quiet_NaN();
  values[17] = std::numeric_limits<float>::infinity();
  for (const char* name : {"fp8_e4m3:token", "int8:token", "mxfp4", "nvfp4", "int8:tensor"}) {
    std::vector<float> all = values;
    fake_quantize_rows(parse_scheme(name), all, 4, 8);
    EXPECT_TRUE(std::isnan(all[9])) << name;
    EXPECT_TRUE(std::isinf(all[17])) << name;
    for (std::size_t i = 0; i < 8; ++i) EXPECT_TRUE(std::isfinite(all[i]) && std::isfinite(all[24 + i])) << name;
    EXPECT_NE(0, std::memcmp(all.data(), values.data(), 32)) << name;
  }
}

TEST(FakeQuantize, TensorScaleIsThatOfTheCall) {
  std::vector<float> values = normal_values(4 * 8, 10);
  values[3] = 6;
  std::vector<float> all = values;
  const Scheme scheme = parse_scheme("int8:tensor:fp32");
  fake_quantize_rows(scheme, all, 4, 8);
  const ScaleZero sz = choose_scale(scheme, Range{-6, 6});
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i], dequantize_value(scheme, quantize_value(scheme, values[i], sz), sz));
  }
}

}  // namespace
}  // namespace halftone
