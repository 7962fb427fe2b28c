// What a kernel sees of a packed matrix: plain pointers, so that files built with extra instruction sets instantiate
// nothing that another file could share.
//
// A tile is 16 neighbouring output rows, interleaved along K: every vector lane owns an output row, no sum crosses
// lanes, and the order along K is the same for every instruction set. The last tile is padded with rows that decode to
// zero. A tile's codes are its segments one after the other; a segment is a whole number of blocks (see Storage).
#pragma once

#include <cstdint>

#include "base/cpu.h"

namespace halftone::matmul_detail {

inline constexpr int kTileRows = 16;

// How codes lie in memory, r = 0..15 being the lane, and what they decode to ("w", an FP32 number that is exact).
enum class Storage : std::uint8_t {
  fp32,          // a block is 1 k: [16] FP32
  bf16,          // 1 k: [16] BF16
  fp16,          // 1 k: [16] FP16
  fp8_e4m3,      // 1 k: [16] bytes, sign, 4 exponent bits, 3 mantissa bits, no special codes: the FP16 number with
                 // these bits in place, which is 2^-8 of the value at bias 7
  fp8_e3m4,      // 1 k: likewise with 3 exponent bits and 4 mantissa bits: 2^-12 of the value at bias 3
  fp8_e5m2,      // 1 k: [16] bytes, the top byte of the FP16 number
  int8,          // 1 k: [16] signed bytes
  table8,        // 1 k: [16] bytes, w = table[byte], 256 FP32 entries
  table4_fp16,   // 4 k: [k0,k2][16] bytes, low nibble k0 (k2), high nibble k1 (k3); w = table[nibble], exact in FP16
  table4_fp32,   // 4 k: as table4_fp16, any 16 FP32 entries
  int8_by_int8,  // 2 k: [16][k0,k1] signed bytes, against INT8 activations
  int4_by_int8   // 4 k: [16][2] bytes, low nibbles k0,k1, high nibbles k2,k3; table of 16 signed bytes
};
inline constexpr int kStorageCount = 12;

struct StorageFacts {
  const char* name;
  int block_k;       // elements of K in a block
  int block_bytes;   // of 16 rows
  bool integer;      // multiplies INT8 codes of x, sums in int32
  const char* covers;
};
const StorageFacts& storage_facts(Storage storage);

// A run of K with one scale (a group, or a piece of at most kSegment of it).
struct Segment {
  std::int64_t k = 0;        // first element
  std::int64_t x = 0;        // where x of this segment begins: k, or for integer kernels an even (padded) position
  std::int32_t length = 0;   // elements
  std::int32_t blocks = 0;   // ceil(length / block_k)
};

enum class ScaleFormat : std::uint8_t { one, fp32, bf16, fp16 };

struct ScaleView {
  const std::uint8_t* data = nullptr;  // [tile][segment][16]
  ScaleFormat format = ScaleFormat::one;
};

struct MatrixView {
  const std::uint8_t* codes = nullptr;
  std::int64_t tile_bytes = 0;
  const Segment* segments = nullptr;
  std::int64_t segment_count = 0;
  ScaleView scales;
  ScaleView minimums;      // format one: there are none
  float unit = 1.0F;       // power of two: value of a code = w * unit
  const float* table = nullptr;              // 256 or 16 entries
  const std::uint8_t* table_bytes = nullptr; // [0,16): low bytes of the FP16 entries; [16,32): high bytes; or 16 int8
};

// x is FP32 (or int16 copies of INT8 codes for integer kernels), cut as the segments say. y is [16] a tile and row,
// the sum over segments of fma(scale, unit * acc, y), then fma(minimum, x_sum, y).
struct MatmulKernel {
  Storage storage;
  Isa isa;
  int micro_tiles;  // tiles that `micro` takes at once at most
  int micro_rows;   // rows of its register tile
  // One row of x against `tiles` tiles: y[tiles][16] is written.
  void (*vector)(const MatrixView&, std::int64_t tile, std::int64_t tiles, const void* x, const float* x_sums,
                 float* y);
  // Decodes segments [first, last) of a tile to panel [k][16] (FP32) or [k/2][16][2] (int16).
  void (*panel)(const MatrixView&, std::int64_t tile, std::int64_t first, std::int64_t last, void* panel);
  // `rows` rows of x (ldx elements apart) against the panels of `tiles` tiles (panel_stride bytes apart); adds to
  // y[row][tiles][16]. x_sums: [row][ld_sums], by segment.
  void (*micro)(const MatrixView&, std::int64_t tile, int tiles, std::int64_t first, std::int64_t last,
                const void* panel, std::int64_t panel_stride, const void* x, std::int64_t ldx, std::int64_t rows,
                const float* x_sums, std::int64_t ld_sums, float* y);
};

struct KernelTable {
  const MatmulKernel* kernels;
  int count;
};

}  // namespace halftone::matmul_detail

namespace halftone::scalar {
matmul_detail::KernelTable matmul_table();
}
namespace halftone::avx2 {
matmul_detail::KernelTable matmul_table();
}
namespace halftone::avx512 {
matmul_detail::KernelTable matmul_table();
}
