// Inside kernels/matmul only: the packed layout, the arguments of a kernel, and the table of kernels.
//
// Layout. A tile is 16 output rows interleaved along K, so that each vector lane owns one output. K is cut into
// segments; a segment holds ceil(length / step) steps (a step: some K positions of 16 rows), then its trailer: 16
// scales, then 16 zero points or minimums. With one scale a row the only trailer stands at the end of the tile. So a
// product reads a tile as one stream.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/cpu.h"
#include "kernels/matmul/matmul.h"

namespace halftone {

inline constexpr std::int64_t kTileRows = 16;
inline constexpr std::int64_t kLongestPanel = 1024;   // K positions decoded at once in prefill (64 KiB of FP32)
inline constexpr std::int64_t kIntegerSegment = 512;  // 512 * 255 * 128 < 2^24: sums stay exact in FP32

// How codes are stored; what a kernel has to decode.
enum class WeightKind : std::uint8_t {
  f32,
  bf16,
  f16,
  e4m3,  // byte; decoded as value * 2^-8 (an FP16 with the exponent field as it is), the factor is in the scale
  e5m2,  // byte: the top half of an FP16
  i8,    // byte: signed integer
  lut8,  // byte: index into 256 FP32 values
  n4i,   // [16 rows][4 bytes], 8 K positions: byte j holds j (low nibble) and j + 4; index into 16 unsigned bytes.
         // decoded in place, byte j as value * 256^j (256^3: shifted down instead): x is multiplied by 256^-j before
  n4u,   // as n4i, the nibble is the number itself; in place: value * 256^j (low nibbles), value * 16 * 256^j (high
         // ones)
  n4f,   // two K positions a byte: index into 16 FP32 values
  i8x4,  // [16 rows][4 bytes], 4 K positions, offset binary (code + 128): for integer products only
};
inline constexpr int kWeightKinds = 11;

struct KindInfo {
  std::string_view name;
  int step;        // K positions that lie together
  int step_bytes;  // bytes of a step of 16 rows
  std::string_view covers;
  // What x is multiplied by, by K position within a step, because codes are decoded in place; all zero: nothing.
  std::array<float, 8> place{};
  std::array<std::uint8_t, 8> order{};  // integer kernels: which K position of a step each element of x16 is
};
const KindInfo& kind_info(WeightKind kind);

enum class ScaleFormat : std::uint8_t { none, f32, bf16, f16, e8m0, e4m3 };
enum class MinimumKind : std::uint8_t { none, zero_point, f32 };  // zero_point: a signed byte, of the stored codes

// Plain data, so that files with their own instruction-set flags need no other header's inline code.
struct WeightView {
  const std::byte* codes;
  const float* table;           // lut8: 256, n4f: 16
  const std::uint8_t* table16;  // n4i
  std::int64_t rows, cols, segment, segments, segment_bytes, tile_bytes, trailer_bytes;
  float unit;    // multiplies every scale
  float offset;  // what stored codes are too large by, where there are no zero points
  ScaleFormat scale;
  MinimumKind minimum;
  bool scale_at_end;  // one scale a row: the bare sums are added, the scale multiplies once
};

struct ProductArgs {
  WeightView w;
  const float* x;             // [m, ldx]
  const std::int16_t* x16;    // [m, ldx16], integer kernels: segments padded to whole steps, in KindInfo's order
  std::int64_t x16_segment;   // elements of a padded segment
  std::int64_t x16_step;      // elements of a step
  const float* segment_sums;  // [m, segments] of x, where stored codes have an offset, zero points or minimums
  const float* row_scales;    // [m] or nullptr
  const float* bias;          // [rows] or nullptr
  float* y;                   // [m, ldy]
  std::int64_t m, ldx, ldx16, ldy;
  std::int64_t first_tile, last_tile, first_row, last_row;  // the part to compute
};

inline constexpr std::int64_t kChainFlops = 12 * 16 * 2;

using ProductFunction = void (*)(const ProductArgs&);

// The kernels of an instruction set, by kind; nullptr where there is none. `integer` for i8x4, n4i and n4u with INT8
// activations.
struct KernelSet {
  ProductFunction product[kWeightKinds];
  ProductFunction integer[kWeightKinds];
  float (*multiply_add_chains)(std::int64_t steps);  // kChainFlops FP32 operations a step
};
namespace scalar {
const KernelSet& kernels();
}
namespace avx2 {
const KernelSet& kernels();
}
namespace avx512 {
const KernelSet& kernels();
}
const KernelSet& kernel_set(Isa isa);

struct PackedMatrix::Data {
  Scheme scheme;
  std::optional<Scheme> activations;
  Isa isa = Isa::scalar;
  const KernelSet* kernels = nullptr;  // of that instruction set
  WeightKind kind = WeightKind::f32;
  bool integer = false;  // runs the integer kernels
  std::int64_t rows = 0, cols = 0, tiles = 0;
  std::int64_t segment = 0, segments = 0, segment_bytes = 0, tile_bytes = 0;
  bool scale_at_end = false;
  float factor = 1.0F;    // a power of two that the codes lack
  float global = 1.0F;    // second level of two-level scales
  bool any_rows = false;  // global is known
  float offset = 0.0F;
  ScaleFormat scale = ScaleFormat::none;
  MinimumKind minimum = MinimumKind::none;
  std::shared_ptr<std::byte[]> codes;
  std::vector<float> table;
  std::vector<std::uint8_t> table16;
  std::vector<std::uint8_t> transcode;  // 256 entries: element code byte -> stored byte (nibble)
  std::vector<bool> refused;            // 256 entries: codes that are NaN or infinite

  std::int64_t trailer_bytes() const;  // of 16 rows
  std::byte* trailer(std::int64_t tile, std::int64_t segment) const;
  WeightView view() const;
};

}  // namespace halftone
