// Decoding of GGUF block types (shared/formats.md 2.6). Every type is an unpacker to (codes, scales, minimums); values
// follow from these in the reference's own order of roundings: fl(fl(scale * code) + minimum).
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "numeric/ggml_detail.h"

namespace halftone {
namespace {

static_assert(std::endian::native == std::endian::little, "files and words share one byte order");

using Byte = std::uint8_t;

using ggml_detail::kFp4Doubled;
using ggml_detail::kIq4Levels;
using ggml_detail::load_half;

std::uint16_t load16(const Byte* p) {
  std::uint16_t v = 0;
  std::memcpy(&v, p, sizeof v);
  return v;
}
std::uint32_t load32(const Byte* p) {
  std::uint32_t v = 0;
  std::memcpy(&v, p, sizeof v);
  return v;
}

std::int8_t i8(int v) {
  return static_cast<std::int8_t>(v);
}

// Every unpacker: kElements, kBytes, kGroup, kMinimum, kLow and kBits (of GgmlAffine), and
// unpack(block, codes[kElements], scales[kElements / kGroup], minimums[kElements / kGroup or unused]).
template <int Elements, int Bytes, int Group, int Low, int Bits, bool Minimum = false>
struct Shape {
  static constexpr int kElements = Elements, kBytes = Bytes, kGroup = Group, kLow = Low, kBits = Bits;
  static constexpr bool kMinimum = Minimum;
};

struct Q4_0 : Shape<32, 18, 32, -8, 4> {
  static void unpack(const Byte* b, std::int8_t* codes, float* scales, float*) {
    scales[0] = load_half(b);
    for (int j = 0; j < 16; ++j) {
      codes[j] = i8((b[2 + j] & 15) - 8);
      codes[j + 16] = i8((b[2 + j] >> 4) - 8);
    }
  }
};

struct Q4_1 : Shape<32, 20, 32, 0, 4, true> {
  static void unpack(const Byte* b, std::int8_t* codes, float* scales, float* minimums) {
    scales[0] = load_half(b);
    minimums[0] = load_half(b + 2);
    for (int j = 0; j < 16; ++j) {
      codes[j] = i8(b[4 + j] & 15);
      codes[j + 16] = i8(b[4 + j] >> 4);
    }
  }
};

void unpack_five_bits(const Byte* high, const Byte* low, int offset, std::int8_t* codes) {
  const std::uint32_t h = load32(high);
  for (int j = 0; j < 16; ++j) {
    codes[j] = i8(((low[j] & 15) | static_cast<int>((h >> j) & 1U) << 4) - offset);
    codes[j + 16] = i8(((low[j] >> 4) | static_cast<int>((h >> (j + 16)) & 1U) << 4) - offset);
  }
}

struct Q5_0 : Shape<32, 22, 32, -16, 8> {
  static void unpack(const Byte* b, std::int8_t* codes, float* scales, float*) {
    scales[0] = load_half(b);
    unpack_five_bits(b + 2, b + 6, 16, codes);
  }
};

struct Q5_1 : Shape<32, 24, 32, 0, 8, true> {
  static void unpack(const Byte* b, std::int8_t* codes, float* scales, float* minimums) {
    scales[0] = load_half(b);
    minimums[0] = load_half(b + 2);
    unpack_five_bits(b + 4, b + 8, 0, codes);
  }
};

struct Q8_0 : Shape<32, 34, 32, -128, 8> {
  static void unpack(const Byte* b, std::int8_t* codes, float* scales, float*) {
    scales[0] = load_half(b);
    std::memcpy(codes, b + 2, 32);
  }
};

struct Q8_1 : Shape<32, 36, 32, -128, 8> {
  static void unpack(const Byte* b, std::int8_t* codes, float* scales, float*) {
    scales[0] = load_half(b);
    std::memcpy(codes, b + 4, 32);
  }
};

struct Q8_K : Shape<256, 292, 32, -128, 8> {
  static void unpack(const Byte* b, std::int8_t* codes, float* scales, float*) {
    const float d = std::bit_cast<float>(load32(b));
    for (int g = 0; g < 8; ++g) scales[g] = d;
    std::memcpy(codes, b + 4, 256);
  }
};

struct Iq4Nl : Shape<32, 18, 32, -127, 8> {
  static void unpack(const Byte* b, std::int8_t* codes, float* scales, float*) {
    scales[0] = load_half(b);
    for (int j = 0; j < 16; ++j) {
      codes[j] = kIq4Levels[b[2 + j] & 15];
      codes[j + 16] = kIq4Levels[b[2 + j] >> 4];
    }
  }
};

struct Iq4Xs : Shape<256, 136, 32, -127, 8> {
  static void unpack(const Byte* b, std::int8_t* codes, float* scales, float*) {
    const float d = load_half(b);
    const unsigned high = load16(b + 2);
    for (int s = 0; s < 8; ++s) {
      const int low4 = (b[4 + s / 2] >> (4 * (s % 2))) & 15;
      const int scale = (low4 | static_cast<int>((high >> (2 * s)) & 3U) << 4) - 32;
      scales[s] = d * static_cast<float>(scale);
      const Byte* q = b + 8 + 16 * s;
      for (int j = 0; j < 16; ++j) {
        codes[32 * s + j] = kIq4Levels[q[j] & 15];
        codes[32 * s + j + 16] = kIq4Levels[q[j] >> 4];
      }
    }
  }
};

struct Mxfp4 : Shape<32, 17, 32, -12, 8> {
  static void unpack(const Byte* b, std::int8_t* codes, float* scales, float*) {
    // 2^(e - 128): half of the E8M0 scale, against the doubled codes. The two smallest are subnormal.
    const std::uint32_t bits = b[0] < 2 ? 0x00200000U << b[0] : static_cast<std::uint32_t>(b[0] - 1) << 23;
    scales[0] = std::bit_cast<float>(bits);
    for (int j = 0; j < 16; ++j) {
      codes[j] = kFp4Doubled[b[1 + j] & 15];
      codes[j + 16] = kFp4Doubled[b[1 + j] >> 4];
    }
  }
};

// Half of the unsigned E4M3 scale of a sub-block; 00 and 7F are zero.
float half_ue4m3(Byte code) {
  if (code == 0x7F) return 0.0F;
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  if (exponent == 0) return static_cast<float>(mantissa) * 0x1p-10F;
  return static_cast<float>(8 + mantissa) * std::bit_cast<float>(static_cast<std::uint32_t>(exponent - 11 + 127) << 23);
}

struct Nvfp4 : Shape<64, 36, 16, -12, 8> {
  static void unpack(const Byte* b, std::int8_t* codes, float* scales, float*) {
    for (int s = 0; s < 4; ++s) {
      scales[s] = half_ue4m3(b[s]);
      for (int j = 0; j < 8; ++j) {
        codes[16 * s + j] = kFp4Doubled[b[4 + 8 * s + j] & 15];
        codes[16 * s + j + 8] = kFp4Doubled[b[4 + 8 * s + j] >> 4];
      }
    }
  }
};

struct Q2_K : Shape<256, 84, 16, 0, 4, true> {
  static void unpack(const Byte* b, std::int8_t* codes, float* scales, float* minimums) {
    const float d = load_half(b + 80), dmin = load_half(b + 82);
    for (int s = 0; s < 16; ++s) {
      scales[s] = d * static_cast<float>(b[s] & 15);
      minimums[s] = -(dmin * static_cast<float>(b[s] >> 4));
    }
    for (int half = 0; half < 2; ++half) {
      const Byte* q = b + 16 + 32 * half;
      for (int k = 0; k < 4; ++k) {
        for (int l = 0; l < 32; ++l) codes[128 * half + 32 * k + l] = i8((q[l] >> (2 * k)) & 3);
      }
    }
  }
};

struct Q3_K : Shape<256, 110, 16, -4, 4> {
  static void unpack(const Byte* b, std::int8_t* codes, float* scales, float*) {
    const Byte* mask = b;
    const Byte* packed = b + 96;
    const float d = load_half(b + 108);
    for (int s = 0; s < 16; ++s) {
      const int low4 = s < 8 ? packed[s] & 15 : packed[s - 8] >> 4;
      const int high2 = (packed[8 + s % 4] >> (2 * (s / 4))) & 3;
      scales[s] = d * static_cast<float>((low4 | high2 << 4) - 32);
    }
    for (int half = 0; half < 2; ++half) {
      const Byte* q = b + 32 + 32 * half;
      for (int k = 0; k < 4; ++k) {
        for (int l = 0; l < 32; ++l) {
          const int high = (mask[l] >> (4 * half + k)) & 1;
          codes[128 * half + 32 * k + l] = i8(((q[l] >> (2 * k)) & 3) + 4 * high - 4);
        }
      }
    }
  }
};

// The six-bit scales and minimums of Q4_K and Q5_K.
void unpack_k4_scales(const Byte* b, float* scales, float* minimums) {
  const float d = load_half(b), dmin = load_half(b + 2);
  const Byte* q = b + 4;
  for (int s = 0; s < 8; ++s) {
    const int scale = s < 4 ? q[s] & 63 : (q[s + 4] & 15) | (q[s - 4] >> 6) << 4;
    const int minimum = s < 4 ? q[s + 4] & 63 : (q[s + 4] >> 4) | (q[s] >> 6) << 4;
    scales[s] = d * static_cast<float>(scale);
    minimums[s] = -(dmin * static_cast<float>(minimum));
  }
}

struct Q4_K : Shape<256, 144, 32, 0, 4, true> {
  static void unpack(const Byte* b, std::int8_t* codes, float* scales, float* minimums) {
    unpack_k4_scales(b, scales, minimums);
    for (int c = 0; c < 4; ++c) {
      const Byte* q = b + 16 + 32 * c;
      for (int l = 0; l < 32; ++l) {
        codes[64 * c + l] = i8(q[l] & 15);
        codes[64 * c + 32 + l] = i8(q[l] >> 4);
      }
    }
  }
};

struct Q5_K : Shape<256, 176, 32, 0, 8, true> {
  static void unpack(const Byte* b, std::int8_t* codes, float* scales, float* minimums) {
    unpack_k4_scales(b, scales, minimums);
    const Byte* high = b + 16;
    for (int c = 0; c < 4; ++c) {
      const Byte* q = b + 48 + 32 * c;
      for (int l = 0; l < 32; ++l) {
        codes[64 * c + l] = i8((q[l] & 15) | ((high[l] >> (2 * c)) & 1) << 4);
        codes[64 * c + 32 + l] = i8((q[l] >> 4) | ((high[l] >> (2 * c + 1)) & 1) << 4);
      }
    }
  }
};

struct Q6_K : Shape<256, 210, 16, -32, 8> {
  static void unpack(const Byte* b, std::int8_t* codes, float* scales, float*) {
    const float d = load_half(b + 208);
    for (int s = 0; s < 16; ++s) scales[s] = d * static_cast<float>(static_cast<std::int8_t>(b[192 + s]));
    for (int half = 0; half < 2; ++half) {
      const Byte* low = b + 64 * half;
      const Byte* high = b + 128 + 32 * half;
      std::int8_t* out = codes + 128 * half;
      for (int l = 0; l < 32; ++l) {
        out[l] = i8(((low[l] & 15) | (high[l] & 3) << 4) - 32);
        out[l + 32] = i8(((low[l + 32] & 15) | ((high[l] >> 2) & 3) << 4) - 32);
        out[l + 64] = i8(((low[l] >> 4) | ((high[l] >> 4) & 3) << 4) - 32);
        out[l + 96] = i8(((low[l + 32] >> 4) | (high[l] >> 6) << 4) - 32);
      }
    }
  }
};

struct Tq1_0 : Shape<256, 54, 256, -1, 4> {
  static std::int8_t trit(Byte byte, int n) {
    constexpr std::array<int, 5> kPower = {1, 3, 9, 27, 81};
    const int shifted = (byte * kPower[static_cast<std::size_t>(n)]) & 255;
    return i8(((shifted * 3) >> 8) - 1);
  }
  static void unpack(const Byte* b, std::int8_t* codes, float* scales, float*) {
    scales[0] = load_half(b + 52);
    for (int n = 0; n < 5; ++n) {
      for (int m = 0; m < 32; ++m) codes[32 * n + m] = trit(b[m], n);
      for (int m = 0; m < 16; ++m) codes[160 + 16 * n + m] = trit(b[32 + m], n);
    }
    for (int n = 0; n < 4; ++n) {
      for (int m = 0; m < 4; ++m) codes[240 + 4 * n + m] = trit(b[48 + m], n);
    }
  }
};

struct Tq2_0 : Shape<256, 66, 256, -1, 4> {
  static void unpack(const Byte* b, std::int8_t* codes, float* scales, float*) {
    scales[0] = load_half(b + 64);
    for (int half = 0; half < 2; ++half) {
      for (int k = 0; k < 4; ++k) {
        for (int m = 0; m < 32; ++m) codes[128 * half + 32 * k + m] = i8(((b[32 * half + m] >> (2 * k)) & 3) - 1);
      }
    }
  }
};

// One sign bit a value, lowest bit first: set is +d, clear is -d.
struct Q1_0 : Shape<128, 18, 128, -1, 4> {
  static void unpack(const Byte* b, std::int8_t* codes, float* scales, float*) {
    scales[0] = load_half(b);
    for (int j = 0; j < 128; ++j) codes[j] = i8(2 * ((b[2 + j / 8] >> (j % 8)) & 1) - 1);
  }
};

// Two bits a value, lowest bits first, in the order of the elements; value (q - 1) * d.
struct Q2_0 : Shape<64, 18, 64, -1, 4> {
  static void unpack(const Byte* b, std::int8_t* codes, float* scales, float*) {
    scales[0] = load_half(b);
    for (int j = 0; j < 64; ++j) codes[j] = i8(((b[2 + j / 4] >> (2 * (j % 4))) & 3) - 1);
  }
};

// Calls visit(unpacker) for a block type; false for other types.
template <class Visit>
bool visit_block_type(GgmlType type, const Visit& visit) {
  switch (type) {
    case GgmlType::q4_0:
      visit(Q4_0{});
      return true;
    case GgmlType::q4_1:
      visit(Q4_1{});
      return true;
    case GgmlType::q5_0:
      visit(Q5_0{});
      return true;
    case GgmlType::q5_1:
      visit(Q5_1{});
      return true;
    case GgmlType::q8_0:
      visit(Q8_0{});
      return true;
    case GgmlType::q8_1:
      visit(Q8_1{});
      return true;
    case GgmlType::q2_k:
      visit(Q2_K{});
      return true;
    case GgmlType::q3_k:
      visit(Q3_K{});
      return true;
    case GgmlType::q4_k:
      visit(Q4_K{});
      return true;
    case GgmlType::q5_k:
      visit(Q5_K{});
      return true;
    case GgmlType::q6_k:
      visit(Q6_K{});
      return true;
    case GgmlType::q8_k:
      visit(Q8_K{});
      return true;
    case GgmlType::iq4_nl:
      visit(Iq4Nl{});
      return true;
    case GgmlType::iq4_xs:
      visit(Iq4Xs{});
      return true;
    case GgmlType::mxfp4:
      visit(Mxfp4{});
      return true;
    case GgmlType::nvfp4:
      visit(Nvfp4{});
      return true;
    case GgmlType::tq1_0:
      visit(Tq1_0{});
      return true;
    case GgmlType::tq2_0:
      visit(Tq2_0{});
      return true;
    case GgmlType::q1_0:
      visit(Q1_0{});
      return true;
    case GgmlType::q2_0:
      visit(Q2_0{});
      return true;
    default:
      return false;
  }
}

template <class T, class Convert>
void decode_plain(const std::byte* bytes, std::span<float> values, const Convert& convert) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    T v;
    std::memcpy(&v, bytes + i * sizeof(T), sizeof(T));
    values[i] = convert(v);
  }
}

