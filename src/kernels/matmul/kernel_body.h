// The kernels, written once over Vec (16 FP32 lanes) and the decoders that the including file defines in its own namespace.
// No include guard and no includes: each instruction set takes its own copy. Nothing here may use inline code of others.

// The small arrays of sums are registers only if the loops over them are unrolled, at any optimization level.
#define HT_UNROLL _Pragma("GCC unroll 16")

// Adds the sum of a segment to y as the weights' scales say.
static inline Vec add_segment(const WeightView& w, std::int64_t tile, std::int64_t segment, Vec sum, Vec y, float x_sum) {
  if (w.scale_at_end || w.scales == nullptr) {
    y = vadd(y, sum);
  } else {
    y = vfma(vload(w.scales + (tile * w.segments + segment) * 16), sum, y);
    if (w.minimums != nullptr) y = vfma(vload(w.minimums + (tile * w.segments + segment) * 16), vset(x_sum), y);
  }
  return y;
}

static inline void finish(const ProductArgs& a, std::int64_t tile, std::int64_t row, Vec y) {
  const WeightView& w = a.w;
  if (w.scale_at_end && w.scales != nullptr) {
    y = vmul(y, vload(w.scales + tile * 16));
    if (w.minimums != nullptr) {
      float sum = 0;
      for (std::int64_t s = 0; s < w.segments; ++s) sum += a.segment_sums[row * w.segments + s];
      y = vfma(vload(w.minimums + tile * 16), vset(sum), y);
    }
  }
  if (a.row_scales != nullptr) y = vmul(y, vset(a.row_scales[row]));
  float* out = a.y + row * a.ldy + tile * 16;
  const std::int64_t n = w.rows - tile * 16;
  if (n >= 16) {
    if (a.bias != nullptr) y = vadd(y, vload(a.bias + tile * 16));
    vstore(out, y);
    return;
  }
  float lanes[16];
  vstore(lanes, y);
  for (std::int64_t i = 0; i < n; ++i) out[i] = a.bias != nullptr ? lanes[i] + a.bias[tile * 16 + i] : lanes[i];
}

static inline float segment_sum(const ProductArgs& a, std::int64_t row, std::int64_t segment) {
  return a.segment_sums != nullptr ? a.segment_sums[row * a.w.segments + segment] : 0.0F;
}

// Few rows of x: codes are decoded where they are used. T tiles at once keep enough sums in flight.
template <class D, int T, int R>
static inline void direct(const ProductArgs& a, std::int64_t tile, std::int64_t row) {
  const WeightView& w = a.w;
  const D decoder(w);
  Vec y[T][R];
  HT_UNROLL for (int t = 0; t < T; ++t) {
    HT_UNROLL for (int r = 0; r < R; ++r) y[t][r] = vzero();
  }
  for (std::int64_t s = 0; s < w.segments; ++s) {
    const std::int64_t k0 = s * w.segment;
    const std::int64_t length = k0 + w.segment <= w.cols ? w.segment : w.cols - k0;
    const float* x = a.x + row * a.ldx + k0;
    const std::byte* at = w.codes + tile * w.tile_bytes + s * w.segment_bytes;
    Vec sum[T][R];
    HT_UNROLL for (int t = 0; t < T; ++t) {
      HT_UNROLL for (int r = 0; r < R; ++r) sum[t][r] = vzero();
    }
    std::int64_t k = 0;
    for (; k + D::kStep <= length; k += D::kStep) {
      Vec code[T][D::kStep];
      HT_UNROLL for (int t = 0; t < T; ++t) {
        vprefetch(at + t * w.tile_bytes + 1024);
        decoder.decode(at + t * w.tile_bytes, code[t]);
      }
      at += D::kBytes;
      HT_UNROLL for (int i = 0; i < D::kStep; ++i) {
        HT_UNROLL for (int r = 0; r < R; ++r) {
          const Vec xr = vset(x[r * a.ldx + k + i]);
          HT_UNROLL for (int t = 0; t < T; ++t) sum[t][r] = vfma(xr, code[t][i], sum[t][r]);
        }
      }
    }
    if (D::kStep == 2 && k < length) {
      HT_UNROLL for (int t = 0; t < T; ++t) {
        Vec code[D::kStep];
        decoder.decode(at + t * w.tile_bytes, code);
        HT_UNROLL for (int r = 0; r < R; ++r) sum[t][r] = vfma(vset(x[r * a.ldx + k]), code[0], sum[t][r]);
      }
    }
    HT_UNROLL for (int t = 0; t < T; ++t) {
      HT_UNROLL for (int r = 0; r < R; ++r) y[t][r] = add_segment(w, tile + t, s, sum[t][r], y[t][r], segment_sum(a, row + r, s));
    }
  }
  HT_UNROLL for (int t = 0; t < T; ++t) {
    HT_UNROLL for (int r = 0; r < R; ++r) finish(a, tile + t, row + r, y[t][r]);
  }
}

