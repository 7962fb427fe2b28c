#include "kernels/matmul/packed.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>

#include "base/error.h"

namespace halftone {
namespace {

constexpr KindInfo kKinds[kWeightKinds] = {
    {"f32", 1, 64, "fp32, formats of 9 to 16 bits that fit neither bf16 nor fp16"},
    {"bf16", 1, 32, "bf16, formats of 9 to 16 bits that fit it"},
    {"f16", 1, 32, "fp16, formats of 9 to 16 bits that fit it"},
    {"fp8_e4m3", 1, 16, "fp8_e4m3 and smaller formats inside it (fp6, mxfp6, mxfp8)"},
    {"fp8_e5m2", 1, 16, "fp8_e5m2 and smaller formats inside it"},
    {"int8", 1, 16, "int8 to int5, mxint8, GGUF blocks of 5 to 8 bits"},
    {"lut8", 1, 16, "all other formats of 5 to 8 bits, by table"},
    {"int4", 2, 16, "int4 to int2, fp4_e2m1 (mxfp4, nvfp4), GGUF blocks of up to 4 bits"},
    {"lut4", 2, 16, "nf4 and other tables of 16"},
    {"int8_pairs", 2, 32, "int8 weights with int8 activations"},
};

// The steps from an element format to stored codes. `table` is what the kernel sees of the stored code.
struct Storage {
  WeightKind kind = WeightKind::f32;
  float factor = 1.0F;
  std::vector<std::uint8_t> transcode;
  std::vector<bool> refused;
  std::vector<float> table;
  std::vector<std::int8_t> table16;
};

bool all_representable(const ElementFormat& from, const ElementFormat& in) {
  for (std::uint32_t code = 0; code < code_count(from); ++code) {
    const double value = decode(from, code);
    if (std::isfinite(value) && round_to(in, value) != value) return false;
  }
  return true;
}

// The smallest power of two that makes every value a whole number within a signed byte; 0 if there is none.
int integer_factor(const ElementFormat& format) {
  for (int factor = 1; factor <= 64; factor *= 2) {
    bool whole = true;
    for (std::uint32_t code = 0; code < code_count(format) && whole; ++code) {
      const double value = decode(format, code) * factor;
      whole = std::isfinite(value) && value == std::nearbyint(value) && std::fabs(value) <= 127;
    }
    if (whole) return factor;
  }
  return 0;
}

Storage narrow_storage(const ElementFormat& element) {
  Storage s;
  s.transcode.resize(256);
  s.refused.assign(256, false);
  const auto mask = static_cast<std::uint32_t>(code_count(element) - 1);
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    s.transcode[byte] = static_cast<std::uint8_t>(byte & mask);
    s.refused[byte] = !std::isfinite(decode(element, byte & mask));
  }
  const auto use_table = [&](WeightKind kind, std::size_t entries) {
    s.kind = kind;
    s.table.resize(entries);
    for (std::uint32_t code = 0; code < entries; ++code) s.table[code] = static_cast<float>(decode(element, code & mask));
  };
  const auto transcode_to = [&](WeightKind kind, const ElementFormat& format, float factor) {
    s.kind = kind;
    s.factor = factor;
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      const double value = decode(element, byte & mask);
      s.transcode[byte] = static_cast<std::uint8_t>(std::isfinite(value) ? encode(format, value) : 0);
    }
  };
  if (element.kind == FormatKind::integer && element.bits > 4) {
    s.kind = WeightKind::i8;
    s.factor = static_cast<float>(std::ldexp(1.0, -element.bias));
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      const int shift = 32 - element.bits;
      s.transcode[byte] = static_cast<std::uint8_t>(static_cast<std::int32_t>(byte << shift) >> shift);
    }
    return s;
  }
  if (element.bits <= 4) {
    if (const int factor = integer_factor(element); factor > 0) {
      s.kind = WeightKind::n4i;
      s.factor = 1.0F / static_cast<float>(factor);
      s.table16.resize(16);
      for (std::uint32_t code = 0; code < 16; ++code) s.table16[code] = static_cast<std::int8_t>(decode(element, code & mask) * factor);
      return s;
    }
    use_table(WeightKind::n4f, 16);
    return s;
  }
  if (element.kind == FormatKind::floating) {
    if (all_representable(element, fp8_e4m3_format())) {
      transcode_to(WeightKind::e4m3, fp8_e4m3_format(), 256.0F);
      return s;
    }
    if (all_representable(element, fp8_e5m2_format())) {
      transcode_to(WeightKind::e5m2, fp8_e5m2_format(), 1.0F);
      return s;
    }
  }
  use_table(WeightKind::lut8, 256);
  return s;
}