bool decode_plain_type(GgmlType type, const std::byte* bytes, std::span<float> values) {
  const auto number = [](auto v) { return static_cast<float>(v); };
  switch (type) {
    case GgmlType::f32:
      if (!values.empty()) std::memcpy(values.data(), bytes, values.size_bytes());
      return true;
    case GgmlType::f16:
      decode_plain<std::uint16_t>(bytes, values, fp16_to_float);
      return true;
    case GgmlType::bf16:
      decode_plain<std::uint16_t>(
          bytes, values, [](std::uint16_t v) { return std::bit_cast<float>(static_cast<std::uint32_t>(v) << 16); });
      return true;
    case GgmlType::f64:
      decode_plain<double>(bytes, values, number);
      return true;
    case GgmlType::i8:
      decode_plain<std::int8_t>(bytes, values, number);
      return true;
    case GgmlType::i16:
      decode_plain<std::int16_t>(bytes, values, number);
      return true;
    case GgmlType::i32:
      decode_plain<std::int32_t>(bytes, values, number);
      return true;
    case GgmlType::i64:
      decode_plain<std::int64_t>(bytes, values, number);
      return true;
    default:
      return false;
  }
}

void check_sizes(const GgmlTypeInfo& info, std::size_t bytes, std::size_t elements) {
  const auto block = static_cast<std::size_t>(info.block_elements);
  HT_CHECK(elements % block == 0 && bytes == elements / block * static_cast<std::size_t>(info.block_bytes));
}

