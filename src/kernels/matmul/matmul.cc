#include "kernels/matmul/matmul.h"

#include <algorithm>

#include "base/error.h"
#include "base/integer.h"
#include "kernels/matmul/packed.h"

namespace halftone {
namespace {

constexpr std::int64_t kFewRows = 4;         // up to here weights are decoded where they are used
constexpr std::int64_t kRowBlock = 192;      // rows of x that one task takes in prefill
constexpr std::int64_t kTilesATask = 8;
constexpr std::int64_t kSerialBytes = 24 << 10;  // about 2 microseconds of weights: less than waking a thread

// Sums of x over each segment, for the minimums of asymmetric groups: eight partial sums by position, folded.
std::vector<float> sum_segments(const Activations& x, std::int64_t segment, std::int64_t segments) {
  std::vector<float> sums(static_cast<std::size_t>(x.rows() * segments));
  for (std::int64_t r = 0; r < x.rows(); ++r) {
    for (std::int64_t s = 0; s < segments; ++s) {
      const float* at = x.values() + r * x.cols() + s * segment;
      const std::int64_t length = std::min(segment, x.cols() - s * segment);
      float part[8] = {};
      std::int64_t k = 0;
      for (; k + 8 <= length; k += 8) {
        for (int i = 0; i < 8; ++i) part[i] += at[k + i];
      }
      for (; k < length; ++k) part[k % 8] += at[k];
      sums[static_cast<std::size_t>(r * segments + s)] =
          ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
    }
  }
  return sums;
}

// INT8 codes in int16, segments padded to whole steps, the K positions of a step in the order of the weights' kind.
std::vector<std::int16_t> widen_codes(const Activations& x, const PackedMatrix::Data& d, std::int64_t padded, ThreadPool& pool) {
  const KindInfo& kind = kind_info(d.kind);
  const std::int64_t stride = padded * d.segments;
  std::vector<std::int16_t> wide(static_cast<std::size_t>(x.rows() * stride));
  pool.run_ranges(x.rows(), 8, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::int64_t s = 0; s < d.segments; ++s) {
        const std::int8_t* from = x.codes() + r * x.cols() + s * d.segment;
        const std::int64_t length = std::min(d.segment, x.cols() - s * d.segment);
        std::int16_t* to = wide.data() + r * stride + s * padded;
        for (std::int64_t k = 0; k < length; k += kind.step, to += kind.step) {
          for (int i = 0; i < kind.step; ++i) {
            const std::int64_t at = k + kind.order[static_cast<std::size_t>(i)];
            to[i] = at < length ? from[at] : std::int16_t{0};
          }
        }
      }
    }
  });
  return wide;
}

// x for codes that are decoded in place (WeightKind::n4i).
std::vector<float> place_values(const Activations& x, std::int64_t segment, ThreadPool& pool) {
  constexpr float kPlace[8] = {1.0F, 1.0F, 0x1p-8F, 0x1p-8F, 0x1p-16F, 0x1p-16F, 1.0F, 1.0F};
  std::vector<float> placed(static_cast<std::size_t>(x.rows() * x.cols()));
  pool.run_ranges(x.rows(), 8, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::int64_t k0 = 0; k0 < x.cols(); k0 += segment) {
        const std::int64_t length = std::min(segment, x.cols() - k0);
        const float* from = x.values() + r * x.cols() + k0;
        float* to = placed.data() + r * x.cols() + k0;
        std::int64_t k = 0;
        for (; k + 8 <= length; k += 8) {
          for (int i = 0; i < 8; ++i) to[k + i] = from[k + i] * kPlace[i];
        }
        for (; k < length; ++k) to[k] = from[k] * kPlace[k % 8];
      }
    }
  });
  return placed;
}

}  // namespace

const KernelSet& kernel_set(Isa isa) {
#ifdef HALFTONE_SIMD
  if (isa == Isa::avx512) return avx512::kernels();
  if (isa == Isa::avx2) return avx2::kernels();
#endif
  (void)isa;
  return scalar::kernels();
}

void matmul(const PackedMatrix& w, const Activations& x, const float* bias, float* y, std::int64_t ldy, ThreadPool& pool) {
  const PackedMatrix::Data& d = w.data();
  HT_CHECK(x.cols() == d.cols && x.scheme() == d.activations && ldy >= d.rows);
  if (x.rows() == 0) return;
  ProductArgs args{};
  args.w = d.view();
  args.x = x.values();
  args.ldx = x.cols();
  args.row_scales = x.row_scales();
  args.bias = bias;
  args.y = y;
  args.ldy = ldy;
  args.m = x.rows();
  std::vector<float> sums;
  if (d.offset != 0.0F || d.minimum != MinimumKind::none) {
    sums = sum_segments(x, d.segment, d.segments);
    args.segment_sums = sums.data();
  }
  std::vector<std::int16_t> wide;
  if (d.integer) {
    args.x16_segment = ceil_div(d.segment, kind_info(d.kind).step) * kind_info(d.kind).step;
    args.ldx16 = args.x16_segment * d.segments;
    wide = widen_codes(x, d, args.x16_segment, pool);
    args.x16 = wide.data();
  }
  std::vector<float> placed;
  if (d.kind == WeightKind::n4i && !d.integer) {
    placed = place_values(x, d.segment, pool);
    args.x = placed.data();
  }
  const KernelSet& set = kernel_set(d.isa);
  const ProductFunction product = d.integer ? set.integer[static_cast<int>(d.kind)] : set.product[static_cast<int>(d.kind)];
  if (args.m <= kFewRows) {
    const auto part = [&](std::int64_t first, std::int64_t last, int) {
      ProductArgs mine = args;
      mine.first_tile = first;
      mine.last_tile = last;
      mine.last_row = args.m;
      product(mine);
    };
    if (d.tiles * d.tile_bytes < kSerialBytes) {
      part(0, d.tiles, 0);
    } else {
      pool.run_ranges(d.tiles, 2, part);
    }
    return;
  }
  const std::int64_t tile_blocks = (d.tiles + kTilesATask - 1) / kTilesATask;
  const std::int64_t row_blocks = (args.m + kRowBlock - 1) / kRowBlock;
  pool.run(tile_blocks * row_blocks, [&](std::int64_t task, int) {
    const std::int64_t tile = task % tile_blocks * kTilesATask, row = task / tile_blocks * kRowBlock;
    ProductArgs mine = args;
    mine.first_tile = tile;
    mine.last_tile = std::min(d.tiles, tile + kTilesATask);
    mine.first_row = row;
    mine.last_row = std::min(args.m, row + kRowBlock);
    product(mine);
  });
}

std::vector<MatmulKernelInfo> matmul_kernels() {
  std::vector<MatmulKernelInfo> list;
  const Isa best = select_isa(detect_cpu(), std::nullopt, Isa::avx512).isa;
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) {
#ifndef HALFTONE_SIMD
    if (isa != Isa::scalar) continue;
#endif
    const KernelSet& set = kernel_set(isa);
    for (int kind = 0; kind < kWeightKinds; ++kind) {
      const KindInfo& info = kind_info(static_cast<WeightKind>(kind));
      if (set.product[kind] != nullptr) list.push_back({std::string(info.name), isa, isa <= best, std::string(info.covers)});
      if (set.integer[kind] != nullptr) {
        list.push_back({std::string(info.name) + "_int8", isa, isa <= best, std::string(info.covers) + ", with int8 activations"});
      }
    }
  }
  return list;
}

}  // namespace halftone
