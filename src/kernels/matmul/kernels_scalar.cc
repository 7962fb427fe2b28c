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

#define HT_UNROLL

constexpr std::int64_t kPanelSegment = kLongestPanel;
constexpr std::int64_t kPanelRows = 64;
constexpr int kDirectRows = 2, kMicroRows = 2, kIntegerRows = 2;

Vec vzero() {
  return Vec{};
}
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
void vstore(float* p, Vec a) {
  std::memcpy(p, a.v, sizeof a.v);
}
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

IntVec izero() {
  return IntVec{};
}
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
IntVec iload(const std::int16_t* p) {
  IntVec out;
  std::memcpy(out.v, p, sizeof out.v);
  return out;
}
void istore(std::int16_t* p, IntVec a) {
  std::memcpy(p, a.v, sizeof a.v);
}

template <class T>
T load_at(const std::byte* p, int i) {
  T value;
  std::memcpy(&value, p + i * static_cast<int>(sizeof(T)), sizeof(T));
  return value;
}

Vec load_bf16(const std::byte* p) {
  Vec out;
  for (int i = 0; i < 16; ++i) out.v[i] = bf16_to_float(load_at<std::uint16_t>(p, i));
  return out;
}
Vec load_f16(const std::byte* p) {
  Vec out;
  for (int i = 0; i < 16; ++i) out.v[i] = fp16_to_float(load_at<std::uint16_t>(p, i));
  return out;
}
Vec load_e4m3(const std::byte* p) {  // 2^-8 of the value: the exponent field as FP16 has it
  Vec out;
  for (int i = 0; i < 16; ++i) {
    const auto wide = static_cast<std::uint32_t>(load_at<std::int8_t>(p, i));
    out.v[i] = fp16_to_float(static_cast<std::uint16_t>(wide << 7 & 0xBF80U));
  }
  return out;
}
Vec load_e8m0(const std::byte* p) {
  Vec out;
  for (int i = 0; i < 16; ++i) out.v[i] = std::ldexp(1.0F, load_at<std::uint8_t>(p, i) - 127);
  return out;
}
Vec load_i8(const std::byte* p) {
  Vec out;
  for (int i = 0; i < 16; ++i) out.v[i] = load_at<std::int8_t>(p, i);
  return out;
}