// R rows of x times a decoded segment.
template <int R>
static inline void panel_rows(const ProductArgs& a, std::int64_t tile, std::int64_t s, std::int64_t row, std::int64_t length,
                              const float* panel, float* y) {
  const float* x = a.x + row * a.ldx + s * a.w.segment;
  Vec sum[R];
  HT_UNROLL for (int r = 0; r < R; ++r) sum[r] = vzero();
  for (std::int64_t k = 0; k < length; ++k) {
    const Vec code = vload(panel + k * 16);
    HT_UNROLL for (int r = 0; r < R; ++r) sum[r] = vfma(vset(x[r * a.ldx + k]), code, sum[r]);
  }
  HT_UNROLL for (int r = 0; r < R; ++r) {
    vstore(y + r * 16, add_segment(a.w, tile, s, sum[r], vload(y + r * 16), segment_sum(a, row + r, s)));
  }
}

// Many rows of x: a segment of a tile is decoded once and used for all of them.
template <class D>
static inline void panel(const ProductArgs& a, std::int64_t tile) {
  const WeightView& w = a.w;
  const D decoder(w);
  alignas(64) float decoded[(kPanelSegment + 1) * 16];
  alignas(64) float y[kPanelRows * 16];
  for (std::int64_t row0 = a.first_row; row0 < a.last_row; row0 += kPanelRows) {
    const std::int64_t rows = a.last_row - row0 < kPanelRows ? a.last_row - row0 : kPanelRows;
    for (std::int64_t i = 0; i < rows * 16; i += 16) vstore(y + i, vzero());
    for (std::int64_t s = 0; s < w.segments; ++s) {
      const std::int64_t k0 = s * w.segment;
      const std::int64_t length = k0 + w.segment <= w.cols ? w.segment : w.cols - k0;
      const std::byte* at = w.codes + tile * w.tile_bytes + s * w.segment_bytes;
      for (std::int64_t k = 0; k < length; k += D::kStep, at += D::kBytes) {
        Vec code[D::kStep];
        decoder.decode(at, code);
        HT_UNROLL for (int i = 0; i < D::kStep; ++i) vstore(decoded + (k + i) * 16, code[i]);
      }
      std::int64_t r = 0;
      for (; r + kMicroRows <= rows; r += kMicroRows) panel_rows<kMicroRows>(a, tile, s, row0 + r, length, decoded, y + r * 16);
      for (; r < rows; ++r) panel_rows<1>(a, tile, s, row0 + r, length, decoded, y + r * 16);
    }
    for (std::int64_t r = 0; r < rows; ++r) finish(a, tile, row0 + r, vload(y + r * 16));
  }
}