[[noreturn]] void fail_undecodable(const GgmlTypeInfo& info) {
  fail(ErrorKind::unsupported, "the GGUF type {} is recognised but cannot be decoded; convert the file to another type",
       info.name);
}

}  // namespace

void ggml_decode(GgmlType type, std::span<const std::byte> blocks, std::span<float> values) {
  const GgmlTypeInfo& info = ggml_info(type);
  if (!info.can_decode) fail_undecodable(info);
  check_sizes(info, blocks.size(), values.size());
  if (decode_plain_type(type, blocks.data(), values)) return;
  const bool known = visit_block_type(type, [&](auto unpacker) {
    using T = decltype(unpacker);
    constexpr int kGroups = T::kElements / T::kGroup;
    std::array<std::int8_t, T::kElements> codes;
    std::array<float, kGroups> scales;
    std::array<float, kGroups> minimums{};
    const auto* block = reinterpret_cast<const Byte*>(blocks.data());
    float* out = values.data();
    for (std::size_t n = values.size() / T::kElements; n > 0; --n, block += T::kBytes) {
      T::unpack(block, codes.data(), scales.data(), minimums.data());
      const std::int8_t* code = codes.data();
      for (std::size_t g = 0; g < kGroups; ++g, out += T::kGroup, code += T::kGroup) {
        const float scale = scales[g];
        if constexpr (T::kMinimum) {
          const float minimum = minimums[g];
          for (int j = 0; j < T::kGroup; ++j) out[j] = scale * static_cast<float>(code[j]) + minimum;
        } else {
          for (int j = 0; j < T::kGroup; ++j) out[j] = scale * static_cast<float>(code[j]);
        }
      }
    }
  });
  HT_CHECK(known);
}

