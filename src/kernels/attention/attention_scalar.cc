// The reference of every instruction set: plain code in the order of summation that attention.h fixes.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/activation/elementary.h"
#include "kernels/attention/kernels.h"
#include "numeric/format.h"

namespace halftone::scalar {
namespace {

std::uint16_t load16(const std::byte* p) {
  std::uint16_t v = 0;
  std::memcpy(&v, p, sizeof v);
  return v;
}

float decode_e4m3(std::uint32_t code) {
  const std::uint32_t magnitude = code & 0x7FU;
  float v = std::numeric_limits<float>::quiet_NaN();
  if (magnitude < 8) {
    v = static_cast<float>(magnitude) * 0x1p-9F;
  } else if (magnitude != 0x7F) {
    v = std::bit_cast<float>((magnitude << 20) + (120U << 23));
  }
  return (code & 0x80U) != 0 ? -v : v;
}

void decode(KvCode kind, const std::byte* codes, float scale, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; ++i) {
    switch (kind) {
      case KvCode::f32:
        std::memcpy(out + i, codes + 4 * i, 4);
        break;
      case KvCode::bf16:
        out[i] = bf16_to_float(load16(codes + 2 * i));
        break;
      case KvCode::f16:
        out[i] = fp16_to_float(load16(codes + 2 * i));
        break;
      case KvCode::i8:
        out[i] = static_cast<float>(static_cast<std::int8_t>(codes[i])) * scale;
        break;
      case KvCode::e4m3:
        out[i] = decode_e4m3(static_cast<std::uint32_t>(codes[i])) * scale;
        break;
      case KvCode::e5m2:  // the high byte of an FP16 number
        out[i] = fp16_to_float(static_cast<std::uint16_t>(static_cast<std::uint32_t>(codes[i]) << 8)) * scale;
        break;
    }
  }
}

void transpose(const float* in, std::int64_t stride, std::int64_t dim, float* out) {
  for (std::int64_t d = 0; d < dim; ++d) {
    for (std::int64_t t = 0; t < kKvPageTokens; ++t) out[d * kKvPageTokens + t] = in[t * stride + d];
  }
}

void scores(const float* q, const float* keys, std::int64_t dim, std::int64_t low, std::int64_t high, float* s) {
  for (std::int64_t t = low; t < high; ++t) {
    float sum = 0.0F;
    for (std::int64_t d = 0; d < dim; ++d) sum = std::fma(q[d], keys[d * kKvPageTokens + t], sum);
    s[t] = sum;
  }
}

float softmax(float* s, std::int64_t low, std::int64_t high, float scale, float softcap, float* sum) {
  float maximum = -std::numeric_limits<float>::infinity();
  for (std::int64_t t = low; t < high; ++t) {
    s[t] = s[t] * scale;
    if (softcap > 0.0F) s[t] = softcap * tanh_f32(s[t] / softcap);
    maximum = s[t] > maximum ? s[t] : maximum;
  }
  float lanes[8] = {};
  for (std::int64_t t = low; t < high; ++t) {
    s[t] = exp_f32(s[t] - maximum);
    lanes[t % 8] += s[t];
  }
  *sum = fold_lanes(lanes);
  return maximum;
}

void weighted(const float* p, const float* values, std::int64_t dim, std::int64_t low, std::int64_t high, float* o) {
  for (std::int64_t d = 0; d < dim; ++d) {
    float sum = 0.0F;
    for (std::int64_t t = low; t < high; ++t) sum = std::fma(p[t], values[t * dim + d], sum);
    o[d] = sum;
  }
}

void combine(float* o, float a, const float* part, float b, std::int64_t dim) {
  for (std::int64_t d = 0; d < dim; ++d) o[d] = std::fma(part[d], b, o[d] * a);
}

}  // namespace

const AttentionKernels attention_kernels{decode, transpose, scores, softmax, weighted, combine};

}  // namespace halftone::scalar
