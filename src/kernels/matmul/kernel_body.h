// The kernels, written once over Vec (16 FP32 lanes), IntVec (16 int32 lanes) and the decoders that the including file
// defines in its own namespace. No include guard and no includes: each instruction set takes its own copy. Nothing here
// may use inline code of others.

// Ahead of the hardware, which begins anew at every page and tile.
constexpr int kPrefetchBytes = 512;

// The 16 scales, zero points or minimums behind the codes of a segment (or of a tile).
struct Trailer {
  Vec scale, zero, minimum;

  Trailer(const WeightView& w, const std::byte* at) : scale(vset(w.unit)), zero(vset(w.offset)), minimum(vzero()) {
    switch (w.scale) {
      case ScaleFormat::none:
        break;
      case ScaleFormat::f32:
        scale = vmul(vload(reinterpret_cast<const float*>(at)), scale);
        break;
      case ScaleFormat::bf16:
        scale = vmul(load_bf16(at), scale);
        break;
      case ScaleFormat::f16:
        scale = vmul(load_f16(at), scale);
        break;
      case ScaleFormat::e8m0:
        scale = vmul(load_e8m0(at), scale);
        break;
      case ScaleFormat::e4m3:
        scale = vmul(load_e4m3(at), scale);
        break;
    }
    const std::byte* end = at + w.trailer_bytes;
    if (w.minimum == MinimumKind::zero_point) zero = vadd(load_i8(end - 16), zero);
    if (w.minimum == MinimumKind::f32) minimum = vload(reinterpret_cast<const float*>(end - 64));
  }

  // y + scale (sum - zero x_sum) + minimum x_sum
  inline Vec add(const WeightView& w, Vec sum, Vec y, float x_sum) const {
    if (w.offset != 0.0F || w.minimum == MinimumKind::zero_point) sum = vfma(zero, vset(-x_sum), sum);
    y = vfma(scale, sum, y);
    if (w.minimum == MinimumKind::f32) y = vfma(minimum, vset(x_sum), y);
    return y;
  }
};

// What is done once a tile: the row's one scale, the scale of the row of x, the bias.
struct Ending {
  const ProductArgs& a;
  std::int64_t tile, n;  // n: outputs of this tile
  bool scaled;
  Trailer trailer;

  Ending(const ProductArgs& args, std::int64_t at)
      : a(args),
        tile(at),
        n(args.w.rows - at * 16),
        scaled(args.w.scale_at_end && (args.w.trailer_bytes != 0 || args.w.unit != 1.0F || args.w.offset != 0.0F)),
        trailer(args.w, args.w.codes + (at + 1) * args.w.tile_bytes - args.w.trailer_bytes) {}

  inline void store(std::int64_t row, Vec y) const {
    const WeightView& w = a.w;
    if (scaled) {
      float x_sum = 0;
      if (a.segment_sums != nullptr) {
        for (std::int64_t s = 0; s < w.segments; ++s) x_sum += a.segment_sums[row * w.segments + s];
      }
      y = trailer.add(w, y, vzero(), x_sum);
    }
    if (a.row_scales != nullptr) y = vmul(y, vset(a.row_scales[row]));
    float* out = a.y + row * a.ldy + tile * 16;
    if (n >= 16) {
      if (a.bias != nullptr) y = vadd(y, vload(a.bias + tile * 16));
      vstore(out, y);
      return;
    }
    float lanes[16];
    vstore(lanes, y);
    for (std::int64_t i = 0; i < n; ++i) out[i] = a.bias != nullptr ? lanes[i] + a.bias[tile * 16 + i] : lanes[i];
  }
};

static inline float segment_sum(const ProductArgs& a, std::int64_t row, std::int64_t segment) {
  return a.segment_sums != nullptr ? a.segment_sums[row * a.w.segments + segment] : 0.0F;
}