Storage choose_storage(const Scheme& scheme) {
  Storage s;
  if (scheme.ggml) {
    const GgmlAffine affine = ggml_affine(*scheme.ggml);
    s.kind = WeightKind::i8;
    if (affine.code_bits == 4) {
      s.kind = WeightKind::n4i;
      s.table16.resize(16);
      for (int i = 0; i < 16; ++i) s.table16[static_cast<std::size_t>(i)] = static_cast<std::int8_t>(std::min(affine.code_low + i, 127));
    }
    return s;
  }
  const ElementFormat& element = scheme.element;
  if (element.bits <= 8) return narrow_storage(element);
  if (element == bf16_format()) s.kind = WeightKind::bf16;
  else if (element == fp16_format()) s.kind = WeightKind::f16;
  else if (element.bits <= 16 && all_representable(element, bf16_format())) s.kind = WeightKind::bf16;
  else if (element.bits <= 16 && all_representable(element, fp16_format())) s.kind = WeightKind::f16;
  return s;
}

// The group length along K, or 0 where a row has one scale (or none).
std::int64_t group_length(const Scheme& scheme, std::int64_t cols) {
  std::int64_t group = 0;
  if (scheme.ggml) return ggml_affine(*scheme.ggml).group;  // blocks only: whoever opens a file gives f32, f16, bf16 as dense schemes
  if (scheme.granularity == Granularity::group) group = scheme.group;
  if (scheme.granularity == Granularity::block) group = scheme.block_cols;
  return group >= cols ? 0 : group;
}

bool is_int8_token(const std::optional<Scheme>& scheme) {
  return scheme && scheme->granularity == Granularity::token && scheme->element == int_format(8) && scheme->symmetric;
}

constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::byte* allocate(std::size_t bytes) {
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : 64;
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* p = std::aligned_alloc(alignment, std::max(rounded, alignment));
  if (p == nullptr) throw std::bad_alloc();
  if (alignment == kHugePage) ::madvise(p, rounded, MADV_HUGEPAGE);
  std::memset(p, 0, std::max(rounded, alignment));
  return static_cast<std::byte*>(p);
}

}  // namespace

const KindInfo& kind_info(WeightKind kind) { return kKinds[static_cast<int>(kind)]; }

void FreeAligned::operator()(void* p) const { std::free(p); }

WeightView PackedMatrix::Data::view() const {
  WeightView v{};
  v.codes = codes.get();
  v.scales = scales.empty() ? nullptr : scales.data();
  v.minimums = minimums.empty() ? nullptr : minimums.data();
  v.table = table.empty() ? nullptr : table.data();
  v.table16 = table16.empty() ? nullptr : table16.data();
  v.rows = rows;
  v.cols = cols;
  v.segment = segment;
  v.segments = segments;
  v.segment_bytes = segment_bytes;
  v.tile_bytes = tile_bytes;
  v.scale_at_end = scale_at_end;
  return v;
}

PackedMatrix::PackedMatrix() : data_(std::make_unique<Data>()) {}
PackedMatrix::~PackedMatrix() = default;
PackedMatrix::PackedMatrix(PackedMatrix&&) noexcept = default;
PackedMatrix& PackedMatrix::operator=(PackedMatrix&&) noexcept = default;

std::int64_t PackedMatrix::rows() const { return data_->rows; }
std::int64_t PackedMatrix::cols() const { return data_->cols; }
const Scheme& PackedMatrix::scheme() const { return data_->scheme; }
const std::optional<Scheme>& PackedMatrix::activations() const { return data_->activations; }

std::size_t PackedMatrix::bytes() const {
  return static_cast<std::size_t>(data_->tiles * data_->tile_bytes) + (data_->scales.size() + data_->minimums.size()) * sizeof(float);
}

std::string PackedMatrix::kernel_name() const {
  return fmt::format("{}{}.{}", kind_info(data_->kind).name, data_->integer ? "_int8" : "", isa_name(data_->isa));
}

