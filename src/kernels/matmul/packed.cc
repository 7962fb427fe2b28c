#include "kernels/matmul/packed.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>

#include "base/error.h"
#include "base/huge_memory.h"
#include "base/integer.h"

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
    {"table4",
     8,
     64,
     "fp4_e2m1 (mxfp4, nvfp4) and other tables of 16 whole numbers",
     {1.0F, 0x1p-8F, 0x1p-16F, 1.0F, 1.0F, 0x1p-8F, 0x1p-16F, 1.0F},
     {0, 2, 1, 3, 4, 6, 5, 7}},
    {"int4",
     8,
     64,
     "int4 to int2, GGUF blocks of up to 4 bits",
     {1.0F, 0x1p-8F, 0x1p-16F, 0x1p-24F, 0x1p-4F, 0x1p-12F, 0x1p-20F, 1.0F},
     {0, 2, 1, 3, 4, 6, 5, 7}},
    {"lut4", 2, 16, "nf4 and other tables of 16"},
    {"int8_quads", 4, 64, "int8 weights with int8 activations", {}, {0, 2, 1, 3}},
};

// The steps from an element format to stored codes. `table` is what the kernel sees of the stored code.
struct Storage {
  WeightKind kind = WeightKind::f32;
  float factor = 1.0F;
  std::vector<std::uint8_t> transcode;
  std::vector<bool> refused;
  std::vector<float> table;
  std::vector<std::uint8_t> table16;
  float offset = 0.0F;  // of the stored codes (table16 entries)
};

// Codes of four bits that mean whole numbers: moved up so that none is negative. Where they then are below 16 (every
// integer format) the number itself is stored; else it is looked up.
void store_whole_numbers(Storage& s, const std::array<int, 16>& values) {
  const int low = std::min(0, *std::min_element(values.begin(), values.end()));
  const bool small = *std::max_element(values.begin(), values.end()) - low < 16;
  s.kind = small ? WeightKind::n4u : WeightKind::n4i;
  s.offset = static_cast<float>(-low);
  for (const int value : values) s.table16.push_back(static_cast<std::uint8_t>(value - low));
  if (!small) return;
  for (std::uint8_t& code : s.transcode) code = s.table16[code & 15];
}

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
    for (std::uint32_t code = 0; code < entries; ++code)
      s.table[code] = static_cast<float>(decode(element, code & mask));
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
      s.factor = 1.0F / static_cast<float>(factor);
      std::array<int, 16> values{};
      for (std::uint32_t code = 0; code < 16; ++code)
        values[code] = static_cast<int>(decode(element, code & mask) * factor);
      store_whole_numbers(s, values);
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
      std::array<int, 16> values{};
      for (int i = 0; i < 16; ++i) values[static_cast<std::size_t>(i)] = std::min(affine.code_low + i, 127);
      store_whole_numbers(s, values);
    }
    return s;
  }
  const ElementFormat& element = scheme.element;
  if (element.bits <= 8) return narrow_storage(element);
  if (element == bf16_format())
    s.kind = WeightKind::bf16;
  else if (element == fp16_format())
    s.kind = WeightKind::f16;
  else if (element.bits <= 16 && all_representable(element, bf16_format()))
    s.kind = WeightKind::bf16;
  else if (element.bits <= 16 && all_representable(element, fp16_format()))
    s.kind = WeightKind::f16;
  return s;
}

// The group length along K, or 0 where a row has one scale (or none).
std::int64_t group_length(const Scheme& scheme, std::int64_t cols) {
  std::int64_t group = 0;
  if (scheme.ggml)
    return ggml_affine(*scheme.ggml).group;  // blocks only: whoever opens a file gives f32, f16, bf16 as dense schemes
  if (scheme.granularity == Granularity::group) group = scheme.group;
  if (scheme.granularity == Granularity::block) group = scheme.block_cols;
  return group >= cols ? 0 : group;
}

bool is_int8_token(const std::optional<Scheme>& scheme) {
  return scheme && scheme->granularity == Granularity::token && scheme->element == int_format(8) && scheme->symmetric;
}

ScaleFormat scale_format(const Scheme& scheme) {
  if (scheme.ggml) {
    switch (*scheme.ggml) {  // a block has one FP16 scale; the others' are products of two
      case GgmlType::q4_0:
      case GgmlType::q4_1:
      case GgmlType::q5_0:
      case GgmlType::q5_1:
      case GgmlType::q8_0:
      case GgmlType::iq4_nl:
        return ScaleFormat::f16;
      default:
        return ScaleFormat::f32;
    }
  }
  if (scheme.is_dense()) return ScaleFormat::none;
  if (scheme.scale == bf16_format()) return ScaleFormat::bf16;
  if (scheme.scale == fp16_format()) return ScaleFormat::f16;
  if (scheme.scale == e8m0_format()) return ScaleFormat::e8m0;
  if (scheme.scale == fp8_e4m3_format()) return ScaleFormat::e4m3;
  return ScaleFormat::f32;
}