struct DecodeF32 {
  static constexpr int kStep = 1, kPart = 1, kBytes = 64;
  explicit DecodeF32(const WeightView&) {}
  using State = const std::byte*;
  State prepare(const std::byte* p, int) const { return p; }
  Vec code(State p, int) const {
    Vec out;
    std::memcpy(out.v, p, 64);
    return out;
  }
};
struct DecodeBf16 {
  static constexpr int kStep = 1, kPart = 1, kBytes = 32;
  explicit DecodeBf16(const WeightView&) {}
  using State = const std::byte*;
  State prepare(const std::byte* p, int) const { return p; }
  Vec code(State p, int) const { return load_bf16(p); }
};
struct DecodeF16 {
  static constexpr int kStep = 1, kPart = 1, kBytes = 32;
  explicit DecodeF16(const WeightView&) {}
  using State = const std::byte*;
  State prepare(const std::byte* p, int) const { return p; }
  Vec code(State p, int) const { return load_f16(p); }
};
struct DecodeE4m3 {
  static constexpr int kStep = 1, kPart = 1, kBytes = 16;
  explicit DecodeE4m3(const WeightView&) {}
  using State = const std::byte*;
  State prepare(const std::byte* p, int) const { return p; }
  Vec code(State p, int) const { return load_e4m3(p); }
};
struct DecodeE5m2 {
  static constexpr int kStep = 1, kPart = 1, kBytes = 16;
  explicit DecodeE5m2(const WeightView&) {}
  using State = const std::byte*;
  State prepare(const std::byte* p, int) const { return p; }
  Vec code(State p, int) const {
    Vec out;
    for (int i = 0; i < 16; ++i) out.v[i] = fp16_to_float(static_cast<std::uint16_t>(load_at<std::uint8_t>(p, i) << 8));
    return out;
  }
};
struct DecodeI8 {
  static constexpr int kStep = 1, kPart = 1, kBytes = 16;
  explicit DecodeI8(const WeightView&) {}
  using State = const std::byte*;
  State prepare(const std::byte* p, int) const { return p; }
  Vec code(State p, int) const { return load_i8(p); }
};
struct DecodeLut8 {
  static constexpr int kStep = 1, kPart = 1, kBytes = 16;
  explicit DecodeLut8(const WeightView& w) : table(w.table) {}
  using State = const std::byte*;
  State prepare(const std::byte* p, int) const { return p; }
  Vec code(State p, int) const {
    Vec out;
    for (int i = 0; i < 16; ++i) out.v[i] = table[load_at<std::uint8_t>(p, i)];
    return out;
  }
  const float* table;
};
struct DecodeN4i {  // see WeightKind::n4i for the powers of 256
  static constexpr int kStep = 8, kPart = 4, kBytes = 64;
  explicit DecodeN4i(const WeightView& w) : table(w.table16) {}
  std::uint8_t at(const std::byte* p, int row, int k) const {
    return table[static_cast<std::uint8_t>(p[row * 4 + k % 4]) >> (k / 4 * 4) & 15];
  }
  struct State {
    const std::byte* p;
    int part;
  };
  State prepare(const std::byte* p, int part) const { return {p, part}; }
  Vec code(const State& s, int j) const {
    constexpr float kPlace[4] = {1.0F, 256.0F, 65536.0F, 1.0F};
    Vec out;
    for (int i = 0; i < 16; ++i) out.v[i] = static_cast<float>(at(s.p, i, 4 * s.part + j)) * kPlace[j];
    return out;
  }
  void pairs(const std::byte* p, IntVec* out) const {
    constexpr int kOrder[8] = {0, 2, 1, 3, 4, 6, 5, 7};
    for (int i = 0; i < 16; ++i) {
      for (int pair = 0; pair < 4; ++pair) {
        const std::int16_t two[2] = {at(p, i, kOrder[2 * pair]), at(p, i, kOrder[2 * pair + 1])};
        std::memcpy(&out[pair].v[i], two, sizeof two);
      }
    }
  }
  const std::uint8_t* table;
};
struct DecodeN4u {
  static constexpr int kStep = 8, kPart = 4, kBytes = 64;
  explicit DecodeN4u(const WeightView&) {}
  struct State {
    const std::byte* p;
    int part;
  };
  static std::int16_t at(const std::byte* p, int row, int k) {
    return static_cast<std::int16_t>(static_cast<std::uint8_t>(p[row * 4 + k % 4]) >> (k / 4 * 4) & 15);
  }
  State prepare(const std::byte* p, int part) const { return {p, part}; }
  Vec code(const State& s, int j) const {
    constexpr float kPlace[8] = {1.0F, 0x1p8F, 0x1p16F, 0x1p24F, 0x1p4F, 0x1p12F, 0x1p20F, 1.0F};
    const int k = 4 * s.part + j;
    Vec out;
    for (int i = 0; i < 16; ++i) out.v[i] = static_cast<float>(at(s.p, i, k)) * kPlace[k];
    return out;
  }
  void pairs(const std::byte* p, IntVec* out) const {
    constexpr int kOrder[8] = {0, 2, 1, 3, 4, 6, 5, 7};
    for (int i = 0; i < 16; ++i) {
      for (int pair = 0; pair < 4; ++pair) {
        const std::int16_t two[2] = {at(p, i, kOrder[2 * pair]), at(p, i, kOrder[2 * pair + 1])};
        std::memcpy(&out[pair].v[i], two, sizeof two);
      }
    }
  }
};
struct DecodeN4f {
  static constexpr int kStep = 2, kPart = 2, kBytes = 16;
  explicit DecodeN4f(const WeightView& w) : table(w.table) {}
  using State = const std::byte*;
  State prepare(const std::byte* p, int) const { return p; }
  Vec code(State p, int j) const {
    Vec out;
    for (int i = 0; i < 16; ++i) out.v[i] = table[load_at<std::uint8_t>(p, i) >> (4 * j) & 15];
    return out;
  }
  const float* table;
};
struct DecodeI8x4 {
  static constexpr int kStep = 4, kBytes = 64;
  explicit DecodeI8x4(const WeightView&) {}
  void pairs(const std::byte* p, IntVec* out) const {
    for (int i = 0; i < 16; ++i) {
      for (int pair = 0; pair < 2; ++pair) {
        const std::int16_t two[2] = {load_at<std::uint8_t>(p, 4 * i + pair),
                                     load_at<std::uint8_t>(p, 4 * i + pair + 2)};
        std::memcpy(&out[pair].v[i], two, sizeof two);
      }
    }
  }
};

#include "kernels/matmul/kernel_body.h"
}  // namespace

const KernelSet& kernels() {
  return kSet;
}

}  // namespace halftone::scalar
