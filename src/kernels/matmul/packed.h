// Inside kernels/matmul only: the packed layout, the arguments of a kernel, and the table of kernels.
//
// Layout. A tile is 16 output rows interleaved along K, so that each vector lane owns one output. K is cut into segments;
// a segment holds ceil(length / step) steps of 16 codes each (step = 2 for kinds that keep two K positions together).
#pragma once

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
inline constexpr std::int64_t kLongestPanel = 1024;    // K positions decoded at once in prefill (64 KiB of FP32)
inline constexpr std::int64_t kIntegerSegment = 1024;  // 1024 * 128 * 128 = 2^24: sums stay exact in FP32

// How codes are stored; what a kernel has to decode.
enum class WeightKind : std::uint8_t {
  f32,
  bf16,
  f16,
  e4m3,   // byte; decoded as value * 2^-8 (an FP16 with the exponent field as it is), the factor is in the scale
  e5m2,   // byte: the top half of an FP16
  i8,     // byte: signed integer
  lut8,   // byte: index into 256 FP32 values
  n4i,    // two K positions a byte (low nibble first): index into 16 signed bytes
  n4f,    // two K positions a byte: index into 16 FP32 values
  i8x2,   // two K positions side by side, for integer products: byte pairs
};
inline constexpr int kWeightKinds = 10;

struct KindInfo {
  std::string_view name;
  int step;        // K positions that lie together
  int step_bytes;  // bytes of a step of 16 rows
  std::string_view covers;
};
const KindInfo& kind_info(WeightKind kind);

// Plain data, so that files with their own instruction-set flags need no other header's inline code.
struct WeightView {
  const std::byte* codes;
  const float* scales;     // [tile][scale_segments][16], nullptr: all 1
  const float* minimums;   // the same shape, or nullptr
  const float* table;      // lut8: 256, n4f: 16
  const std::int8_t* table16;
  std::int64_t rows, cols, segment, segments, segment_bytes, tile_bytes;
  bool scale_at_end;       // one scale a row: the bare sums are added, the scale multiplies once
};

struct ProductArgs {
  WeightView w;
  const float* x;             // [m, ldx]
  const std::int16_t* x16;    // [m, ldx16], integer kernels: segments padded to an even length
  const float* segment_sums;  // [m, segments], where the weights have minimums
  const float* row_scales;    // [m] or nullptr
  const float* bias;          // [rows] or nullptr
  float* y;                   // [m, ldy]
  std::int64_t m, ldx, ldx16, ldy;
  std::int64_t first_tile, last_tile, first_row, last_row;  // the part to compute
};

using ProductFunction = void (*)(const ProductArgs&);

// The kernels of an instruction set, by kind; nullptr where there is none. `integer` for i8x2 and n4i with INT8 activations.
struct KernelSet {
  ProductFunction product[kWeightKinds];
  ProductFunction integer[kWeightKinds];
};
namespace scalar { const KernelSet& kernels(); }
namespace avx2 { const KernelSet& kernels(); }
namespace avx512 { const KernelSet& kernels(); }
const KernelSet& kernel_set(Isa isa);

struct FreeAligned {
  void operator()(void* p) const;
};

struct PackedMatrix::Data {
  Scheme scheme;
  std::optional<Scheme> activations;
  Isa isa = Isa::scalar;
  WeightKind kind = WeightKind::f32;
  bool integer = false;        // runs the integer kernels
  std::int64_t rows = 0, cols = 0, tiles = 0;
  std::int64_t segment = 0, segments = 0, segment_bytes = 0, tile_bytes = 0;
  bool scale_at_end = false, float_minimum = false;  // float_minimum: GGUF's, not -zero * scale
  float factor = 1.0F;         // a power of two that the codes lack
  std::unique_ptr<std::byte[], FreeAligned> codes;
  std::vector<float> scales, minimums, table;
  std::vector<std::int8_t> table16;
  std::vector<std::uint8_t> transcode;  // 256 entries: element code byte -> stored byte (nibble)
  std::vector<bool> refused;            // 256 entries: codes that are NaN or infinite

  std::int64_t scale_segments() const { return scale_at_end ? 1 : segments; }
  WeightView view() const;
};

}  // namespace halftone
