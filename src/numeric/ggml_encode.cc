// Encoders of the simple GGUF block types (shared/formats.md 2.6.1, 2.6.4, 2.6.6), byte for byte as the reference
// encoders without importance matrix: codes come from the FP32 inverse of the scale before its rounding to FP16.
#include <algorithm>
#include <bit>

#include "base/error.h"
#include "numeric/ggml_detail.h"

namespace halftone {
namespace {

using Byte = std::uint8_t;
using namespace ggml_detail;

void encode_q4_0(const float* x, Byte* b) {
  const float d = signed_peak(x, 32) / -8.0F;
  const float inverse = inverse_or_zero(d);
  store_half(b, d);
  for (int j = 0; j < 16; ++j) {
    const int low = truncate_clamped(x[j] * inverse + 8.5F, 0, 15);
    const int high = truncate_clamped(x[j + 16] * inverse + 8.5F, 0, 15);
    b[2 + j] = static_cast<Byte>(low | high << 4);
  }
}

struct MinMax {
  float low, high;
};
MinMax min_max(const float* x, int n) {
  MinMax m{x[0], x[0]};
  for (int i = 1; i < n; ++i) {
    if (x[i] < m.low) m.low = x[i];
    if (x[i] > m.high) m.high = x[i];
  }
  return m;
}

void encode_q4_1(const float* x, Byte* b) {
  const MinMax m = min_max(x, 32);
  const float d = (m.high - m.low) / 15.0F;
  const float inverse = inverse_or_zero(d);
  store_half(b, d);
  store_half(b + 2, m.low);
  for (int j = 0; j < 16; ++j) {
    const int low = truncate_clamped((x[j] - m.low) * inverse + 0.5F, 0, 15);
    const int high = truncate_clamped((x[j + 16] - m.low) * inverse + 0.5F, 0, 15);
    b[4 + j] = static_cast<Byte>(low | high << 4);
  }
}

// Fifth bits into the 32-bit word at `high`, the rest as nibbles at `low`.
void pack_five_bits(const std::array<int, 32>& q, Byte* high, Byte* low) {
  std::uint32_t fifth = 0;
  for (std::size_t j = 0; j < 16; ++j) {
    low[j] = static_cast<Byte>((q[j] & 15) | (q[j + 16] & 15) << 4);
    fifth |= static_cast<std::uint32_t>(q[j] >> 4) << j;
    fifth |= static_cast<std::uint32_t>(q[j + 16] >> 4) << (j + 16);
  }
  std::memcpy(high, &fifth, sizeof fifth);
}

void encode_q5_0(const float* x, Byte* b) {
  const float d = signed_peak(x, 32) / -16.0F;
  const float inverse = inverse_or_zero(d);
  store_half(b, d);
  std::array<int, 32> q;
  for (std::size_t j = 0; j < 32; ++j) q[j] = truncate_clamped(x[j] * inverse + 16.5F, 0, 31);
  pack_five_bits(q, b + 2, b + 6);
}

void encode_q5_1(const float* x, Byte* b) {
  const MinMax m = min_max(x, 32);
  const float d = (m.high - m.low) / 31.0F;
  const float inverse = inverse_or_zero(d);
  store_half(b, d);
  store_half(b + 2, m.low);
  std::array<int, 32> q;
  for (std::size_t j = 0; j < 32; ++j) q[j] = truncate_clamped((x[j] - m.low) * inverse + 0.5F, 0, 31);
  pack_five_bits(q, b + 4, b + 8);
}

// Half away from zero.
int round_away(float v, int low, int high) {
  return truncate_clamped(std::round(v), low, high);
}

void encode_q8_0(const float* x, Byte* b) {
  const float d = std::fabs(signed_peak(x, 32)) / 127.0F;
  const float inverse = inverse_or_zero(d);
  store_half(b, d);
  for (int j = 0; j < 32; ++j) {
    b[2 + j] = static_cast<Byte>(static_cast<std::int8_t>(round_away(x[j] * inverse, -128, 127)));
  }
}

// The FP4 code with the smallest error, the lower of equals; `scale` is half the block scale.
int nearest_fp4(float x, float scale) {
  int best = 0;
  float best_error = std::fabs(static_cast<float>(kFp4Doubled[0]) * scale - x);
  for (int i = 1; i < 16; ++i) {
    const float error = std::fabs(static_cast<float>(kFp4Doubled[static_cast<std::size_t>(i)]) * scale - x);
    if (error < best_error) {
      best = i;
      best_error = error;
    }
  }
  return best;
}

void encode_mxfp4(const float* x, Byte* b) {
  const float peak = std::fabs(signed_peak(x, 32));
  int e = 0;
  if (peak > 0.0F) {
    // The logarithm is rounded to FP32 before its floor, as in the reference; the result is kept inside 0..254, which
    // the reference does not do.
    const auto logarithm = static_cast<float>(std::log2(static_cast<double>(peak)));
    e = std::clamp(truncate_clamped(std::floor(logarithm), -1000, 1000) - 2 + 127, 0, 254);
  }
  b[0] = static_cast<Byte>(e);
  const std::uint32_t bits = e < 2 ? 0x00200000U << e : static_cast<std::uint32_t>(e - 1) << 23;
  const auto scale = std::bit_cast<float>(bits);
  for (int j = 0; j < 16; ++j) {
    b[1 + j] = static_cast<Byte>(nearest_fp4(x[j], scale) | nearest_fp4(x[j + 16], scale) << 4);
  }
}

// The reference's own cast to unsigned E4M3: half up, subnormals stop at mantissa 7, everything from exponent field 15
// on becomes 448 (shared/formats.md 2.6.6).
Byte to_ue4m3(float x) {
  if (!(x > 0.0F)) return 0;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const int exponent = static_cast<int>(bits >> 23) - 127 + 7;
  if (exponent >= 15) return 0x7E;
  if (exponent <= 0) return static_cast<Byte>(truncate_clamped(x * 512.0F + 0.5F, 0, 7));
  // Mantissa and exponent are neighbours, so a carry out of the mantissa moves into the exponent by itself.
  const int rounded = (exponent << 3 | static_cast<int>(bits >> 20 & 7U)) + static_cast<int>(bits >> 19 & 1U);
  return rounded >= 15 << 3 ? Byte{0x7E} : static_cast<Byte>(rounded);
}

void encode_nvfp4(const float* x, Byte* b) {
  for (int s = 0; s < 4; ++s) {
    const float* sub = x + 16 * s;
    b[s] = to_ue4m3(std::fabs(signed_peak(sub, 16)) / 6.0F);
    const float scale = b[s] == 0 ? 0.0F : static_cast<float>(decode(fp8_e4m3_format(), b[s]) * 0.5);
    for (int j = 0; j < 8; ++j) {
      b[4 + 8 * s + j] = static_cast<Byte>(nearest_fp4(sub[j], scale) | nearest_fp4(sub[j + 8], scale) << 4);
    }
  }
}

// Trits 0, 1, 2 of a block of 256 and its scale.
float ternary(const float* x, std::array<Byte, 256>& trits) {
  const float d = std::fabs(signed_peak(x, 256));
  const float inverse = inverse_or_zero(d);
  for (std::size_t i = 0; i < 256; ++i) trits[i] = static_cast<Byte>(round_away(x[i] * inverse, -1, 1) + 1);
  return d;
}

// The fraction 0.t0 t1 t2 t3 t4 in base 3, as eight bits rounded up.
Byte pack_trits(const Byte* first, std::size_t stride, int count) {
  int v = 0;
  for (int n = 0; n < 5; ++n) v = 3 * v + (n < count ? first[static_cast<std::size_t>(n) * stride] : 0);
  return static_cast<Byte>((v * 256 + 242) / 243);
}

void encode_tq1_0(const float* x, Byte* b) {
  std::array<Byte, 256> trits;
  store_half(b + 52, ternary(x, trits));
  for (std::size_t m = 0; m < 32; ++m) b[m] = pack_trits(&trits[m], 32, 5);
  for (std::size_t m = 0; m < 16; ++m) b[32 + m] = pack_trits(&trits[160 + m], 16, 5);
  for (std::size_t m = 0; m < 4; ++m) b[48 + m] = pack_trits(&trits[240 + m], 4, 4);
}

void encode_tq2_0(const float* x, Byte* b) {
  std::array<Byte, 256> trits;
  store_half(b + 64, ternary(x, trits));
  for (std::size_t half = 0; half < 2; ++half) {
    for (std::size_t m = 0; m < 32; ++m) {
      const Byte* t = &trits[128 * half + m];
      b[32 * half + m] = static_cast<Byte>(t[0] | t[32] << 2 | t[64] << 4 | t[96] << 6);
    }
  }
}

using BlockEncoder = void (*)(const float*, Byte*);

BlockEncoder block_encoder(GgmlType type) {
  switch (type) {
    case GgmlType::q4_0:
      return encode_q4_0;
    case GgmlType::q4_1:
      return encode_q4_1;
    case GgmlType::q5_0:
      return encode_q5_0;
    case GgmlType::q5_1:
      return encode_q5_1;
    case GgmlType::q8_0:
      return encode_q8_0;
    case GgmlType::q2_k:
      return encode_q2_k;
    case GgmlType::q3_k:
      return encode_q3_k;
    case GgmlType::q4_k:
      return encode_q4_k;
    case GgmlType::q5_k:
      return encode_q5_k;
    case GgmlType::q6_k:
      return encode_q6_k;
    case GgmlType::iq4_nl:
      return encode_iq4_nl;
    case GgmlType::iq4_xs:
      return encode_iq4_xs;
    case GgmlType::mxfp4:
      return encode_mxfp4;
    case GgmlType::nvfp4:
      return encode_nvfp4;
    case GgmlType::tq1_0:
      return encode_tq1_0;
    case GgmlType::tq2_0:
      return encode_tq2_0;
    default:
      return nullptr;
  }
}

}  // namespace

void ggml_encode(GgmlType type, std::span<const float> values, std::span<std::byte> blocks) {
  const GgmlTypeInfo& info = ggml_info(type);
  if (!info.can_encode) {
    fail(ErrorKind::unsupported, "the GGUF type {} cannot be written; choose another, for instance q8_0 or q4_k",
         info.name);
  }
  const auto block_elements = static_cast<std::size_t>(info.block_elements);
  const auto block_bytes = static_cast<std::size_t>(info.block_bytes);
  HT_CHECK(values.size() % block_elements == 0 && blocks.size() == values.size() / block_elements * block_bytes);
  if (type == GgmlType::f32) {
    if (!values.empty()) std::memcpy(blocks.data(), values.data(), values.size_bytes());
    return;
  }
  if (type == GgmlType::f16 || type == GgmlType::bf16) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::uint16_t code = type == GgmlType::f16 ? float_to_fp16(values[i]) : float_to_bf16(values[i]);
      std::memcpy(blocks.data() + 2 * i, &code, sizeof code);
    }
    return;
  }
  const BlockEncoder encode_block = block_encoder(type);
  HT_CHECK(encode_block != nullptr);
  auto* out = reinterpret_cast<Byte*>(blocks.data());
  for (std::size_t i = 0; i < values.size() / block_elements; ++i) {
    encode_block(values.data() + i * block_elements, out + i * block_bytes);
  }
}

}  // namespace halftone
