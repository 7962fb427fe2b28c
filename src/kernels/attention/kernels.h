// Inside kernels/ only: the steps of attention for one instruction set. kPage = kKvPageTokens.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu.h"
#include "kernels/attention/attention.h"

namespace halftone {

enum class KvCode : std::uint8_t { f32, bf16, f16, i8, e4m3, e5m2 };

struct AttentionKernels {
  // Codes of one number after the other -> out[i] = decoded * scale, or decoded where the format has no scales.
  void (*decode)(KvCode kind, const std::byte* codes, float scale, std::int64_t n, float* out);
  // in [kPage][stride] -> out [dim][kPage], for dim a multiple of 8.
  void (*transpose)(const float* in, std::int64_t stride, std::int64_t dim, float* out);
  // s[t] for tokens t of the groups of eight that hold [low, high): chains of fma over d; keys [dim][kPage].
  void (*scores)(const float* q, const float* keys, std::int64_t dim, std::int64_t low, std::int64_t high, float* s);
  // In place over [low, high): scores -> exp(score - maximum); zero for the other tokens of their groups of eight.
  // Returns the maximum, and the sum in `sum`.
  float (*softmax)(float* s, std::int64_t low, std::int64_t high, float scale, float softcap, float* sum);
  // o[d] = chain of fma(p[t], values[t][d]) over t in [low, high), from 0; values [kPage][dim], dim a multiple of 8.
  void (*weighted)(const float* p, const float* values, std::int64_t dim, std::int64_t low, std::int64_t high,
                   float* o);
  // o[d] = fma(part[d], b, o[d] * a), dim a multiple of 8.
  void (*combine)(float* o, float a, const float* part, float b, std::int64_t dim);
};

const AttentionKernels& attention_kernels(Isa isa);  // the best at or below `isa`

// attention() by the kernels of `isa` (which must run on this processor).
void attention_with(Isa isa, const AttentionSpec& spec, const KvLayout& layout, const float* q, std::int64_t rows,
                    std::int64_t first_position, std::span<const std::byte* const> pages, float* out, ThreadPool& pool);

namespace scalar {
extern const AttentionKernels attention_kernels;
}
namespace avx2 {
extern const AttentionKernels attention_kernels;
}

}  // namespace halftone