static inline std::int64_t segment_length(const WeightView& w, std::int64_t s) {
  return (s + 1) * w.segment <= w.cols ? w.segment : w.cols - s * w.segment;
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
  const std::byte* at = w.codes + tile * w.tile_bytes;
  for (std::int64_t s = 0; s < w.segments; ++s) {
    const std::int64_t length = segment_length(w, s);
    const float* x = a.x + row * a.ldx + s * w.segment;
    Vec sum[T][R];
    HT_UNROLL for (int t = 0; t < T; ++t) {
      HT_UNROLL for (int r = 0; r < R; ++r) sum[t][r] = vzero();
    }
    const auto step = [&](const std::byte* from, const float* xk) __attribute__((always_inline)) {
      HT_UNROLL for (int part = 0; part < D::kStep / D::kPart; ++part) {
        typename D::State state[T];
        HT_UNROLL for (int t = 0; t < T; ++t) state[t] = decoder.prepare(from + t * w.tile_bytes, part);
        HT_UNROLL for (int i = 0; i < D::kPart; ++i, ++xk) {
          HT_UNROLL for (int t = 0; t < T; ++t) {
            const Vec code = decoder.code(state[t], i);
            HT_UNROLL for (int r = 0; r < R; ++r) sum[t][r] = vfma(vset(xk[r * a.ldx]), code, sum[t][r]);
          }
        }
      }
    };
    std::int64_t k = 0;
    constexpr int kLine = D::kBytes < 64 ? 64 / D::kBytes : 1;  // steps in a cache line
    for (; k + kLine * D::kStep <= length; k += kLine * D::kStep, at += kLine * D::kBytes) {
      HT_UNROLL for (int t = 0; t < T; ++t) vprefetch(at + t * w.tile_bytes + kPrefetchBytes);
      HT_UNROLL for (int i = 0; i < kLine; ++i) step(at + i * D::kBytes, x + k + i * D::kStep);
    }
    for (; k + D::kStep <= length; k += D::kStep, at += D::kBytes) step(at, x + k);
    if (k < length) {  // the last step of a group that the step does not divide
      HT_UNROLL for (int part = 0; part < D::kStep / D::kPart; ++part) {
        HT_UNROLL for (int t = 0; t < T; ++t) {
          const typename D::State state = decoder.prepare(at + t * w.tile_bytes, part);
          HT_UNROLL for (int i = 0; i < D::kPart; ++i) {
            const std::int64_t position = k + part * D::kPart + i;
            if (position < length) {
              const Vec code = decoder.code(state, i);
              HT_UNROLL for (int r = 0; r < R; ++r) sum[t][r] = vfma(vset(x[r * a.ldx + position]), code, sum[t][r]);
            }
          }
        }
      }
      at += D::kBytes;
    }
    if (w.scale_at_end) {
      HT_UNROLL for (int t = 0; t < T; ++t) {
        HT_UNROLL for (int r = 0; r < R; ++r) y[t][r] = vadd(y[t][r], sum[t][r]);
      }
    } else {
      HT_UNROLL for (int t = 0; t < T; ++t) {
        const Trailer trailer(w, at + t * w.tile_bytes);
        HT_UNROLL for (int r = 0; r < R; ++r) y[t][r] = trailer.add(w, sum[t][r], y[t][r], segment_sum(a, row + r, s));
      }
      at += w.trailer_bytes;
    }
  }
  HT_UNROLL for (int t = 0; t < T; ++t) {
    const Ending ending(a, tile + t);
    HT_UNROLL for (int r = 0; r < R; ++r) ending.store(row + r, y[t][r]);
  }
}

// f.template operator()<rows>(first) for a number of rows known at run time, 1 to Most.
template <int Most, class F>
static inline void with_rows(std::int64_t rows, std::int64_t first, F& f) {
  if constexpr (Most > 1) {
    if (rows < Most) return with_rows<Most - 1>(rows, first, f);
  }
  f.template operator()<Most>(first);
}

// [0, rows) in blocks of at most Most rows, as even as possible: the last block is never a single row that waits for
// its own sums.
template <int Most, class F>
static inline void in_row_blocks(std::int64_t rows, F f) {
  const std::int64_t blocks = (rows + Most - 1) / Most;
  std::int64_t row = 0;
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::int64_t next = rows * (b + 1) / blocks;
    with_rows<Most>(next - row, row, f);
    row = next;
  }
}

// What a panel holds and how it is multiplied: FP32 codes, or pairs of INT16 codes against INT8 activations.
struct FloatPanel {
  using Element = float;
  static constexpr std::int64_t kLongest = kPanelSegment;
  static constexpr int kRows = kMicroRows;

