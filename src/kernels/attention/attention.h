// Causal grouped-query attention as one streaming-softmax pass over a paged key/value cache
// (Milakov and Gimelshein 2018; Dao et al. 2022), for prefill and decode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/threads.h"
#include "numeric/format.h"

namespace halftone {

inline constexpr std::int64_t kKvPageTokens = 64;

// A page holds kKvPageTokens tokens of one layer: K codes [kv_heads][tokens][head_dim], V codes the same, then, for
// int8 and fp8, FP32 scales [2][kv_heads][tokens]: one for each token and head, computed when it is written. Pages
// start at an address that is a multiple of 4.
struct KvLayout {
  std::int64_t kv_heads = 0, head_dim = 0;
  ElementFormat format = bf16_format();  // fp32, bf16, fp16, int8, fp8_e4m3, fp8_e5m2

  std::size_t code_bytes() const;  // of one number; Error(unsupported) that names the format if it is none of the six
  bool has_scales() const;         // int8 and fp8
  std::size_t page_bytes() const;  // a multiple of 64
};

// Writes token `slot` (0 .. kKvPageTokens-1) of a page from FP32 k, v [kv_heads, head_dim]: nearest even; int8 and fp8
// under the scale amax / (127, 448, 57344) of the head, at least the smallest normal FP32 number.
void kv_write(const KvLayout& layout, std::byte* page, std::int64_t slot, const float* k, const float* v);

struct AttentionSpec {
  std::int64_t heads = 0;
  float scale = 0;          // on q.k
  std::int64_t window = 0;  // > 0: a token sees keys with position > q - window
  float softcap = 0;        // > 0: scores become softcap * tanh(score / softcap)
};

// q, out: [rows, heads, head_dim]; row r has position first_position + r; pages[i] holds positions
// [i * kKvPageTokens, ...), already containing the keys of these rows. `heads` is a multiple of kv_heads; query head h
// reads key head h / (heads / kv_heads). Pages that lie wholly before a window may be nullptr.
//
// Order of summation, the same in every instruction set, for any number of rows and threads. For a row, a head and a
// page: score = scale * s with s = fma(q[d], k[d], s) for d ascending; p = exp(score - m) with m the largest score of
// the page that the row may see; l = sum of p in eight lanes by token % 8, folded; o = fma(p, v, o) for tokens
// ascending. Pages in ascending order: M' = max(M, m), a = exp(M - M'), b = exp(m - M'), O = fma(o, b, O * a),
// L = l * b + L * a. The result is O / L.
void attention(const AttentionSpec& spec, const KvLayout& layout, const float* q, std::int64_t rows,
               std::int64_t first_position, std::span<const std::byte* const> pages, float* out, ThreadPool& pool);

}  // namespace halftone