int scale_bytes(ScaleFormat format) {
  switch (format) {
    case ScaleFormat::none:
      return 0;
    case ScaleFormat::f32:
      return 4;
    case ScaleFormat::bf16:
    case ScaleFormat::f16:
      return 2;
    case ScaleFormat::e8m0:
    case ScaleFormat::e4m3:
      return 1;
  }
  return 0;
}

float load_scale(ScaleFormat format, const std::byte* trailer, std::int64_t lane) {
  std::uint16_t half = 0;
  float value = 1.0F;
  switch (format) {
    case ScaleFormat::none:
      break;
    case ScaleFormat::f32:
      std::memcpy(&value, trailer + lane * 4, 4);
      break;
    case ScaleFormat::bf16:
    case ScaleFormat::f16:
      std::memcpy(&half, trailer + lane * 2, 2);
      value = format == ScaleFormat::bf16 ? bf16_to_float(half) : fp16_to_float(half);
      break;
    case ScaleFormat::e8m0:
      value = std::ldexp(1.0F, static_cast<int>(trailer[lane]) - 127);
      break;
    case ScaleFormat::e4m3:
      value = static_cast<float>(decode(fp8_e4m3_format(), static_cast<std::uint32_t>(trailer[lane])));
      break;
  }
  return value;
}

void store_scale(ScaleFormat format, std::byte* trailer, std::int64_t lane, float value) {
  std::uint16_t half = 0;
  switch (format) {
    case ScaleFormat::none:
      return;
    case ScaleFormat::f32:
      std::memcpy(trailer + lane * 4, &value, 4);
      break;
    case ScaleFormat::bf16:
    case ScaleFormat::f16:
      half = format == ScaleFormat::bf16 ? float_to_bf16(value) : float_to_fp16(value);
      std::memcpy(trailer + lane * 2, &half, 2);
      break;
    case ScaleFormat::e8m0:
      trailer[lane] = static_cast<std::byte>(std::ilogb(value) + 127);
      break;
    case ScaleFormat::e4m3:
      trailer[lane] = static_cast<std::byte>(encode(fp8_e4m3_format(), value));
      break;
  }
  HT_CHECK(load_scale(format, trailer, lane) == value);  // scales are exact values of their format
}

}  // namespace

const KindInfo& kind_info(WeightKind kind) {
  return kKinds[static_cast<int>(kind)];
}

std::int64_t PackedMatrix::Data::trailer_bytes() const {
  const int low = minimum == MinimumKind::none ? 0 : minimum == MinimumKind::zero_point ? 1 : 4;
  return kTileRows * (scale_bytes(scale) + low);
}

std::byte* PackedMatrix::Data::trailer(std::int64_t tile, std::int64_t s) const {
  std::byte* start = codes.get() + tile * tile_bytes;
  if (scale_at_end || s == segments - 1) return start + tile_bytes - trailer_bytes();
  return start + (s + 1) * segment_bytes - trailer_bytes();
}

WeightView PackedMatrix::Data::view() const {
  WeightView v{};
  v.codes = codes.get();
  v.table = table.empty() ? nullptr : table.data();
  v.table16 = table16.empty() ? nullptr : table16.data();
  v.rows = rows;
  v.cols = cols;
  v.segment = segment;
  v.segments = segments;
  v.segment_bytes = segment_bytes;
  v.tile_bytes = tile_bytes;
  v.trailer_bytes = trailer_bytes();
  v.unit = global * factor * (scale == ScaleFormat::e4m3 ? 256.0F : 1.0F);  // kernels read E4M3 scales as FP16 bits
  v.offset = offset;
  v.scale = scale;
  v.minimum = minimum;
  v.scale_at_end = scale_at_end;
  return v;
}

PackedMatrix::PackedMatrix() : data_(std::make_unique<Data>()) {}
PackedMatrix::~PackedMatrix() = default;
PackedMatrix::PackedMatrix(PackedMatrix&&) noexcept = default;
PackedMatrix& PackedMatrix::operator=(PackedMatrix&&) noexcept = default;

std::int64_t PackedMatrix::rows() const {
  return data_->rows;
}
std::int64_t PackedMatrix::cols() const {
  return data_->cols;
}
const Scheme& PackedMatrix::scheme() const {
  return data_->scheme;
}
const std::optional<Scheme>& PackedMatrix::activations() const {
  return data_->activations;
}

