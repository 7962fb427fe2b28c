// The reference: every other instruction set must give the same bits.
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/matmul/packed.h"

namespace halftone::scalar {
namespace {

struct Vec {
  float v[16];
};
struct IntVec {
  std::int32_t v[16];
};

constexpr std::int64_t kPanelSegment = kLongestPanel;
constexpr std::int64_t kPanelRows = 64;
constexpr int kMicroRows = 2, kIntegerRows = 2;

Vec vzero() { return Vec{}; }
Vec vset(float x) {
  Vec out;
  for (float& lane : out.v) lane = x;
  return out;
}
Vec vload(const float* p) {
  Vec out;
  std::memcpy(out.v, p, sizeof out.v);
  return out;
}
void vstore(float* p, Vec a) { std::memcpy(p, a.v, sizeof a.v); }
Vec vadd(Vec a, Vec b) {
  for (int i = 0; i < 16; ++i) a.v[i] += b.v[i];
  return a;
}
Vec vmul(Vec a, Vec b) {
  for (int i = 0; i < 16; ++i) a.v[i] *= b.v[i];
  return a;
}
Vec vfma(Vec a, Vec b, Vec c) {
  for (int i = 0; i < 16; ++i) c.v[i] = std::fma(a.v[i], b.v[i], c.v[i]);
  return c;
}
void vprefetch(const std::byte*) {}

IntVec izero() { return IntVec{}; }
IntVec iset_pair(const std::int16_t* p) {
  IntVec out;
  for (std::int32_t& lane : out.v) std::memcpy(&lane, p, sizeof lane);
  return out;
}
IntVec imadd(IntVec x, IntVec w, IntVec sum) {  // two 16-bit products a lane
  for (int i = 0; i < 16; ++i) {
    std::int16_t a[2], b[2];
    std::memcpy(a, &x.v[i], sizeof a);
    std::memcpy(b, &w.v[i], sizeof b);
    sum.v[i] += a[0] * b[0] + a[1] * b[1];
  }
  return sum;
}
Vec ifloat(IntVec a) {
  Vec out;
  for (int i = 0; i < 16; ++i) out.v[i] = static_cast<float>(a.v[i]);
  return out;
}
IntVec make_pairs(const std::int8_t* first, const std::int8_t* second, int stride) {
  IntVec out;
  for (int i = 0; i < 16; ++i) {
    const std::int16_t pair[2] = {first[i * stride], second[i * stride]};
    std::memcpy(&out.v[i], pair, sizeof pair);
  }
  return out;
}

template <class T>
T load_at(const std::byte* p, int i) {
  T value;
  std::memcpy(&value, p + i * static_cast<int>(sizeof(T)), sizeof(T));
  return value;
}

struct DecodeF32 {
  static constexpr int kStep = 1, kBytes = 64;
  explicit DecodeF32(const WeightView&) {}
  void decode(const std::byte* p, Vec* out) const { std::memcpy(out->v, p, 64); }
};
struct DecodeBf16 {
  static constexpr int kStep = 1, kBytes = 32;
  explicit DecodeBf16(const WeightView&) {}
  void decode(const std::byte* p, Vec* out) const {
    for (int i = 0; i < 16; ++i) out->v[i] = bf16_to_float(load_at<std::uint16_t>(p, i));
  }
};
struct DecodeF16 {
  static constexpr int kStep = 1, kBytes = 32;
  explicit DecodeF16(const WeightView&) {}
  void decode(const std::byte* p, Vec* out) const {
    for (int i = 0; i < 16; ++i) out->v[i] = fp16_to_float(load_at<std::uint16_t>(p, i));
  }
};
struct DecodeE4m3 {
  static constexpr int kStep = 1, kBytes = 16;
  explicit DecodeE4m3(const WeightView&) {}
  void decode(const std::byte* p, Vec* out) const {
    for (int i = 0; i < 16; ++i) {
      const auto wide = static_cast<std::uint32_t>(load_at<std::int8_t>(p, i));
      out->v[i] = fp16_to_float(static_cast<std::uint16_t>(wide << 7 & 0xBF80U));
    }
  }
};
struct DecodeE5m2 {
  static constexpr int kStep = 1, kBytes = 16;
  explicit DecodeE5m2(const WeightView&) {}
  void decode(const std::byte* p, Vec* out) const {
    for (int i = 0; i < 16; ++i) out->v[i] = fp16_to_float(static_cast<std::uint16_t>(load_at<std::uint8_t>(p, i) << 8));
  }
};
struct DecodeI8 {
  static constexpr int kStep = 1, kBytes = 16;
  explicit DecodeI8(const WeightView&) {}
  void decode(const std::byte* p, Vec* out) const {
    for (int i = 0; i < 16; ++i) out->v[i] = load_at<std::int8_t>(p, i);
  }
};
struct DecodeLut8 {
  static constexpr int kStep = 1, kBytes = 16;
  explicit DecodeLut8(const WeightView& w) : table(w.table) {}
  void decode(const std::byte* p, Vec* out) const {
    for (int i = 0; i < 16; ++i) out->v[i] = table[load_at<std::uint8_t>(p, i)];
  }
  const float* table;
};
struct DecodeN4i {
  static constexpr int kStep = 2, kBytes = 16;
  explicit DecodeN4i(const WeightView& w) : table(w.table16) {}
  void decode(const std::byte* p, Vec* out) const {
    for (int i = 0; i < 16; ++i) {
      const auto byte = load_at<std::uint8_t>(p, i);
      out[0].v[i] = table[byte & 15];
      out[1].v[i] = table[byte >> 4];
    }
  }
  IntVec pairs(const std::byte* p) const {
    std::int8_t low[16], high[16];
    for (int i = 0; i < 16; ++i) {
      const auto byte = load_at<std::uint8_t>(p, i);
      low[i] = table[byte & 15];
      high[i] = table[byte >> 4];
    }
    return make_pairs(low, high, 1);
  }
  const std::int8_t* table;
};
struct DecodeN4f {
  static constexpr int kStep = 2, kBytes = 16;
  explicit DecodeN4f(const WeightView& w) : table(w.table) {}
  void decode(const std::byte* p, Vec* out) const {
    for (int i = 0; i < 16; ++i) {
      const auto byte = load_at<std::uint8_t>(p, i);
      out[0].v[i] = table[byte & 15];
      out[1].v[i] = table[byte >> 4];
    }
  }
  const float* table;
};
struct DecodeI8x2 {
  static constexpr int kStep = 2, kBytes = 32;
  explicit DecodeI8x2(const WeightView&) {}
  void decode(const std::byte* p, Vec* out) const {
    for (int i = 0; i < 16; ++i) {
      out[0].v[i] = load_at<std::int8_t>(p, 2 * i);
      out[1].v[i] = load_at<std::int8_t>(p, 2 * i + 1);
    }
  }
  IntVec pairs(const std::byte* p) const {
    std::int8_t codes[32];
    std::memcpy(codes, p, sizeof codes);
    return make_pairs(codes, codes + 1, 2);
  }
};

#include "kernels/matmul/kernel_body.h"
}  // namespace

const KernelSet& kernels() { return kSet; }

}  // namespace halftone::scalar