GgmlAffine ggml_affine(GgmlType type) {
  const GgmlTypeInfo& info = ggml_info(type);
  if (!info.can_decode) fail_undecodable(info);
  GgmlAffine affine;
  const bool known = visit_block_type(type, [&](auto unpacker) {
    using T = decltype(unpacker);
    affine = {.group = T::kGroup, .code_bits = T::kBits, .code_low = T::kLow, .has_minimum = T::kMinimum};
  });
  if (!known) fail(ErrorKind::unsupported, "the GGUF type {} holds plain numbers, not scaled blocks", info.name);
  return affine;
}

void ggml_decode_affine(GgmlType type, std::span<const std::byte> blocks, std::span<std::int8_t> codes,
                        std::span<float> scales, std::span<float> minimums) {
  const GgmlAffine affine = ggml_affine(type);
  check_sizes(ggml_info(type), blocks.size(), codes.size());
  const std::size_t groups = codes.size() / static_cast<std::size_t>(affine.group);
  HT_CHECK(scales.size() == groups && minimums.size() == (affine.has_minimum ? groups : 0));
  visit_block_type(type, [&](auto unpacker) {
    using T = decltype(unpacker);
    constexpr std::size_t kGroups = T::kElements / T::kGroup;
    const auto* block = reinterpret_cast<const Byte*>(blocks.data());
    for (std::size_t n = 0; n < codes.size() / T::kElements; ++n) {
      T::unpack(block + n * T::kBytes, codes.data() + n * T::kElements, scales.data() + n * kGroups,
                T::kMinimum ? minimums.data() + n * kGroups : nullptr);
    }
  });
}

}  // namespace halftone