void PackedMatrix::decode_row(std::int64_t row, std::span<float> out) const {
  const Data& d = *data_;
  HT_CHECK(row >= 0 && row < d.rows && out.size() == static_cast<std::size_t>(d.cols));
  const std::int64_t tile = row / kTileRows, lane = row % kTileRows;
  const KindInfo& kind = kind_info(d.kind);
  const std::byte* base = d.codes.get() + tile * d.tile_bytes;
  for (std::int64_t s = 0; s < d.segments; ++s) {
    const std::int64_t k0 = s * d.segment, length = std::min(d.segment, d.cols - k0);
    const auto cell = static_cast<std::size_t>((tile * d.scale_segments() + (d.scale_at_end ? 0 : s)) * kTileRows + lane);
    const float scale = d.scales.empty() ? 1.0F : d.scales[cell];
    const float minimum = d.minimums.empty() ? 0.0F : d.minimums[cell];
    // minimum = -zero * scale; dividing gives the whole number back.
    const float zero = d.minimums.empty() || d.float_minimum ? 0.0F : std::nearbyint(-minimum / scale * d.factor);
    const std::byte* at = base + s * d.segment_bytes;
    for (std::int64_t k = 0; k < length; ++k) {
      const std::byte* step = at + k / kind.step * kind.step_bytes;
      float value = 0;
      switch (d.kind) {
        case WeightKind::f32: std::memcpy(&value, step + lane * 4, 4); break;
        case WeightKind::bf16:
        case WeightKind::f16: {
          std::uint16_t code;
          std::memcpy(&code, step + lane * 2, 2);
          value = d.kind == WeightKind::bf16 ? bf16_to_float(code) : fp16_to_float(code);
          break;
        }
        case WeightKind::e4m3: {
          const auto wide = static_cast<std::uint32_t>(static_cast<std::int8_t>(step[lane]));
          value = fp16_to_float(static_cast<std::uint16_t>(wide << 7 & 0xBF80U));
          break;
        }
        case WeightKind::e5m2: value = fp16_to_float(static_cast<std::uint16_t>(static_cast<std::uint8_t>(step[lane]) << 8)); break;
        case WeightKind::i8: value = static_cast<std::int8_t>(step[lane]); break;
        case WeightKind::lut8: value = d.table[static_cast<std::uint8_t>(step[lane])]; break;
        case WeightKind::n4i:
        case WeightKind::n4f: {
          const auto nibble = static_cast<std::uint8_t>(step[lane]) >> (k % 2 * 4) & 15;
          value = d.kind == WeightKind::n4i ? static_cast<float>(d.table16[static_cast<std::size_t>(nibble)]) : d.table[static_cast<std::size_t>(nibble)];
          break;
        }
        case WeightKind::i8x2: value = static_cast<std::int8_t>(step[lane * 2 + k % 2]); break;
      }
      // The factor is a power of two: taking it from one number to the other is exact.
      if (d.float_minimum) {
        out[static_cast<std::size_t>(k0 + k)] = value * scale + minimum;
      } else {
        out[static_cast<std::size_t>(k0 + k)] = (value * d.factor - zero) * (scale / d.factor);
      }
    }
  }
}

PackedMatrixBuilder::PackedMatrixBuilder(std::int64_t rows, std::int64_t cols, const Scheme& weights,
                                         std::optional<Scheme> activations, Isa isa)
    : data_(std::make_unique<PackedMatrix::Data>()) {
  HT_CHECK(rows >= 1 && cols >= 1);
  PackedMatrix::Data& d = *data_;
  d.scheme = weights;
  d.activations = std::move(activations);
  d.isa = isa;
  d.rows = rows;
  d.cols = cols;
  d.tiles = (rows + kTileRows - 1) / kTileRows;
  Storage storage = choose_storage(weights);
  d.kind = storage.kind;
  d.factor = storage.factor;
  d.transcode = std::move(storage.transcode);
  d.refused = std::move(storage.refused);
  d.table = std::move(storage.table);
  d.table16 = std::move(storage.table16);
  const std::int64_t group = group_length(weights, cols);
  d.scale_at_end = group == 0;
  d.segment = group == 0 ? std::min(kSegment, cols) : group;
  d.segments = (cols + d.segment - 1) / d.segment;
  if (is_int8_token(d.activations) && d.segment <= kIntegerSegment) {
    if (d.kind == WeightKind::i8) d.kind = WeightKind::i8x2;
    d.integer = kernel_set(isa).integer[static_cast<int>(d.kind)] != nullptr;
  }
  const KindInfo& kind = kind_info(d.kind);
  d.segment_bytes = (d.segment + kind.step - 1) / kind.step * kind.step_bytes;
  const std::int64_t last = d.cols - (d.segments - 1) * d.segment;
  d.tile_bytes = (d.segments - 1) * d.segment_bytes + (last + kind.step - 1) / kind.step * kind.step_bytes;
  d.codes.reset(allocate(static_cast<std::size_t>(d.tiles * d.tile_bytes)));
  const bool has_scales = !weights.is_dense() || d.factor != 1.0F;
  const auto cells = static_cast<std::size_t>(d.tiles * d.scale_segments() * kTileRows);
  if (has_scales) d.scales.assign(cells, 0.0F);
  const bool ggml_minimum = weights.ggml && ggml_affine(*weights.ggml).has_minimum;
  d.float_minimum = weights.ggml.has_value();
  if (!weights.symmetric || ggml_minimum) d.minimums.assign(cells, 0.0F);
}

