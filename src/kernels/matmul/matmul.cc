#include "kernels/matmul/matmul.h"

#include <algorithm>

#include "base/error.h"
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

std::vector<std::int16_t> widen_codes(const Activations& x, std::int64_t segment, std::int64_t segments, std::int64_t& stride) {
  const std::int64_t padded = (segment + 1) / 2 * 2;
  stride = padded * segments;
  std::vector<std::int16_t> wide(static_cast<std::size_t>(x.rows() * stride));
  for (std::int64_t r = 0; r < x.rows(); ++r) {
    for (std::int64_t s = 0; s < segments; ++s) {
      const std::int8_t* from = x.codes() + r * x.cols() + s * segment;
      std::copy(from, from + std::min(segment, x.cols() - s * segment), wide.begin() + r * stride + s * padded);
    }
  }
  return wide;
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
  if (!d.minimums.empty()) {
    sums = sum_segments(x, d.segment, d.segments);
    args.segment_sums = sums.data();
  }
  std::vector<std::int16_t> wide;
  if (d.integer) {
    wide = widen_codes(x, d.segment, d.segments, args.ldx16);
    args.x16 = wide.data();
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