  // Decodes `length` codes of 16 rows; where the codes end.
  template <class D>
  static inline const std::byte* decode(const D& decoder, const std::byte* at, std::int64_t length, float* out) {
    for (std::int64_t k = 0; k < length; k += D::kStep, at += D::kBytes) {
      HT_UNROLL for (int part = 0; part < D::kStep / D::kPart; ++part) {
        const typename D::State state = decoder.prepare(at, part);
        HT_UNROLL for (int i = 0; i < D::kPart; ++i, out += 16) vstore(out, decoder.code(state, i));
      }
    }
    return at;
  }
  template <int R>
  static inline void sums(const ProductArgs& a, std::int64_t s, std::int64_t row, std::int64_t length,
                          const float* panel, Vec (&out)[R]) {
    const float* x = a.x + row * a.ldx + s * a.w.segment;
    Vec sum[R];
    HT_UNROLL for (int r = 0; r < R; ++r) sum[r] = vzero();
    for (std::int64_t k = 0; k < length; ++k) {
      const Vec code = vload(panel + k * 16);
      HT_UNROLL for (int r = 0; r < R; ++r) sum[r] = vfma(vset(x[r * a.ldx + k]), code, sum[r]);
    }
    HT_UNROLL for (int r = 0; r < R; ++r) out[r] = sum[r];
  }
};

struct IntegerPanel {
  using Element = std::int16_t;
  static constexpr std::int64_t kLongest = kIntegerSegment;
  static constexpr int kRows = kIntegerRows;

  template <class D>
  static inline const std::byte* decode(const D& decoder, const std::byte* at, std::int64_t length, std::int16_t* out) {
    for (std::int64_t k = 0; k < length; k += D::kStep, at += D::kBytes) {
      IntVec code[D::kStep / 2];
      decoder.pairs(at, code);
      HT_UNROLL for (int i = 0; i < D::kStep / 2; ++i, out += 32) istore(out, code[i]);
    }
    return at;
  }
  // The pairs of a last step that the segment does not fill hold zeros of x.
  template <int R>
  static inline void sums(const ProductArgs& a, std::int64_t s, std::int64_t row, std::int64_t length,
                          const std::int16_t* panel, Vec (&out)[R]) {
    const std::int16_t* x = a.x16 + row * a.ldx16 + s * a.x16_segment;
    const std::int64_t steps = (length + a.x16_step - 1) / a.x16_step, pairs = steps * a.x16_step / 2;
    IntVec sum[R];
    HT_UNROLL for (int r = 0; r < R; ++r) sum[r] = izero();
    for (std::int64_t k = 0; k < pairs; ++k) {
      const IntVec code = iload(panel + k * 32);
      HT_UNROLL for (int r = 0; r < R; ++r) sum[r] = imadd(iset_pair(x + r * a.ldx16 + 2 * k), code, sum[r]);
    }
    HT_UNROLL for (int r = 0; r < R; ++r) out[r] = ifloat(sum[r]);
  }
};

// R rows of x times a decoded segment of a tile, added to y. No trailer: it comes once, at the end of the tile.
template <class Panel, int R>
static inline void panel_rows(const ProductArgs& a, const Trailer* trailer, std::int64_t s, std::int64_t row,
                              std::int64_t length, const typename Panel::Element* decoded, float* y) {
  Vec sum[R];
  Panel::template sums<R>(a, s, row, length, decoded, sum);
  HT_UNROLL for (int r = 0; r < R; ++r) {
    const Vec before = vload(y + r * 16);
    vstore(y + r * 16,
           trailer == nullptr ? vadd(before, sum[r]) : trailer->add(a.w, sum[r], before, segment_sum(a, row + r, s)));
  }
}

// Many rows of x: a segment of a tile is decoded once and used for all of them.
template <class Panel, class D>
static inline void panel(const ProductArgs& a, std::int64_t tile) {
  const WeightView& w = a.w;
  const D decoder(w);
  alignas(64) typename Panel::Element decoded[(Panel::kLongest + 8) * 16];
  alignas(64) float y[kPanelRows * 16];
  const Ending ending(a, tile);
  for (std::int64_t row0 = a.first_row; row0 < a.last_row; row0 += kPanelRows) {
    const std::int64_t rows = a.last_row - row0 < kPanelRows ? a.last_row - row0 : kPanelRows;
    for (std::int64_t i = 0; i < rows * 16; i += 16) vstore(y + i, vzero());
    const std::byte* at = w.codes + tile * w.tile_bytes;
    for (std::int64_t s = 0; s < w.segments; ++s) {
      const std::int64_t length = segment_length(w, s);
      at = Panel::decode(decoder, at, length, decoded);
      const Trailer trailer(w, at);
      const Trailer* end = w.scale_at_end ? nullptr : &trailer;
      if (!w.scale_at_end) at += w.trailer_bytes;
      in_row_blocks<Panel::kRows>(
          rows, [&]<int R>(std::int64_t r) { panel_rows<Panel, R>(a, end, s, row0 + r, length, decoded, y + r * 16); });
    }
    for (std::int64_t r = 0; r < rows; ++r) ending.store(row0 + r, vload(y + r * 16));
  }
}