template <class D>
static void product(const ProductArgs& a) {
  const std::int64_t rows = a.last_row - a.first_row;
  if (rows > 4 && a.w.segment <= kPanelSegment) {
    for (std::int64_t tile = a.first_tile; tile < a.last_tile; ++tile) panel<D>(a, tile);
    return;
  }
  std::int64_t tile = a.first_tile;
  if (rows == 1) {
    for (; tile + 2 <= a.last_tile; tile += 2) direct<D, 2, 1>(a, tile, a.first_row);
  }
  for (; tile < a.last_tile; ++tile) {
    std::int64_t row = a.first_row;
    for (; row + 4 <= a.last_row; row += 4) direct<D, 1, 4>(a, tile, row);
    for (; row + 2 <= a.last_row; row += 2) direct<D, 1, 2>(a, tile, row);
    if (row < a.last_row) direct<D, 1, 1>(a, tile, row);
  }
}

// INT8 activations: pairs of products summed in int32, which is exact, so their order is free; a segment is at most
// kIntegerSegment long, so that its sum is an exact FP32 number and the result equals the FP32 kernels' on the same codes.
template <class D, int T, int R>
static inline void integer_block(const ProductArgs& a, std::int64_t tile, std::int64_t row) {
  const WeightView& w = a.w;
  const D decoder(w);
  const std::int64_t padded = (w.segment + 1) / 2 * 2;
  Vec y[T][R];
  HT_UNROLL for (int t = 0; t < T; ++t) {
    HT_UNROLL for (int r = 0; r < R; ++r) y[t][r] = vzero();
  }
  for (std::int64_t s = 0; s < w.segments; ++s) {
    const std::int64_t k0 = s * w.segment;
    const std::int64_t length = k0 + w.segment <= w.cols ? w.segment : w.cols - k0;
    const std::int16_t* x = a.x16 + row * a.ldx16 + s * padded;
    const std::byte* at = w.codes + tile * w.tile_bytes + s * w.segment_bytes;
    IntVec sum[T][R];
    HT_UNROLL for (int t = 0; t < T; ++t) {
      HT_UNROLL for (int r = 0; r < R; ++r) sum[t][r] = izero();
    }
    for (std::int64_t k = 0; k < length; k += 2, at += D::kBytes) {
      IntVec code[T];
      HT_UNROLL for (int t = 0; t < T; ++t) {
        if (R == 1) vprefetch(at + t * w.tile_bytes + 1024);
        code[t] = decoder.pairs(at + t * w.tile_bytes);
      }
      HT_UNROLL for (int r = 0; r < R; ++r) {
        const IntVec xr = iset_pair(x + r * a.ldx16 + k);
        HT_UNROLL for (int t = 0; t < T; ++t) sum[t][r] = imadd(xr, code[t], sum[t][r]);
      }
    }
    HT_UNROLL for (int t = 0; t < T; ++t) {
      HT_UNROLL for (int r = 0; r < R; ++r) {
        y[t][r] = add_segment(w, tile + t, s, ifloat(sum[t][r]), y[t][r], segment_sum(a, row + r, s));
      }
    }
  }
  HT_UNROLL for (int t = 0; t < T; ++t) {
    HT_UNROLL for (int r = 0; r < R; ++r) finish(a, tile + t, row + r, y[t][r]);
  }
}

template <class D>
static void integer_product(const ProductArgs& a) {
  std::int64_t tile = a.first_tile;
  if (a.last_row - a.first_row == 1) {
    for (; tile + 2 <= a.last_tile; tile += 2) integer_block<D, 2, 1>(a, tile, a.first_row);
  }
  for (; tile < a.last_tile; ++tile) {
    std::int64_t row = a.first_row;
    for (; row + kIntegerRows <= a.last_row; row += kIntegerRows) integer_block<D, 1, kIntegerRows>(a, tile, row);
    for (; row < a.last_row; ++row) integer_block<D, 1, 1>(a, tile, row);
  }
}

static const KernelSet kSet = {
    {product<DecodeF32>, product<DecodeBf16>, product<DecodeF16>, product<DecodeE4m3>, product<DecodeE5m2>,
     product<DecodeI8>, product<DecodeLut8>, product<DecodeN4i>, product<DecodeN4f>, product<DecodeI8x2>},
    {nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, integer_product<DecodeN4i>, nullptr,
     integer_product<DecodeI8x2>}};

#undef HT_UNROLL