PackedMatrixBuilder::~PackedMatrixBuilder() = default;

std::int64_t PackedMatrixBuilder::row_alignment() const { return std::lcm(kTileRows, row_multiple(data_->scheme)); }

namespace {

// Puts one row of stored codes (bytes) into its tile.
void put_bytes(PackedMatrix::Data& d, std::int64_t row, std::span<const std::uint8_t> stored) {
  const std::int64_t lane = row % kTileRows;
  std::byte* tile = d.codes.get() + row / kTileRows * d.tile_bytes;
  for (std::int64_t s = 0; s < d.segments; ++s) {
    const std::int64_t k0 = s * d.segment, length = std::min(d.segment, d.cols - k0);
    std::byte* at = tile + s * d.segment_bytes;
    const std::uint8_t* code = stored.data() + k0;
    switch (d.kind) {
      case WeightKind::n4i:
      case WeightKind::n4f:
        for (std::int64_t k = 0; k < length; ++k) {
          at[k / 2 * 16 + lane] |= static_cast<std::byte>(code[k] << (k % 2 * 4));
        }
        break;
      case WeightKind::i8x2:
        for (std::int64_t k = 0; k < length; ++k) at[k / 2 * 32 + lane * 2 + k % 2] = static_cast<std::byte>(code[k]);
        break;
      default:
        for (std::int64_t k = 0; k < length; ++k) at[k * 16 + lane] = static_cast<std::byte>(code[k]);
    }
  }
}

template <class T>
void put_wide(PackedMatrix::Data& d, std::int64_t row, std::span<const T> values) {
  const std::int64_t lane = row % kTileRows;
  std::byte* tile = d.codes.get() + row / kTileRows * d.tile_bytes;
  for (std::int64_t k = 0; k < d.cols; ++k) {  // kinds with step 1: segments follow one another without gaps
    std::memcpy(tile + (k * kTileRows + lane) * static_cast<std::int64_t>(sizeof(T)), &values[static_cast<std::size_t>(k)], sizeof(T));
  }
}

[[noreturn]] void refuse(const Scheme& scheme, std::int64_t row, std::int64_t col) {
  fail(ErrorKind::bad_input, "a {} matrix holds a code or scale that is no finite FP32 number (row {}, column {})", to_string(scheme), row, col);
}

}  // namespace

