// Encoders of the K types (shared/formats.md 2.6.2), blocks of 256. The sums are FP32 in ascending order of the
// elements: the bytes depend on it.
#include <algorithm>

#include "numeric/ggml_detail.h"

namespace halftone::ggml_detail {
namespace {

using Byte = std::uint8_t;

constexpr float kSmallest = 1e-15F;  // sub-blocks below this have no scale

struct ScaleMin {
  float scale = 0.0F;
  float minimum = 0.0F;  // value = scale * code - minimum; never negative
};

struct Search {
  int top;            // largest code
  float first, step;  // trial inverse scales (first + step * i + top) / (max - min)
  int trials;         // i = 0 .. trials
  bool absolute;      // error: |difference| instead of its square
};

// Scale and minimum of n <= 32 values: least squares for the codes of every trial, the trial with the smallest weighted
// error wins. Writes its codes.
ScaleMin search_scale_min(const float* x, const float* weights, int n, const Search& search, Byte* codes) {
  float low = x[0], high = x[0];
  float sum_w = weights[0];
  float sum_x = sum_w * x[0];
  for (int i = 1; i < n; ++i) {
    if (x[i] < low) low = x[i];
    if (x[i] > high) high = x[i];
    sum_w += weights[i];
    sum_x += weights[i] * x[i];
  }
  if (low > 0.0F) low = 0.0F;
  if (high == low) {
    std::fill_n(codes, n, Byte{0});
    return {0.0F, -low};
  }
  const auto weighted_error = [&](const Byte* q, float scale, float minimum) {
    float error = 0.0F;
    for (int i = 0; i < n; ++i) {
      const float difference = scale * static_cast<float>(q[i]) + minimum - x[i];
      error += weights[i] * (search.absolute ? std::fabs(difference) : difference * difference);
    }
    return error;
  };
  const auto round_all = [&](float inverse, Byte* q) {
    for (int i = 0; i < n; ++i) q[i] = static_cast<Byte>(round_clamped(inverse * (x[i] - low), 0, search.top));
  };

  const auto top = static_cast<float>(search.top);
  float inverse = top / (high - low);
  ScaleMin best{1.0F / inverse, low};
  round_all(inverse, codes);
  float best_error = weighted_error(codes, best.scale, best.minimum);
  std::array<Byte, 32> trial;
  for (int t = 0; t <= search.trials; ++t) {
    inverse = (search.first + search.step * static_cast<float>(t) + top) / (high - low);
    round_all(inverse, trial.data());
    float sum_q = 0.0F, sum_qq = 0.0F, sum_xq = 0.0F;
    for (int i = 0; i < n; ++i) {
      const auto q = static_cast<float>(trial[static_cast<std::size_t>(i)]);
      sum_q += weights[i] * q;
      sum_qq += weights[i] * q * q;
      sum_xq += weights[i] * q * x[i];
    }
    const float determinant = sum_w * sum_qq - sum_q * sum_q;
    if (!(determinant > 0.0F)) continue;
    float scale = (sum_w * sum_xq - sum_x * sum_q) / determinant;
    float minimum = (sum_qq * sum_x - sum_q * sum_xq) / determinant;
    if (minimum > 0.0F) {
      minimum = 0.0F;
      scale = sum_xq / sum_qq;
    }
    const float error = weighted_error(trial.data(), scale, minimum);
    if (error < best_error) {
      std::copy_n(trial.data(), n, codes);
      best_error = error;
      best = {scale, minimum};
      low = minimum;  // later trials round against the minimum found so far
    }
  }
  best.minimum = -best.minimum;
  return best;
}

// Largest scale and largest minimum of the sub-blocks; not below 0.
template <std::size_t N>
ScaleMin largest(const std::array<ScaleMin, N>& subs) {
  ScaleMin top;
  for (const ScaleMin& s : subs) {
    if (s.scale > top.scale) top.scale = s.scale;
    if (s.minimum > top.minimum) top.minimum = s.minimum;
  }
  return top;
}

// Codes again, now under the rounded scale and minimum; a sub-block without scale keeps what it has.
void requantize(const float* x, int n, float scale, float minimum, int top, Byte* codes) {
  if (scale == 0.0F) return;
  for (int i = 0; i < n; ++i) codes[i] = static_cast<Byte>(round_clamped((x[i] + minimum) / scale, 0, top));
}

// Codes 0..3 of 256 values in two halves of 128: byte l holds l, l + 32, l + 64, l + 96.
void pack_two_bits(const Byte* codes, Byte* out) {
  for (int half = 0; half < 2; ++half) {
    for (int l = 0; l < 32; ++l) {
      const Byte* c = codes + 128 * half + l;
      out[32 * half + l] = static_cast<Byte>(c[0] | c[32] << 2 | c[64] << 4 | c[96] << 6);
    }
  }
}

// Scales, minimums and codes 0..top of Q4_K and Q5_K; writes the first 16 bytes of the block.
void quantize_k4(const float* x, const Search& search, Byte* block, Byte* codes) {
  std::array<ScaleMin, 8> subs;
  for (std::size_t s = 0; s < 8; ++s) {
    const float* sub = x + 32 * s;
    float squares = 0.0F;
    for (int i = 0; i < 32; ++i) squares += sub[i] * sub[i];
    const float rms = std::sqrt(squares / 32.0F);
    std::array<float, 32> weights;
    for (std::size_t i = 0; i < 32; ++i) weights[i] = rms + std::fabs(sub[i]);
    subs[s] = search_scale_min(sub, weights.data(), 32, search, codes + 32 * s);
  }
  const ScaleMin top = largest(subs);
  const float inverse_scale = top.scale > 0.0F ? 63.0F / top.scale : 0.0F;
  const float inverse_minimum = top.minimum > 0.0F ? 63.0F / top.minimum : 0.0F;
  store_half(block, top.scale / 63.0F);
  store_half(block + 2, top.minimum / 63.0F);
  const float d = load_half(block), dmin = load_half(block + 2);
  Byte* packed = block + 4;
  std::memset(packed, 0, 12);
  for (std::size_t s = 0; s < 8; ++s) {
    const int scale = round_clamped(inverse_scale * subs[s].scale, 0, 63);
    const int minimum = round_clamped(inverse_minimum * subs[s].minimum, 0, 63);
    if (s < 4) {
      packed[s] = static_cast<Byte>(packed[s] | scale);
      packed[s + 4] = static_cast<Byte>(packed[s + 4] | minimum);
    } else {
      packed[s + 4] = static_cast<Byte>((scale & 15) | (minimum & 15) << 4);
      packed[s - 4] = static_cast<Byte>(packed[s - 4] | (scale >> 4) << 6);
      packed[s] = static_cast<Byte>(packed[s] | (minimum >> 4) << 6);
    }
    requantize(x + 32 * s, 32, d * static_cast<float>(scale), dmin * static_cast<float>(minimum), search.top,
               codes + 32 * s);
  }
}

// Least-squares terms of signed codes, weights x^2.
struct Terms {
  float xq = 0.0F, qq = 0.0F;
  void add(float x, int code, float sign) {
    const float w = x * x;
    const auto q = static_cast<float>(code);
    xq += sign * (w * x * q);
    qq += sign * (w * q * q);
  }
};

// Scale of 16 values for signed codes -4..3: rounding to the peak, then up to five sweeps that move one code at a time
// while that improves the fit.
float scale_by_sweeps(const float* x, std::array<int, 16>& q) {
  constexpr int kLow = -4, kHigh = 3;
  q.fill(kLow);
  const float peak = signed_peak(x, 16);
  if (std::fabs(peak) < kSmallest) return 0.0F;
  const float inverse = -4.0F / peak;
  Terms sum;
  for (std::size_t i = 0; i < 16; ++i) {
    q[i] = round_clamped(inverse * x[i], kLow, kHigh);
    sum.add(x[i], q[i], 1.0F);
  }
  for (int sweep = 0; sweep < 5; ++sweep) {
    bool changed = false;
    for (std::size_t i = 0; i < 16; ++i) {
      Terms others = sum;
      others.add(x[i], q[i], -1.0F);
      if (!(others.xq > 0.0F)) continue;
      const int code = round_clamped(x[i] * others.qq / others.xq, kLow, kHigh);
      if (code == q[i]) continue;
      others.add(x[i], code, 1.0F);
      if (others.qq > 0.0F && others.xq * others.xq * sum.qq > sum.xq * sum.xq * others.qq) {
        q[i] = code;
        sum = others;
        changed = true;
      }
    }
    if (!changed) break;
  }
  return sum.qq > 0.0F ? sum.xq / sum.qq : 0.0F;
}

// Scale of 16 values for signed codes -32..31, the best of 19 trial inverse scales around -32 / peak.
float scale_by_trials(const float* x, std::array<int, 16>& q) {
  constexpr int kLow = -32, kHigh = 31;
  q.fill(kLow);
  const float peak = signed_peak(x, 16);
  if (std::fabs(peak) < kSmallest) return 0.0F;
  const auto trial = [&](float inverse, std::array<int, 16>& codes) {
    Terms sum;
    for (std::size_t i = 0; i < 16; ++i) {
      codes[i] = round_clamped(inverse * x[i], kLow, kHigh);
      sum.add(x[i], codes[i], 1.0F);
    }
    return sum;
  };
  const Terms first = trial(-32.0F / peak, q);
  float scale = first.qq != 0.0F ? first.xq / first.qq : 0.0F;
  float best = scale * first.xq;
  std::array<int, 16> codes;
  for (int i = -9; i <= 9; ++i) {
    if (i == 0) continue;
    const Terms sum = trial(-(32.0F + 0.1F * static_cast<float>(i)) / peak, codes);
    if (sum.qq > 0.0F && sum.xq * sum.xq > best * sum.qq) {
      q = codes;
      scale = sum.xq / sum.qq;
      best = scale * sum.xq;
    }
  }
  return scale;
}

void requantize_signed(const float* x, float scale, int low, int high, std::array<int, 16>& q) {
  if (scale == 0.0F) return;
  for (std::size_t i = 0; i < 16; ++i) q[i] = round_clamped(x[i] / scale, low, high);
}

}  // namespace

void encode_q2_k(const float* x, std::uint8_t* block) {
  constexpr Search kSearch{3, -0.5F, 0.1F, 15, true};
  std::array<Byte, 256> codes;
  std::array<ScaleMin, 16> subs;
  for (std::size_t s = 0; s < 16; ++s) {
    std::array<float, 16> weights;
    for (std::size_t i = 0; i < 16; ++i) weights[i] = std::fabs(x[16 * s + i]);
    subs[s] = search_scale_min(x + 16 * s, weights.data(), 16, kSearch, &codes[16 * s]);
  }
  const ScaleMin top = largest(subs);
  const float inverse_scale = top.scale > 0.0F ? 15.0F / top.scale : 0.0F;
  const float inverse_minimum = top.minimum > 0.0F ? 15.0F / top.minimum : 0.0F;
  store_half(block + 80, top.scale / 15.0F);
  store_half(block + 82, top.minimum / 15.0F);
  const float d = load_half(block + 80), dmin = load_half(block + 82);
  for (std::size_t s = 0; s < 16; ++s) {
    const int scale = round_clamped(inverse_scale * subs[s].scale, 0, 15);
    const int minimum = round_clamped(inverse_minimum * subs[s].minimum, 0, 15);
    block[s] = static_cast<Byte>(scale | minimum << 4);
    requantize(x + 16 * s, 16, d * static_cast<float>(scale), dmin * static_cast<float>(minimum), 3, &codes[16 * s]);
  }
  pack_two_bits(codes.data(), block + 16);
}

void encode_q3_k(const float* x, std::uint8_t* block) {
  std::array<std::array<int, 16>, 16> q;
  std::array<float, 16> scales;
  for (std::size_t s = 0; s < 16; ++s) scales[s] = scale_by_sweeps(x + 16 * s, q[s]);
  const float top = signed_peak(scales.data(), 16);
  std::memset(block, 0, 110);
  if (top == 0.0F) return;
  const float inverse = -32.0F / top;
  store_half(block + 108, 1.0F / inverse);
  const float d = load_half(block + 108);
  Byte* packed = block + 96;
  std::array<Byte, 256> low;
  for (std::size_t s = 0; s < 16; ++s) {
    const int scale = round_clamped(inverse * scales[s], -32, 31);
    const int stored = scale + 32;
    packed[s % 8] = static_cast<Byte>(packed[s % 8] | (stored & 15) << (s < 8 ? 0 : 4));
    packed[8 + s % 4] = static_cast<Byte>(packed[8 + s % 4] | (stored >> 4) << (2 * (s / 4)));
    requantize_signed(x + 16 * s, d * static_cast<float>(scale), -4, 3, q[s]);
    for (std::size_t i = 0; i < 16; ++i) {
      const std::size_t element = 16 * s + i;
      const int code = q[s][i] + 4;
      low[element] = static_cast<Byte>(code & 3);
      block[element % 32] = static_cast<Byte>(block[element % 32] | (code >> 2) << (element / 32));
    }
  }
  pack_two_bits(low.data(), block + 32);
}

void encode_q4_k(const float* x, std::uint8_t* block) {
  std::array<Byte, 256> codes;
  quantize_k4(x, {15, -1.0F, 0.1F, 20, false}, block, codes.data());
  for (std::size_t c = 0; c < 4; ++c) {
    for (std::size_t l = 0; l < 32; ++l) {
      block[16 + 32 * c + l] = static_cast<Byte>(codes[64 * c + l] | codes[64 * c + 32 + l] << 4);
    }
  }
}

void encode_q5_k(const float* x, std::uint8_t* block) {
  std::array<Byte, 256> codes;
  quantize_k4(x, {31, -0.5F, 0.1F, 15, false}, block, codes.data());
  std::memset(block + 16, 0, 32);
  for (std::size_t c = 0; c < 4; ++c) {
    for (std::size_t l = 0; l < 32; ++l) {
      const int first = codes[64 * c + l], second = codes[64 * c + 32 + l];
      block[48 + 32 * c + l] = static_cast<Byte>((first & 15) | (second & 15) << 4);
      block[16 + l] = static_cast<Byte>(block[16 + l] | (first >> 4) << (2 * c) | (second >> 4) << (2 * c + 1));
    }
  }
}

void encode_q6_k(const float* x, std::uint8_t* block) {
  std::array<std::array<int, 16>, 16> q;
  std::array<float, 16> scales;
  for (std::size_t s = 0; s < 16; ++s) scales[s] = scale_by_trials(x + 16 * s, q[s]);
  const float top = signed_peak(scales.data(), 16);
  std::memset(block, 0, 210);
  if (std::fabs(top) < kSmallest) return;
  const float inverse = -128.0F / top;
  store_half(block + 208, 1.0F / inverse);
  const float d = load_half(block + 208);
  std::array<int, 256> codes;
  for (std::size_t s = 0; s < 16; ++s) {
    const int scale = round_clamped(inverse * scales[s], -128, 127);
    block[192 + s] = static_cast<Byte>(static_cast<std::int8_t>(scale));
    requantize_signed(x + 16 * s, d * static_cast<float>(scale), -32, 31, q[s]);
    for (std::size_t i = 0; i < 16; ++i) codes[16 * s + i] = q[s][i] + 32;
  }
  for (std::size_t half = 0; half < 2; ++half) {
    for (std::size_t l = 0; l < 32; ++l) {
      const int* c = &codes[128 * half + l];
      block[64 * half + l] = static_cast<Byte>((c[0] & 15) | (c[64] & 15) << 4);
      block[64 * half + 32 + l] = static_cast<Byte>((c[32] & 15) | (c[96] & 15) << 4);
      block[128 + 32 * half + l] =
          static_cast<Byte>(c[0] >> 4 | (c[32] >> 4) << 2 | (c[64] >> 4) << 4 | (c[96] >> 4) << 6);
    }
  }
}

}  // namespace halftone::ggml_detail
