// Rotary position embedding (Su et al. 2021) and its scaling variants (shared/formats.md 5.2).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/threads.h"

namespace halftone {

struct RopeSpec {
  enum class Type { default_, linear, llama3, yarn } type = Type::default_;
  double theta = 10000.0;
  std::int64_t dim = 0;                                  // rotated dimensions of a head (<= head_dim), even
  double factor = 1.0;                                   // linear, llama3, yarn
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  std::int64_t original_context = 8192;                  // llama3, yarn
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn
  std::optional<double> attention_factor = std::nullopt, mscale = std::nullopt, mscale_all_dim = std::nullopt;  // yarn
  bool truncate = true;              // yarn: bounds rounded to whole dimensions
  std::vector<float> divisors = {};  // GGUF rope_freqs: frequencies are divided by these (dim/2), else empty
};

struct RopeFrequencies {
  std::vector<float> inverse;     // dim/2
  float attention_factor = 1.0F;  // multiplies cos and sin
};
RopeFrequencies rope_frequencies(const RopeSpec& spec);  // golden: ../shared/golden/rope.json

// Rotates in place x[rows, heads, head_dim] at positions first + row. Pairs are (i, i + dim/2) ("rotate half"), or
// (2i, 2i+1) when interleaved. cos and sin in FP32 from the FP32 product position * inverse.
void rope(float* x, std::int64_t rows, std::int64_t heads, std::int64_t head_dim, std::int64_t first_position,
          const RopeFrequencies& frequencies, bool interleaved, ThreadPool& pool);

}  // namespace halftone