std::size_t PackedMatrix::bytes() const {
  return static_cast<std::size_t>(data_->tiles * data_->tile_bytes);
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
    const std::byte* trailer = d.trailer(tile, s);
    const std::byte* low = trailer + kTileRows * scale_bytes(d.scale);
    const float scale = load_scale(d.scale, trailer, lane) * d.global;
    float zero = d.offset, minimum = 0;
    if (d.minimum == MinimumKind::zero_point) zero += static_cast<float>(static_cast<std::int8_t>(low[lane]));
    if (d.minimum == MinimumKind::f32) std::memcpy(&minimum, low + lane * 4, 4);
    const std::byte* at = base + s * d.segment_bytes;
    for (std::int64_t k = 0; k < length; ++k) {
      const std::byte* step = at + k / kind.step * kind.step_bytes;
      float value = 0;
      switch (d.kind) {
        case WeightKind::f32:
          std::memcpy(&value, step + lane * 4, 4);
          break;
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
        case WeightKind::e5m2:
          value = fp16_to_float(static_cast<std::uint16_t>(static_cast<std::uint8_t>(step[lane]) << 8));
          break;
        case WeightKind::i8:
          value = static_cast<std::int8_t>(step[lane]);
          break;
        case WeightKind::lut8:
          value = d.table[static_cast<std::uint8_t>(step[lane])];
          break;
        case WeightKind::n4i:
        case WeightKind::n4u: {
          const int nibble = static_cast<std::uint8_t>(step[lane * 4 + k % 4]) >> (k % 8 / 4 * 4) & 15;
          value = d.kind == WeightKind::n4u ? static_cast<float>(nibble) : d.table16[static_cast<std::size_t>(nibble)];
          break;
        }
        case WeightKind::n4f:
          value = d.table[static_cast<std::uint8_t>(step[lane]) >> (k % 2 * 4) & 15];
          break;
        case WeightKind::i8x4:
          value = static_cast<std::uint8_t>(step[lane * 4 + k % 4]);
          break;
      }
      // All steps but the product with the scale and the last sum are exact.
      value = (value - zero) * d.factor * scale;
      out[static_cast<std::size_t>(k0 + k)] = d.minimum == MinimumKind::f32 ? value + minimum : value;
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
  d.kernels = &kernel_set(isa);
  d.rows = rows;
  d.cols = cols;
  d.tiles = ceil_div(rows, kTileRows);
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
  d.segments = ceil_div(cols, d.segment);
  d.offset = storage.offset;
  if (is_int8_token(d.activations) && d.segment <= kIntegerSegment) {
    if (d.kind == WeightKind::i8) {
      d.kind = WeightKind::i8x4;
      d.offset = 128.0F;
    }
    d.integer = d.kernels->integer[static_cast<int>(d.kind)] != nullptr;
  }
  d.scale = scale_format(weights);
  if (weights.ggml && ggml_affine(*weights.ggml).has_minimum) d.minimum = MinimumKind::f32;
  if (!weights.symmetric) d.minimum = MinimumKind::zero_point;
  const KindInfo& kind = kind_info(d.kind);
  const std::int64_t last = d.cols - (d.segments - 1) * d.segment, trailer = d.trailer_bytes();
  d.segment_bytes = ceil_div(d.segment, kind.step) * kind.step_bytes + (d.scale_at_end ? 0 : trailer);
  d.tile_bytes = (d.segments - 1) * d.segment_bytes + ceil_div(last, kind.step) * kind.step_bytes + trailer;
  d.codes = allocate_huge(static_cast<std::size_t>(d.tiles * d.tile_bytes));
}

PackedMatrixBuilder::~PackedMatrixBuilder() = default;

std::int64_t PackedMatrixBuilder::row_alignment() const {
  return std::lcm(kTileRows, row_multiple(data_->scheme));
}

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
      case WeightKind::n4u:
        for (std::int64_t k = 0; k < length; ++k) {
          at[k / 8 * 64 + lane * 4 + k % 4] |= static_cast<std::byte>(code[k] << (k % 8 / 4 * 4));
        }
        break;
      case WeightKind::n4f:
        for (std::int64_t k = 0; k < length; ++k) {
          at[k / 2 * 16 + lane] |= static_cast<std::byte>(code[k] << (k % 2 * 4));
        }
        break;
      case WeightKind::i8x4:
        for (std::int64_t k = 0; k < length; ++k)
          at[k / 4 * 64 + lane * 4 + k % 4] = static_cast<std::byte>(code[k] ^ 0x80);
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
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t s = 0; s < d.segments; ++s) {
    std::byte* at = tile + s * d.segment_bytes + lane * kSize;
    const std::int64_t k0 = s * d.segment, length = std::min(d.segment, d.cols - k0);
    for (std::int64_t k = 0; k < length; ++k) {
      std::memcpy(at + k * kTileRows * kSize, &values[static_cast<std::size_t>(k0 + k)], sizeof(T));
    }
  }
}