void PackedMatrixBuilder::add_rows(std::int64_t first, const QuantizedTensor& chunk, ThreadPool& pool) {
  PackedMatrix::Data& d = *data_;
  HT_CHECK(chunk.cols == d.cols && first >= 0 && first + chunk.rows <= d.rows && first % kTileRows == 0);
  HT_CHECK(chunk.scheme == d.scheme);
  const std::int64_t tiles = (chunk.rows + kTileRows - 1) / kTileRows;
  const SchemeShape shape = chunk.scales_shape();
  const auto cols = static_cast<std::size_t>(d.cols);
  const bool ggml = d.scheme.ggml.has_value();
  const GgmlAffine affine = ggml ? ggml_affine(*d.scheme.ggml) : GgmlAffine{};
  const auto ggml_row_bytes = ggml ? static_cast<std::size_t>(scheme_bytes(d.scheme, 1, d.cols)) : 0;
  const std::int64_t row_span = row_multiple(d.scheme);
  pool.run(tiles, [&](std::int64_t tile, int) {
    std::vector<std::uint8_t> stored(cols);
    std::vector<std::int8_t> codes(ggml ? cols : 0);
    std::vector<float> wide, scales, minimums;
    if (ggml) {
      scales.resize(cols / static_cast<std::size_t>(affine.group));
      if (affine.has_minimum) minimums.resize(scales.size());
    }
    const std::int64_t end = std::min(chunk.rows, (tile + 1) * kTileRows);
    for (std::int64_t r = tile * kTileRows; r < end; ++r) {
      const std::int64_t row = first + r;
      const auto cell = [&](std::int64_t segment) {
        return static_cast<std::size_t>((row / kTileRows * d.scale_segments() + segment) * kTileRows + row % kTileRows);
      };
      if (ggml) {
        ggml_decode_affine(*d.scheme.ggml, chunk.codes.subspan(static_cast<std::size_t>(r) * ggml_row_bytes, ggml_row_bytes), codes, scales, minimums);
        for (std::size_t k = 0; k < cols; ++k) {
          stored[k] = static_cast<std::uint8_t>(d.kind == WeightKind::n4i ? codes[k] - affine.code_low : codes[k]);
        }
        put_bytes(d, row, stored);
        for (std::int64_t s = 0; s < d.segments; ++s) {
          const float scale = scales[static_cast<std::size_t>(s)];
          if (!std::isfinite(scale) || (affine.has_minimum && !std::isfinite(minimums[static_cast<std::size_t>(s)]))) refuse(d.scheme, row, s * d.segment);
          d.scales[cell(s)] = scale;
          if (affine.has_minimum) d.minimums[cell(s)] = minimums[static_cast<std::size_t>(s)];
        }
        continue;
      }
      const std::byte* source = chunk.codes.data() + static_cast<std::size_t>(r) * cols * static_cast<std::size_t>(chunk.code_bytes());
      if (chunk.code_bytes() == 1) {
        for (std::size_t k = 0; k < cols; ++k) {
          const auto byte = static_cast<std::uint8_t>(source[k]);
          if (d.refused[byte]) refuse(d.scheme, row, static_cast<std::int64_t>(k));
          stored[k] = d.transcode[byte];
        }
        put_bytes(d, row, stored);
      } else if (d.scheme.element == bf16_format() || d.scheme.element == fp16_format()) {
        std::vector<std::uint16_t> values(cols);
        std::memcpy(values.data(), source, cols * 2);
        const std::uint16_t exponent = d.scheme.element == bf16_format() ? 0x7F80 : 0x7C00;
        for (std::size_t k = 0; k < cols; ++k) {
          if ((values[k] & exponent) == exponent) refuse(d.scheme, row, static_cast<std::int64_t>(k));
        }
        put_wide<std::uint16_t>(d, row, values);
      } else {
        wide.resize(cols);
        for (std::size_t k = 0; k < cols; ++k) {
          std::uint32_t code = 0;
          std::memcpy(&code, source + k * static_cast<std::size_t>(chunk.code_bytes()), static_cast<std::size_t>(chunk.code_bytes()));
          wide[k] = d.scheme.element == fp32_format() ? std::bit_cast<float>(code) : static_cast<float>(decode(d.scheme.element, code));
          if (!std::isfinite(wide[k])) refuse(d.scheme, row, static_cast<std::int64_t>(k));
        }
        if (d.kind == WeightKind::f32) {
          put_wide<float>(d, row, wide);
        } else {
          std::vector<std::uint16_t> values(cols);
          for (std::size_t k = 0; k < cols; ++k) values[k] = d.kind == WeightKind::bf16 ? float_to_bf16(wide[k]) : float_to_fp16(wide[k]);
          put_wide<std::uint16_t>(d, row, values);
        }
      }
      if (d.scales.empty()) continue;
      for (std::int64_t s = 0; s < d.scale_segments(); ++s) {
        float scale = 1.0F;
        std::int32_t zero = 0;
        if (!d.scheme.is_dense()) {
          const std::int64_t grid_row = shape.scale_rows == 1 ? 0 : r / row_span;
          const auto index = static_cast<std::size_t>(grid_row * shape.scale_cols + (shape.scale_cols == 1 ? 0 : s));
          scale = chunk.scales[index] * chunk.global_scale;
          if (!chunk.zeros.empty()) zero = chunk.zeros[index];
        }
        if (!std::isfinite(scale * d.factor)) refuse(d.scheme, row, s * d.segment);
        if (!d.minimums.empty()) d.minimums[cell(s)] = -static_cast<float>(zero) * scale;
        d.scales[cell(s)] = scale * d.factor;
      }
    }
  });
}

PackedMatrix PackedMatrixBuilder::finish() {
  PackedMatrix matrix;
  data_->transcode = {};
  data_->refused = {};
  matrix.data_ = std::move(data_);
  return matrix;
}

PackedMatrix pack_matrix(const QuantizedTensor& tensor, std::optional<Scheme> activations, ThreadPool& pool, Isa isa) {
  PackedMatrixBuilder builder(tensor.rows, tensor.cols, tensor.scheme, std::move(activations), isa);
  builder.add_rows(0, tensor, pool);
  return builder.finish();
}

}  // namespace halftone
