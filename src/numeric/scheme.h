// A scheme says how a matrix is coded: element format, granularity, scale format, symmetry. It is one string, parts in
// any order after the first: int4:g128, int4:g64:asym, fp8_e4m3:channel, fp8_e4m3:128x128, fp8_e4m3:token,
// fp4_e2m1:g32:e8m0 (= mxfp4), fp4_e2m1:g16:e4m3 (= nvfp4), bf16, q4_k. Words are case-insensitive.
// Without a granularity: 16-bit and wider floats are plain numbers, nf4 has groups of 64, mxint8 is OCP's (g32:e8m0),
// all others have one scale a row (channel). `e4m3` scales are two-level unless `one_level` is said; bf16 scales are
// default. q8_0 is GGUF's block type (scale amax/127); int8:g32:fp16 has the same layout, but amax/127.5 as its scale.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "numeric/format.h"
#include "numeric/ggml.h"

namespace halftone {

enum class Granularity : std::uint8_t {
  none,     // no scale: fp32, bf16, fp16, or any float format cast as it is ("fp8_e4m3:none")
  tensor,   // one scale a matrix
  channel,  // one scale an output row (weights)
  token,    // one scale a row of activations, computed when they are there
  group,    // one scale for `group` neighbours along the row; the last group of a row may be short
  block     // one scale for a tile of block_rows x block_cols; edge tiles may be partial
};

// How a power-of-two (E8M0) scale is chosen from amax (shared/formats.md 2.1).
enum class ScaleRule : std::uint8_t {
  floor,     // 2^(floor(log2 amax) - emax): OCP's example; can clip the largest element
  ceil,      // 2^ceil(log2(amax / element max)): never clips; the default
  ct_round,  // compressed-tensors: amax rounded to few mantissa bits, then floor
  search     // of ceil's and the power below, the one with the smaller squared error over the block
};

struct Scheme {
  ElementFormat element = fp32_format();
  Granularity granularity = Granularity::none;
  std::int64_t group = 0;                       // granularity group
  std::int64_t block_rows = 0, block_cols = 0;  // granularity block
  ElementFormat scale = bf16_format();          // fp32, bf16 (default), fp16, e8m0, fp8_e4m3
  bool symmetric = true;                        // false: integer zero points (int elements only)
  bool two_level = false;                       // an FP32 scale a tensor above the block scales (scale fp8_e4m3)
  ScaleRule scale_rule = ScaleRule::ceil;       // scale e8m0
  std::optional<GgmlType> ggml;                 // a GGUF block type; then only `ggml` says the layout

  friend bool operator==(const Scheme&, const Scheme&) = default;

  bool is_dense() const { return !ggml && granularity == Granularity::none; }  // plain numbers, no scales
};

// Error(usage) that says which part is wrong and what would be right. Accepts the aliases that name one weight scheme:
// mxfp4, mxfp6 (= mxfp6_e2m3), mxfp6_e3m2, mxfp8 (= mxfp8_e4m3), mxfp8_e5m2, nvfp4, and GGUF block types (q4_k;
// ggml_mxfp4 and ggml_nvfp4 where the bare name means the plain layout). Parts after an alias change it: `mxfp4:floor`,
// `mxfp4:g16`.
Scheme parse_scheme(std::string_view text);
// Canonical; parse_scheme(to_string(s)) == s. An alias where one says it all (mxfp4, mxfp4:floor, nvfp4, mxfp6_e2m3),
// else element:granularity[:scale][:levels][:rule][:asym].
std::string to_string(const Scheme& scheme);

// What `--to` accepts: a weight scheme and, for the W?A? presets, an activation scheme for the linear layers.
struct SchemePair {
  Scheme weights;
  std::optional<Scheme> activations;  // nullopt: full precision
};
// FP8 / fp8 / FP8_DYNAMIC (fp8_e4m3:channel + fp8_e4m3:token), FP8_BLOCK (128x128 + 1x128 = fp8_e4m3:g128), W8A8 / a8w8
// (int8:channel + int8:token), W4A16 (int4:g128), W8A16, wint8, wint4, INT4_SYM, MXFP4/6/8, NVFP4 (weight-only; with
// activations: NVFP4A4, MXFP8A8), Q8_0, Q4_K_M, bf16, ...; else parse_scheme.
SchemePair parse_scheme_or_alias(std::string_view text);
std::vector<std::string> scheme_alias_names();

// Sizes of a [rows, cols] matrix under the scheme.
struct SchemeShape {
  std::int64_t scale_rows = 0, scale_cols = 0;  // 0: no scales
};
SchemeShape scale_shape(const Scheme& scheme, std::int64_t rows, std::int64_t cols);
// Bytes of codes (rows packed to whole bytes), scales, zero points; what the native output file will hold.
std::int64_t scheme_bytes(const Scheme& scheme, std::int64_t rows, std::int64_t cols);
double bits_per_weight(const Scheme& scheme, std::int64_t rows, std::int64_t cols);

// nullopt if the scheme can code rows of `cols` values; else the reason ("q4_k needs rows of a multiple of 256, not
// 576").
std::optional<std::string> scheme_refusal(const Scheme& scheme, std::int64_t rows, std::int64_t cols);

}  // namespace halftone
