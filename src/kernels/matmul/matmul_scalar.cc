// The reference path: no intrinsics, the same order of operations as the SIMD files.
#include <cmath>
#include <cstring>

#include "kernels/matmul/kernel_view.h"
#include "numeric/format.h"

namespace halftone::scalar {
namespace {

using namespace matmul_detail;

constexpr Isa kIsa = Isa::scalar;

struct Lanes {
  float v[kTileRows];
};
struct Wide {
  std::int32_t v[kTileRows];
};
struct Pairs {
  std::int16_t v[kTileRows][2];
};

template <class F>
Lanes each_lane(const F& f) {
  Lanes r;
  for (int i = 0; i < kTileRows; ++i) r.v[i] = f(i);
  return r;
}
Lanes lanes_set(float x) {
  return each_lane([x](int) { return x; });
}
Lanes lanes_zero() { return lanes_set(0.0F); }
Lanes lanes_load(const float* p) {
  return each_lane([p](int i) { return p[i]; });
}
std::uint16_t load16(const std::uint8_t* p) {
  std::uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}
Lanes lanes_load_bf16(const std::uint8_t* p) {
  return each_lane([p](int i) { return bf16_to_float(load16(p + 2 * i)); });
}
Lanes lanes_load_fp16(const std::uint8_t* p) {
  return each_lane([p](int i) { return fp16_to_float(load16(p + 2 * i)); });
}
void lanes_store(float* p, const Lanes& a) { std::memcpy(p, a.v, sizeof(a.v)); }
Lanes lanes_mul(const Lanes& a, const Lanes& b) {
  return each_lane([&](int i) { return a.v[i] * b.v[i]; });
}
Lanes lanes_fma(const Lanes& a, const Lanes& b, const Lanes& c) {
  return each_lane([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
}

struct FloatDomain {
  using X = float;
  using Panel = float;
  using Weights = Lanes;
  using Sum = Lanes;
  static constexpr int kPer = 1, kPanelStep = kTileRows, kMicroRows = 4, kMicroTiles = 1;
  static Sum zero() { return lanes_zero(); }
  static float broadcast(const float* x) { return *x; }
  static Sum mac(float x, const Weights& w, const Sum& sum) {
    return each_lane([&](int i) { return std::fma(x, w.v[i], sum.v[i]); });
  }
  static Lanes result(const Sum& sum) { return sum; }
  static void store_panel(float* p, const Weights& w) { lanes_store(p, w); }
  static Weights load_panel(const float* p) { return lanes_load(p); }
};

struct IntDomain {
  using X = std::int16_t;
  using Panel = std::int16_t;
  using Weights = Pairs;
  using Sum = Wide;
  static constexpr int kPer = 2, kPanelStep = 2 * kTileRows, kMicroRows = 4, kMicroTiles = 1;
  struct Two {
    std::int32_t a, b;
  };
  static Sum zero() { return {}; }
  static Two broadcast(const std::int16_t* x) { return {x[0], x[1]}; }
  static Sum mac(Two x, const Weights& w, Sum sum) {
    for (int i = 0; i < kTileRows; ++i) sum.v[i] += x.a * w.v[i][0] + x.b * w.v[i][1];
    return sum;
  }
  static Lanes result(const Sum& sum) {
    return each_lane([&](int i) { return static_cast<float>(sum.v[i]); });
  }
  static void store_panel(std::int16_t* p, const Weights& w) { std::memcpy(p, w.v, sizeof(w.v)); }
  static Weights load_panel(const std::int16_t* p) {
    Weights w;
    std::memcpy(w.v, p, sizeof(w.v));
    return w;
  }
};

struct NoContext {
  explicit NoContext(const MatrixView&) {}
};

struct Fp32 {
  using Domain = FloatDomain;
  static constexpr int kSteps = 1, kBytes = 64, kVectorTiles = 2;
  struct Context : NoContext {
    using NoContext::NoContext;
    void decode(const std::uint8_t* p, Lanes (&w)[1]) const { std::memcpy(w[0].v, p, sizeof(w[0].v)); }
  };
};

struct Bf16 {
  using Domain = FloatDomain;
  static constexpr int kSteps = 1, kBytes = 32, kVectorTiles = 2;
  struct Context : NoContext {
    using NoContext::NoContext;
    void decode(const std::uint8_t* p, Lanes (&w)[1]) const { w[0] = lanes_load_bf16(p); }
  };
};

struct Fp16 {
  using Domain = FloatDomain;
  static constexpr int kSteps = 1, kBytes = 32, kVectorTiles = 2;
  struct Context : NoContext {
    using NoContext::NoContext;
    void decode(const std::uint8_t* p, Lanes (&w)[1]) const { w[0] = lanes_load_fp16(p); }
  };
};

// Sign to the top, exponent and mantissa to where FP16 has them: an exponent of 3 or 4 bits never reaches FP16's
// infinities, and subnormals stay subnormals.
template <int kMantissa>
struct Fp8Small {
  using Domain = FloatDomain;
  static constexpr int kSteps = 1, kBytes = 16, kVectorTiles = 2;
  struct Context : NoContext {
    using NoContext::NoContext;
    void decode(const std::uint8_t* p, Lanes (&w)[1]) const {
      w[0] = each_lane([p](int i) {
        return fp16_to_float(static_cast<std::uint16_t>((p[i] & 0x80) << 8 | (p[i] & 0x7F) << (10 - kMantissa)));
      });
    }
  };
};

struct Fp8E5M2 {
  using Domain = FloatDomain;
  static constexpr int kSteps = 1, kBytes = 16, kVectorTiles = 2;
  struct Context : NoContext {
    using NoContext::NoContext;
    void decode(const std::uint8_t* p, Lanes (&w)[1]) const {
      w[0] = each_lane([p](int i) { return fp16_to_float(static_cast<std::uint16_t>(p[i] << 8)); });
    }
  };
};

struct Int8 {
  using Domain = FloatDomain;
  static constexpr int kSteps = 1, kBytes = 16, kVectorTiles = 2;
  struct Context : NoContext {
    using NoContext::NoContext;
    void decode(const std::uint8_t* p, Lanes (&w)[1]) const {
      w[0] = each_lane([p](int i) { return static_cast<float>(static_cast<std::int8_t>(p[i])); });
    }
  };
};

struct Table8 {
  using Domain = FloatDomain;
  static constexpr int kSteps = 1, kBytes = 16, kVectorTiles = 2;
  struct Context {
    const float* table;
    explicit Context(const MatrixView& v) : table(v.table) {}
    void decode(const std::uint8_t* p, Lanes (&w)[1]) const {
      w[0] = each_lane([&](int i) { return table[p[i]]; });
    }
  };
};

struct Table4Fp32 {
  using Domain = FloatDomain;
  static constexpr int kSteps = 4, kBytes = 32, kVectorTiles = 2;
  struct Context {
    const float* table;
    explicit Context(const MatrixView& v) : table(v.table) {}
    void decode(const std::uint8_t* p, Lanes (&w)[4]) const {
      for (int half = 0; half < 2; ++half) {
        w[2 * half] = each_lane([&](int i) { return table[p[16 * half + i] & 15]; });
        w[2 * half + 1] = each_lane([&](int i) { return table[p[16 * half + i] >> 4]; });
      }
    }
  };
};
using Table4Fp16 = Table4Fp32;

struct Int8ByInt8 {
  using Domain = IntDomain;
  static constexpr int kSteps = 1, kBytes = 32, kVectorTiles = 2;
  struct Context : NoContext {
    using NoContext::NoContext;
    void decode(const std::uint8_t* p, Pairs (&w)[1]) const {
      for (int i = 0; i < 2 * kTileRows; ++i) w[0].v[i / 2][i % 2] = static_cast<std::int8_t>(p[i]);
    }
  };
};

struct Int4ByInt8 {
  using Domain = IntDomain;
  static constexpr int kSteps = 2, kBytes = 32, kVectorTiles = 2;
  struct Context {
    const std::uint8_t* table;
    explicit Context(const MatrixView& v) : table(v.table_bytes) {}
    void decode(const std::uint8_t* p, Pairs (&w)[2]) const {
      for (int i = 0; i < 2 * kTileRows; ++i) {
        w[0].v[i / 2][i % 2] = static_cast<std::int8_t>(table[p[i] & 15]);
        w[1].v[i / 2][i % 2] = static_cast<std::int8_t>(table[p[i] >> 4]);
      }
    }
  };
};

#include "kernels/matmul/matmul_loops.inc"

}  // namespace

matmul_detail::KernelTable matmul_table() { return all_kernels(); }

}  // namespace halftone::scalar