[[noreturn]] void refuse(const Scheme& scheme, std::int64_t row, std::int64_t col) {
  fail(ErrorKind::bad_input, "a {} matrix holds a code or scale that is no finite FP32 number (row {}, column {})",
       to_string(scheme), row, col);
}

}  // namespace

void PackedMatrixBuilder::add_rows(std::int64_t first, const QuantizedTensor& chunk, ThreadPool& pool) {
  PackedMatrix::Data& d = *data_;
  HT_CHECK(chunk.cols == d.cols && first >= 0 && first + chunk.rows <= d.rows && first % kTileRows == 0);
  HT_CHECK(chunk.scheme == d.scheme);
  HT_CHECK(!d.any_rows || d.global == chunk.global_scale);
  d.global = chunk.global_scale;
  d.any_rows = true;
  const std::int64_t tiles = ceil_div(chunk.rows, kTileRows);
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
      // Segments with scales of their own, or the one of the whole row.
      const std::int64_t cells = d.scale_at_end ? 1 : d.segments, lane = row % kTileRows;
      const auto put_low = [&](std::byte* trailer, auto value) {
        std::memcpy(trailer + kTileRows * scale_bytes(d.scale) + lane * static_cast<std::int64_t>(sizeof value), &value,
                    sizeof value);
      };
      if (ggml) {
        ggml_decode_affine(*d.scheme.ggml,
                           chunk.codes.subspan(static_cast<std::size_t>(r) * ggml_row_bytes, ggml_row_bytes), codes,
                           scales, minimums);
        for (std::size_t k = 0; k < cols; ++k) {
          stored[k] = static_cast<std::uint8_t>(d.kind == WeightKind::n4u ? codes[k] - affine.code_low : codes[k]);
        }
        put_bytes(d, row, stored);
        for (std::int64_t s = 0; s < d.segments; ++s) {
          const float scale = scales[static_cast<std::size_t>(s)];
          if (!std::isfinite(scale) || (affine.has_minimum && !std::isfinite(minimums[static_cast<std::size_t>(s)])))
            refuse(d.scheme, row, s * d.segment);
          std::byte* trailer = d.trailer(row / kTileRows, s);
          store_scale(d.scale, trailer, lane, scale);
          if (affine.has_minimum) put_low(trailer, minimums[static_cast<std::size_t>(s)]);
        }
        continue;
      }
      const std::byte* source =
          chunk.codes.data() + static_cast<std::size_t>(r) * cols * static_cast<std::size_t>(chunk.code_bytes());
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
          std::memcpy(&code, source + k * static_cast<std::size_t>(chunk.code_bytes()),
                      static_cast<std::size_t>(chunk.code_bytes()));
          wide[k] = d.scheme.element == fp32_format() ? std::bit_cast<float>(code)
                                                      : static_cast<float>(decode(d.scheme.element, code));
          if (!std::isfinite(wide[k])) refuse(d.scheme, row, static_cast<std::int64_t>(k));
        }
        if (d.kind == WeightKind::f32) {
          put_wide<float>(d, row, wide);
        } else {
          std::vector<std::uint16_t> values(cols);
          for (std::size_t k = 0; k < cols; ++k)
            values[k] = d.kind == WeightKind::bf16 ? float_to_bf16(wide[k]) : float_to_fp16(wide[k]);
          put_wide<std::uint16_t>(d, row, values);
        }
      }
      if (d.scale == ScaleFormat::none) continue;
      for (std::int64_t s = 0; s < cells; ++s) {
        const std::int64_t grid_row = shape.scale_rows == 1 ? 0 : r / row_span;
        const auto index = static_cast<std::size_t>(grid_row * shape.scale_cols + (shape.scale_cols == 1 ? 0 : s));
        const float scale = chunk.scales[index];
        if (!std::isfinite(scale * (d.global * d.factor))) refuse(d.scheme, row, s * d.segment);
        std::byte* trailer = d.trailer(row / kTileRows, s);
        store_scale(d.scale, trailer, lane, scale);
        if (d.minimum == MinimumKind::zero_point) {
          const std::int32_t zero = chunk.zeros[index];
          if (zero < -128 || zero > 127) refuse(d.scheme, row, s * d.segment);
          put_low(trailer, static_cast<std::int8_t>(zero));
        }
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
