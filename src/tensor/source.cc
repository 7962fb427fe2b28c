#include "tensor/source.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <numeric>

#include "base/error.h"
#include "numeric/packing.h"

namespace halftone {
namespace {

template <class T>
void widen(std::span<const std::byte> bytes, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = static_cast<float>(value);
  }
}

}  // namespace

std::string shape_string(const Shape& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

std::int64_t TensorInfo::elements() const {
  std::int64_t n = 1;
  for (const std::int64_t d : shape) n *= d;
  return n;
}

std::int64_t TensorInfo::rows() const {
  std::int64_t n = 1;
  for (std::size_t i = 0; i + 1 < shape.size(); ++i) n *= shape[i];
  return n;
}

std::int64_t TensorInfo::cols() const {
  return shape.empty() ? 1 : shape.back();
}

std::uint64_t TensorInfo::row_bytes() const {
  const std::int64_t n = rows();
  return n == 0 ? 0 : bytes / static_cast<std::uint64_t>(n);
}

struct TensorSource::Index {
  std::mutex mutex;
  std::vector<std::size_t> order;  // positions in tensors(), by name
};

std::shared_ptr<TensorSource::Index> TensorSource::make_index() {
  return std::make_shared<Index>();
}

const TensorInfo* TensorSource::find(std::string_view name) const {
  const std::vector<TensorInfo>& all = tensors();
  const std::scoped_lock lock(index_->mutex);
  std::vector<std::size_t>& order = index_->order;
  if (order.size() != all.size()) {
    order.resize(all.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return all[a].name < all[b].name; });
  }
  const auto found = std::lower_bound(order.begin(), order.end(), name,
                                      [&](std::size_t i, std::string_view wanted) { return all[i].name < wanted; });
  return found != order.end() && all[*found].name == name ? &all[*found] : nullptr;
}

const TensorInfo& TensorSource::at(std::string_view name) const {
  const TensorInfo* info = find(name);
  if (info == nullptr) fail(ErrorKind::bad_input, "the checkpoint has no tensor '{}'", name);
  return *info;
}

void read_rows_as_float(const TensorSource& source, const TensorInfo& info, std::int64_t first, std::int64_t count,
                        std::span<float> out) {
  HT_CHECK(first >= 0 && count >= 0 && count <= info.rows() && first <= info.rows() - count);
  HT_CHECK(out.size() == static_cast<std::size_t>(count) * static_cast<std::size_t>(info.cols()));
  if (out.empty()) return;
  std::vector<std::byte> scratch;
  const auto rows = [&](std::uint64_t needed) {
    const std::span<const std::byte> bytes = source.rows(info, first, count, scratch);
    HT_CHECK(bytes.size() == needed);
    return bytes;
  };
  if (info.dtype == DType::ggml_block) {
    HT_CHECK(info.ggml.has_value());
    const GgmlTypeInfo& type = ggml_info(*info.ggml);
    if (!type.can_decode) {
      fail(ErrorKind::unsupported,
           "{}: tensor '{}': GGUF block type {} cannot be decoded; use a file with other types such as q4_k", info.file,
           info.name, type.name);
    }
    HT_CHECK(info.cols() % type.block_elements == 0);
    ggml_decode(
        *info.ggml,
        rows(out.size() / static_cast<std::size_t>(type.block_elements) * static_cast<std::size_t>(type.block_bytes)),
        out);
    return;
  }
  const auto bits = static_cast<std::uint64_t>(dtype_bits(info.dtype));
  const std::uint64_t row_bits = static_cast<std::uint64_t>(info.cols()) * bits;
  const std::uint64_t needed = static_cast<std::uint64_t>(count) * ((row_bits + 7) / 8);
  switch (info.dtype) {
    case DType::f32:
      return widen<float>(rows(needed), out);
    case DType::f64:
      return widen<double>(rows(needed), out);
    case DType::u8:
      return widen<std::uint8_t>(rows(needed), out);
    case DType::i8:
      return widen<std::int8_t>(rows(needed), out);
    case DType::i16:
      return widen<std::int16_t>(rows(needed), out);
    case DType::u16:
      return widen<std::uint16_t>(rows(needed), out);
    case DType::i32:
      return widen<std::int32_t>(rows(needed), out);
    case DType::u32:
      return widen<std::uint32_t>(rows(needed), out);
    case DType::i64:
      return widen<std::int64_t>(rows(needed), out);
    case DType::u64:
      return widen<std::uint64_t>(rows(needed), out);
    case DType::bf16:
    case DType::f16: {
      const std::span<const std::byte> bytes = rows(needed);
      const bool is_bf16 = info.dtype == DType::bf16;
      for (std::size_t i = 0; i < out.size(); ++i) {
        std::uint16_t code = 0;
        std::memcpy(&code, bytes.data() + 2 * i, 2);
        out[i] = is_bf16 ? bf16_to_float(code) : fp16_to_float(code);
      }
      return;
    }
    default:
      break;
  }
  const std::optional<ElementFormat> format = dtype_format(info.dtype);
  if (!format) {
    fail(ErrorKind::unsupported, "{}: tensor '{}': dtype {} has no plain numeric value", info.file, info.name,
         dtype_name(info.dtype));
  }
  std::array<float, 256> table{};
  for (std::uint32_t code = 0; code < code_count(*format); ++code)
    table[code] = static_cast<float>(decode(*format, code));
  const std::span<const std::byte> bytes = rows(needed);
  if (format->bits == 8) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = table[std::to_integer<std::size_t>(bytes[i])];
    return;
  }
  const auto cols = static_cast<std::size_t>(info.cols());
  const std::size_t row_bytes = (cols * format->bits + 7) / 8;
  std::vector<std::uint8_t> codes(cols);
  for (std::size_t r = 0; r < static_cast<std::size_t>(count); ++r) {
    unpack_bits(bytes.subspan(r * row_bytes, row_bytes), format->bits, codes);
    for (std::size_t c = 0; c < cols; ++c) out[r * cols + c] = table[codes[c]];
  }
}

std::vector<float> read_as_float(const TensorSource& source, const TensorInfo& info) {
  std::vector<float> out(static_cast<std::size_t>(info.elements()));
  read_rows_as_float(source, info, 0, info.rows(), out);
  return out;
}

bool same_bytes(const TensorSource& source, const TensorInfo& a, const TensorInfo& b) {
  if (a.dtype != b.dtype || a.ggml != b.ggml || a.shape != b.shape || a.bytes != b.bytes) return false;
  const auto row = static_cast<std::int64_t>(std::max<std::uint64_t>(1, a.row_bytes()));
  const std::int64_t step = std::max<std::int64_t>(1, (std::int64_t{4} << 20) / row);
  std::vector<std::byte> scratch_a, scratch_b;
  bool same = true;
  for (std::int64_t first = 0; same && first < a.rows(); first += step) {
    const std::int64_t count = std::min(step, a.rows() - first);
    const auto x = source.rows(a, first, count, scratch_a), y = source.rows(b, first, count, scratch_b);
    same = x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size()) == 0;
    source.forget(a);
    source.forget(b);
  }
  return same;
}

}  // namespace halftone
