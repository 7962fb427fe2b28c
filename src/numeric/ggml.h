// The block layouts of GGUF/ggml files (shared/formats.md 2.6), decoded and encoded bit for bit as the reference does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace halftone {

// Values are the type ids of GGUF files.
enum class GgmlType : std::uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q8_1 = 9,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  q8_k = 15,
  iq2_xxs = 16,
  iq2_xs = 17,
  iq3_xxs = 18,
  iq1_s = 19,
  iq4_nl = 20,
  iq3_s = 21,
  iq2_s = 22,
  iq4_xs = 23,
  i8 = 24,
  i16 = 25,
  i32 = 26,
  i64 = 27,
  f64 = 28,
  iq1_m = 29,
  bf16 = 30,
  tq1_0 = 34,
  tq2_0 = 35,
  mxfp4 = 39,
  nvfp4 = 40,
  q1_0 = 41,
  q2_0 = 42
};

struct GgmlTypeInfo {
  GgmlType type;
  std::string_view name;  // "q4_k"
  int block_elements;     // values a block
  int block_bytes;
  bool can_decode;  // false: codebook types that are only recognised (IQ2, IQ3, IQ1)
  bool can_encode;
};

std::span<const GgmlTypeInfo> ggml_types();
const GgmlTypeInfo* find_ggml_type(std::uint32_t id);       // nullptr: unknown or removed id
const GgmlTypeInfo* find_ggml_type(std::string_view name);  // case-insensitive
const GgmlTypeInfo& ggml_info(GgmlType type);

// blocks.size() must be values.size() / block_elements * block_bytes. Error(unsupported) where the type cannot be
// decoded or encoded. Encoding expects finite values: what it writes for NaN and infinities is unspecified (but
// defined).
void ggml_decode(GgmlType type, std::span<const std::byte> blocks, std::span<float> values);
void ggml_encode(GgmlType type, std::span<const float> values, std::span<std::byte> blocks);

// A block type seen as affine groups: value = scale * code + minimum, so that one kernel family serves all of them.
// Codes are signed bytes (for the codebook types IQ4_NL and IQ4_XS the entry; for FP4 twice the value, with half the
// scale).
struct GgmlAffine {
  int group = 32;       // values that share (scale, minimum): 16 or 32 (TQ: 256; q2_0: 64, q1_0: 128)
  int code_bits = 8;    // 4 if every code, minus `code_low`, fits 4 bits; else 8
  int code_low = -128;  // the smallest code
  bool has_minimum = false;
};
GgmlAffine ggml_affine(GgmlType type);  // Error(unsupported) for types that cannot be decoded or that have no blocks
// codes: values.size(); scales, minimums: values/group (minimums empty unless has_minimum). The products are FP32:
// scale = d * sc rounded once. ggml_decode gives fl(fl(scale * code) + minimum), or fl(scale * code), of these numbers.
void ggml_decode_affine(GgmlType type, std::span<const std::byte> blocks, std::span<std::int8_t> codes,
                        std::span<float> scales, std::span<float> minimums);

}  // namespace halftone
