#include "kernels/matmul/matmul.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>

#include "base/error.h"
#include "base/integer.h"
#include "kernels/matmul/packed.h"

namespace halftone {
namespace {

constexpr std::int64_t kFewRows = 4;     // up to here weights are decoded where they are used
constexpr std::int64_t kRowBlock = 256;  // rows of x that one task takes in prefill: weights are decoded once for them
constexpr std::int64_t kTilesATask = 8;
constexpr std::int64_t kSerialBytes = 24 << 10;  // about 2 microseconds of weights: less than waking a thread

// Sums of x over each segment, for the minimums of asymmetric groups: eight partial sums by position, folded.
std::vector<float> sum_segments(const Activations& x, std::int64_t segment, std::int64_t segments, ThreadPool& pool) {
  std::vector<float> sums(static_cast<std::size_t>(x.rows() * segments));
  pool.run_ranges(x.rows(), 8, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
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
  });
  return sums;
}

// INT8 codes in int16, segments padded to whole steps, the K positions of a step in the order of the weights' kind.
std::vector<std::int16_t> widen_codes(const Activations& x, const KindInfo& kind, std::int64_t segment,
                                      std::int64_t padded, ThreadPool& pool) {
  const std::int64_t segments = ceil_div(x.cols(), segment), stride = padded * segments;
  std::vector<std::int16_t> wide(static_cast<std::size_t>(x.rows() * stride));
  pool.run_ranges(x.rows(), 8, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::int64_t s = 0; s < segments; ++s) {
        const std::int8_t* from = x.codes() + r * x.cols() + s * segment;
        const std::int64_t length = std::min(segment, x.cols() - s * segment);
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

// x for codes that are decoded in place (KindInfo::place).
std::vector<float> place_values(const Activations& x, const KindInfo& kind, std::int64_t segment, ThreadPool& pool) {
  const std::array<float, 8>& place = kind.place;
  std::vector<float> placed(static_cast<std::size_t>(x.rows() * x.cols()));
  pool.run_ranges(x.rows(), 8, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::int64_t k0 = 0; k0 < x.cols(); k0 += segment) {
        const std::int64_t length = std::min(segment, x.cols() - k0);
        const float* from = x.values() + r * x.cols() + k0;
        float* to = placed.data() + r * x.cols() + k0;
        std::int64_t k = 0;
        for (; k + 8 <= length; k += 8) {
          for (int i = 0; i < 8; ++i) to[k + i] = from[k + i] * place[static_cast<std::size_t>(i)];
        }
        for (; k < length; ++k) to[k] = from[k] * place[static_cast<std::size_t>(k % 8)];
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

namespace {

// x in the form that the kernels of a kind of weights read; products with the same kind and segments share it.
struct Input {
  WeightKind kind;
  bool integer, summed;
  std::int64_t segment;
  std::vector<float> sums, placed;
  std::vector<std::int16_t> wide;

  explicit Input(const PackedMatrix::Data& d)
      : kind(d.kind),
        integer(d.integer),
        summed(d.offset != 0.0F || d.minimum != MinimumKind::none),
        segment(d.segment) {}
  bool same_form(const Input& other) const {
    return kind == other.kind && integer == other.integer && summed == other.summed && segment == other.segment;
  }
  std::int64_t padded_segment() const { return round_up(segment, kind_info(kind).step); }

  void prepare(const Activations& x, ThreadPool& pool) {
    const std::int64_t segments = ceil_div(x.cols(), segment);
    if (summed) sums = sum_segments(x, segment, segments, pool);
    if (integer) {
      wide = widen_codes(x, kind_info(kind), segment, padded_segment(), pool);
    } else if (kind_info(kind).place[0] != 0.0F) {
      placed = place_values(x, kind_info(kind), segment, pool);
    }
  }
};

const Input& input_for(const PackedMatrix::Data& d, const Activations& x, std::vector<std::unique_ptr<Input>>& inputs,
                       ThreadPool& pool) {
  auto wanted = std::make_unique<Input>(d);
  for (const std::unique_ptr<Input>& input : inputs) {
    if (input->same_form(*wanted)) return *input;
  }
  wanted->prepare(x, pool);
  return *inputs.emplace_back(std::move(wanted));
}

struct Job {
  ProductArgs args{};
  ProductFunction run = nullptr;
  std::int64_t tiles = 0, tile_bytes = 0;

  Job(const Product& product, const Activations& x, const Input& input) {
    const PackedMatrix::Data& d = product.w->data();
    args.w = d.view();
    args.x = input.placed.empty() ? x.values() : input.placed.data();
    args.ldx = x.cols();
    if (input.summed) args.segment_sums = input.sums.data();
    if (d.integer) {
      args.x16 = input.wide.data();
      args.x16_segment = input.padded_segment();
      args.x16_step = kind_info(d.kind).step;
      args.ldx16 = args.x16_segment * d.segments;
    }
    args.row_scales = x.row_scales();
    args.bias = product.bias;
    args.y = product.y;
    args.ldy = product.ldy;
    args.m = x.rows();
    tiles = d.tiles;
    tile_bytes = d.tile_bytes;
    run = (d.integer ? d.kernels->integer : d.kernels->product)[static_cast<int>(d.kind)];
  }

  void block(std::int64_t first_tile, std::int64_t last_tile, std::int64_t first_row, std::int64_t last_row) const {
    ProductArgs mine = args;
    mine.first_tile = first_tile;
    mine.last_tile = last_tile;
    mine.first_row = first_row;
    mine.last_row = last_row;
    run(mine);
  }
};

}  // namespace

void matmul(std::span<const Product> products, const Activations& x, ThreadPool& pool, const AfterBlock& after) {
  if (x.rows() == 0 || products.empty()) return;
  std::vector<std::unique_ptr<Input>> inputs;
  std::vector<Job> jobs;
  jobs.reserve(products.size());
  std::int64_t tiles = 0, bytes = 0;
  for (const Product& product : products) {
    HT_CHECK(!after || product.w->rows() == products[0].w->rows());
    const PackedMatrix::Data& d = product.w->data();
    HT_CHECK(x.cols() == d.cols && x.scheme() == d.activations && product.ldy >= d.rows);
    const Job& job = jobs.emplace_back(product, x, input_for(d, x, inputs, pool));
    tiles += job.tiles;
    bytes += job.tiles * job.tile_bytes;
  }
  const std::int64_t m = x.rows(), cols = products[0].w->rows();
  if (after) tiles = jobs[0].tiles;  // all products of a block by the same worker
  const auto part = [&](std::int64_t first, std::int64_t last, std::int64_t first_row, std::int64_t last_row) {
    if (after) {
      for (const Job& job : jobs) job.block(first, last, first_row, last_row);
      after(first_row, last_row, first * kTileRows, std::min(cols, last * kTileRows));
      return;
    }
    std::int64_t start = 0;  // of a job's tiles in the row of all tiles
    for (const Job& job : jobs) {
      const std::int64_t begin = std::max(first - start, std::int64_t{0}), end = std::min(last - start, job.tiles);
      if (begin < end) job.block(begin, end, first_row, last_row);
      start += job.tiles;
    }
  };
  if (m <= kFewRows) {
    if (bytes < kSerialBytes) return part(0, tiles, 0, m);
    pool.run_ranges(tiles, 2, [&](std::int64_t first, std::int64_t last, int) { part(first, last, 0, m); });
    return;
  }
  const std::int64_t tile_blocks = ceil_div(tiles, kTilesATask), row_blocks = ceil_div(m, kRowBlock);
  pool.run(tile_blocks * row_blocks, [&](std::int64_t task, int) {
    const std::int64_t tile = task % tile_blocks * kTilesATask, row = task / tile_blocks * kRowBlock;
    part(tile, std::min(tiles, tile + kTilesATask), row, std::min(m, row + kRowBlock));
  });
}

void matmul(const PackedMatrix& w, const Activations& x, const float* bias, float* y, std::int64_t ldy,
            ThreadPool& pool) {
  const Product product{&w, bias, y, ldy};
  matmul(std::span(&product, 1), x, pool);
}

double measure_fp32_peak(ThreadPool& pool, Isa isa) {
  constexpr std::int64_t kSteps = 2'000'000;
  const KernelSet& kernels = kernel_set(isa);
  double best = 0;
  std::atomic<float> sink{0};
  for (int run = 0; run < 5; ++run) {
    const auto start = std::chrono::steady_clock::now();
    pool.run(pool.size(), [&](std::int64_t, int) { sink = kernels.multiply_add_chains(kSteps); });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, static_cast<double>(pool.size()) * kSteps * kChainFlops / seconds);
  }
  return best;
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
      if (set.product[kind] != nullptr)
        list.push_back({std::string(info.name), isa, isa <= best, std::string(info.covers)});
      if (set.integer[kind] != nullptr) {
        list.push_back(
            {std::string(info.name) + "_int8", isa, isa <= best, std::string(info.covers) + ", with int8 activations"});
      }
    }
  }
  return list;
}

}  // namespace halftone