template <class D>
static void product(const ProductArgs& a) {
  const std::int64_t rows = a.last_row - a.first_row;
  if (rows > kDirectRows && a.w.segment <= kPanelSegment) {
    for (std::int64_t tile = a.first_tile; tile < a.last_tile; ++tile) panel<FloatPanel, D>(a, tile);
    return;
  }
  std::int64_t tile = a.first_tile;
  if (rows == 1) {
    for (; tile + 2 <= a.last_tile; tile += 2) direct<D, 2, 1>(a, tile, a.first_row);
  }
  for (; tile < a.last_tile; ++tile) {
    in_row_blocks<kDirectRows>(rows, [&]<int R>(std::int64_t r) { direct<D, 1, R>(a, tile, a.first_row + r); });
  }
}

// INT8 activations: pairs of products summed in int32, which is exact, so their order is free; a segment is at most
// kIntegerSegment long, so that its sum is an exact FP32 number and the result equals the FP32 kernels' on the same
// codes.
template <class D, int T>
static inline void integer_direct(const ProductArgs& a, std::int64_t tile, std::int64_t row) {
  const WeightView& w = a.w;
  const D decoder(w);
  Vec y[T];
  HT_UNROLL for (int t = 0; t < T; ++t) y[t] = vzero();
  const std::byte* at = w.codes + tile * w.tile_bytes;
  for (std::int64_t s = 0; s < w.segments; ++s) {
    const std::int64_t length = segment_length(w, s);
    const std::int16_t* x = a.x16 + row * a.ldx16 + s * a.x16_segment;
    IntVec sum[T];
    HT_UNROLL for (int t = 0; t < T; ++t) sum[t] = izero();
    for (std::int64_t k = 0; k < length; k += D::kStep, at += D::kBytes, x += D::kStep) {
      HT_UNROLL for (int t = 0; t < T; ++t) {
        IntVec code[D::kStep / 2];
        decoder.pairs(at + t * w.tile_bytes, code);
        HT_UNROLL for (int i = 0; i < D::kStep / 2; ++i) sum[t] = imadd(iset_pair(x + 2 * i), code[i], sum[t]);
      }
    }
    HT_UNROLL for (int t = 0; t < T; ++t) {
      if (w.scale_at_end) {
        y[t] = vadd(y[t], ifloat(sum[t]));
      } else {
        y[t] = Trailer(w, at + t * w.tile_bytes).add(w, ifloat(sum[t]), y[t], segment_sum(a, row, s));
      }
    }
    if (!w.scale_at_end) at += w.trailer_bytes;
  }
  HT_UNROLL for (int t = 0; t < T; ++t) Ending(a, tile + t).store(row, y[t]);
}

template <class D>
static void integer_product(const ProductArgs& a) {
  const std::int64_t rows = a.last_row - a.first_row;
  if (rows > 2) {
    for (std::int64_t tile = a.first_tile; tile < a.last_tile; ++tile) panel<IntegerPanel, D>(a, tile);
    return;
  }
  for (std::int64_t row = a.first_row; row < a.last_row; ++row) {
    std::int64_t tile = a.first_tile;
    for (; tile + 2 <= a.last_tile; tile += 2) integer_direct<D, 2>(a, tile, row);
    for (; tile < a.last_tile; ++tile) integer_direct<D, 1>(a, tile, row);
  }
}

// Twelve independent chains of fused multiply-adds in registers: what the processor can do at most.
static float multiply_add_chains(std::int64_t steps) {
  Vec sum[12];
  HT_UNROLL for (int i = 0; i < 12; ++i) sum[i] = vset(static_cast<float>(i));
  const Vec factor = vset(0.999F), term = vset(0.001F);
  for (std::int64_t step = 0; step < steps; ++step) {
    HT_UNROLL for (int i = 0; i < 12; ++i) sum[i] = vfma(sum[i], factor, term);
  }
  HT_UNROLL for (int i = 1; i < 12; ++i) sum[0] = vadd(sum[0], sum[i]);
  float lanes[16];
  vstore(lanes, sum[0]);
  return lanes[0];
}

static const KernelSet kSet = {
    {product<DecodeF32>, product<DecodeBf16>, product<DecodeF16>, product<DecodeE4m3>, product<DecodeE5m2>,
     product<DecodeI8>, product<DecodeLut8>, product<DecodeN4i>, product<DecodeN4u>, product<DecodeN4f>, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, integer_product<DecodeN4i>,
     integer_product<DecodeN4u>, nullptr, integer_product<DecodeI8x4>},
    multiply_add_chains};

#undef HT_UNROLL
