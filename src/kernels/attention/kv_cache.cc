// The layout of cache pages and the writing of tokens into them.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/page.h"

namespace halftone {

KvCode kv_code(const ElementFormat& format) {
  if (format == fp32_format()) return KvCode::f32;
  if (format == bf16_format()) return KvCode::bf16;
  if (format == fp16_format()) return KvCode::f16;
  if (format == int_format(8)) return KvCode::i8;
  if (format == fp8_e4m3_format()) return KvCode::e4m3;
  if (format == fp8_e5m2_format()) return KvCode::e5m2;
  fail(ErrorKind::unsupported,
       "the key/value cache cannot hold {}; choose fp32, bf16, fp16, int8, fp8_e4m3 or fp8_e5m2", format_name(format));
}

std::size_t KvLayout::code_bytes() const {
  switch (kv_code(format)) {
    case KvCode::f32:
      return 4;
    case KvCode::bf16:
    case KvCode::f16:
      return 2;
    default:
      return 1;
  }
}

bool KvLayout::has_scales() const {
  return code_bytes() == 1;
}

std::size_t KvLayout::page_bytes() const {
  const PageMap map(*this);
  const std::size_t bytes = map.scale_offset + (has_scales() ? 2 * map.numbers_per_head_row * sizeof(float) : 0);
  return (bytes + 63) / 64 * 64;
}

PageMap::PageMap(const KvLayout& layout)
    : kind(kv_code(layout.format)),
      code_bytes(layout.code_bytes()),
      numbers_per_head_row(static_cast<std::size_t>(layout.kv_heads * kKvPageTokens)),
      head_dim(static_cast<std::size_t>(layout.head_dim)),
      value_offset(numbers_per_head_row * head_dim * code_bytes),
      scale_offset(2 * value_offset) {}

namespace {

constexpr float kRoundShift = 12582912.0F;  // 1.5 * 2^23

// The nearest integer, ties to even, for |v| <= 2^22, without a conversion that could be undefined.
std::uint32_t round_to_int(float v) {
  return std::bit_cast<std::uint32_t>(v + kRoundShift) - std::bit_cast<std::uint32_t>(kRoundShift);
}

// Nearest even, saturating, of a minifloat with kMantissa stored bits, its largest code and bias; NaN becomes all ones.
template <int kMantissa, int kBias, std::uint32_t kLargest>
std::uint8_t encode_fp8(float v) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(v);
  const std::uint32_t sign = bits >> 24 & 0x80U;
  std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint8_t>(sign | 0x7FU);
  constexpr int kShift = 23 - kMantissa;
  constexpr std::uint32_t kSmallestNormal = static_cast<std::uint32_t>(127 - kBias + 1) << 23;
  std::uint32_t code = 0;
  if (magnitude < kSmallestNormal) {
    // In units of the smallest subnormal; rounding up to the smallest normal gives its code by itself.
    constexpr float kUnits = std::bit_cast<float>(static_cast<std::uint32_t>(127 + kBias - 1 + kMantissa) << 23);
    code = round_to_int(std::bit_cast<float>(magnitude) * kUnits);
  } else {
    magnitude += (1U << (kShift - 1)) - 1 + (magnitude >> kShift & 1U);
    code = (magnitude >> kShift) - (static_cast<std::uint32_t>(127 - kBias) << kMantissa);
    if (code > kLargest) code = kLargest;
  }
  return static_cast<std::uint8_t>(sign | code);
}

std::uint8_t encode_i8(float v) {
  v = v > 127.0F ? 127.0F : v < -127.0F ? -127.0F : v;
  return static_cast<std::uint8_t>(round_to_int(v));
}

// amax / top; NaN if any value is NaN, so that a broken model shows. Not below the smallest normal number: x / scale is
// then at most about `top` for every x.
float head_scale(const float* x, std::size_t n, float top) {
  float amax = 0.0F;
  for (std::size_t i = 0; i < n; ++i) {
    const float a = std::fabs(x[i]);
    if (!(a <= amax)) amax = a;
    if (std::isnan(amax)) break;
  }
  const float scale = amax / top;
  return scale < std::numeric_limits<float>::min() ? std::numeric_limits<float>::min() : scale;
}

template <std::uint8_t (*kEncode)(float)>
void write_scaled(const float* x, std::size_t n, float top, std::byte* codes, std::byte* scale_slot) {
  const float scale = head_scale(x, n, top);
  std::memcpy(scale_slot, &scale, sizeof scale);
  for (std::size_t i = 0; i < n; ++i) codes[i] = static_cast<std::byte>(kEncode(x[i] / scale));
}

void write_head(KvCode kind, const float* x, std::size_t n, std::byte* codes, std::byte* scale_slot) {
  switch (kind) {
    case KvCode::f32:
      std::memcpy(codes, x, n * sizeof(float));
      return;
    case KvCode::bf16:
    case KvCode::f16:
      for (std::size_t i = 0; i < n; ++i) {
        const std::uint16_t code = kind == KvCode::bf16 ? float_to_bf16(x[i]) : float_to_fp16(x[i]);
        std::memcpy(codes + 2 * i, &code, sizeof code);
      }
      return;
    case KvCode::i8:
      return write_scaled<encode_i8>(x, n, 127.0F, codes, scale_slot);
    case KvCode::e4m3:
      return write_scaled<encode_fp8<3, 7, 0x7E>>(x, n, 448.0F, codes, scale_slot);
    case KvCode::e5m2:
      return write_scaled<encode_fp8<2, 15, 0x7B>>(x, n, 57344.0F, codes, scale_slot);
  }
}

}  // namespace

void kv_write(const KvLayout& layout, std::byte* page, std::int64_t slot, const float* k, const float* v) {
  HT_CHECK(slot >= 0 && slot < kKvPageTokens);
  const PageMap map(layout);
  for (std::int64_t h = 0; h < layout.kv_heads; ++h) {
    const std::size_t row = static_cast<std::size_t>(h * kKvPageTokens + slot);
    const auto from = static_cast<std::size_t>(h) * map.head_dim;
    const bool scaled = map.code_bytes == 1;
    write_head(map.kind, k + from, map.head_dim, page + map.key_codes(row),
               scaled ? page + map.key_scale(row) : nullptr);
    write_head(map.kind, v + from, map.head_dim, page + map.value_codes(row),
               scaled ? page + map.value_scale(row) : nullptr);
  }
}

}  // namespace halftone
