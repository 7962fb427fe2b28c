#include "tensor/quantized.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>
#include <variant>

#include "base/error.h"
#include "base/integer.h"
#include "numeric/encoder.h"

namespace halftone {
namespace {

std::size_t checked_size(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product)) {
    fail(ErrorKind::bad_input, "a matrix of {} x {} values is too large", a, b);
  }
  return static_cast<std::size_t>(product);
}

// The grid of scale cells over a matrix.
struct Cells {
  std::int64_t row_span = 1, col_span = 1, scale_cols = 1;

  Cells(const Scheme& scheme, std::int64_t rows, std::int64_t cols) {
    const std::int64_t whole_rows = std::max<std::int64_t>(rows, 1), whole_cols = std::max<std::int64_t>(cols, 1);
    switch (scheme.granularity) {
      case Granularity::none:
      case Granularity::tensor:
        row_span = whole_rows;
        col_span = whole_cols;
        break;
      case Granularity::channel:
      case Granularity::token:
        col_span = whole_cols;
        break;
      case Granularity::group:
        col_span = scheme.group;
        break;
      case Granularity::block:
        row_span = scheme.block_rows;
        col_span = scheme.block_cols;
        break;
    }
    scale_cols = ceil_div(whole_cols, col_span);
  }
};

// Codes of a run of values that share a scale. Equal to quantize_value (quantized_test.cc).
class RunEncoder {
 public:
  explicit RunEncoder(const Scheme& scheme) : element_(scheme.element) {
    switch (element_.kind) {
      case FormatKind::floating:
        encoder_.emplace<FloatEncoder>(element_);
        break;
      case FormatKind::codebook:
        encoder_.emplace<CodebookEncoder>(element_);
        break;
      case FormatKind::integer:
        break;
      case FormatKind::exponent:
        HT_CHECK(false);
    }
  }

  void encode(std::span<const float> values, ScaleZero sz, float global, std::byte* codes, int code_bytes) const {
    const double divisor = sz.scale * global;  // rounded to FP32, as decoding does
    if (element_.kind == FormatKind::integer) {
      const IntEncoder to_code(element_, sz.zero);
      store(values, divisor, codes, code_bytes, to_code);
    } else if (const FloatEncoder* floats = std::get_if<FloatEncoder>(&encoder_)) {
      store(values, divisor, codes, code_bytes, *floats);
    } else {
      store(values, divisor, codes, code_bytes, std::get<CodebookEncoder>(encoder_));
    }
  }

 private:
  template <class Encoder>
  static void store(std::span<const float> values, double divisor, std::byte* codes, int code_bytes,
                    const Encoder& encoder) {
    const std::size_t n = values.size();
    if (code_bytes == 1) {
      for (std::size_t i = 0; i < n; ++i) codes[i] = static_cast<std::byte>(encoder(values[i] / divisor));
      return;
    }
    for (std::size_t i = 0; i < n; ++i) {
      const auto code = static_cast<std::uint32_t>(encoder(values[i] / divisor));
      std::memcpy(codes + i * static_cast<std::size_t>(code_bytes), &code, static_cast<std::size_t>(code_bytes));
    }
  }

  ElementFormat element_;
  std::variant<std::monostate, FloatEncoder, CodebookEncoder> encoder_;
};

// Every value of a format of at most 8 bits by its code byte (integers are sign-extended to the byte).
std::array<float, 256> value_table(const ElementFormat& element) {
  std::array<float, 256> table{};
  const auto mask = static_cast<std::uint32_t>(code_count(element) - 1);
  for (std::uint32_t byte = 0; byte < 256; ++byte) table[byte] = static_cast<float>(decode(element, byte & mask));
  return table;
}

std::uint32_t load_wide(const std::byte* codes, std::int64_t index, int code_bytes) {
  std::uint32_t code = 0;
  std::memcpy(&code, codes + index * code_bytes, static_cast<std::size_t>(code_bytes));
  return code;
}

// Values of a wider format by code, where enough values are wanted to be worth it; else empty.
std::vector<float> wide_table(const ElementFormat& element, std::size_t values) {
  std::vector<float> table;
  if (element.bits > 16 || values < code_count(element)) return table;
  table.resize(code_count(element));
  for (std::uint32_t code = 0; code < table.size(); ++code) table[code] = static_cast<float>(decode(element, code));
  return table;
}

// Decodes codes of 2 or 4 bytes.
class WideDecoder {
 public:
  WideDecoder(const ElementFormat& element, std::size_t values)
      : element_(element),
        mask_(static_cast<std::uint32_t>(code_count(element) - 1)),
        table_(wide_table(element, values)) {}

  float operator()(std::uint32_t code) const {
    code &= mask_;  // files may hold anything in the bits above
    return table_.empty() ? static_cast<float>(decode(element_, code)) : table_[code];
  }

 private:
  ElementFormat element_;
  std::uint32_t mask_;
  std::vector<float> table_;
};

void decode_dense(const QuantizedTensor& tensor, std::int64_t begin, std::span<float> out) {
  const ElementFormat& element = tensor.scheme.element;
  const int width = tensor.code_bytes();
  const std::byte* codes = tensor.codes.data() + begin * width;
  const auto n = static_cast<std::int64_t>(out.size());
  float* to = out.data();
  if (element == fp32_format()) {
    if (n > 0) std::memcpy(to, codes, out.size_bytes());
  } else if (element == bf16_format()) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = bf16_to_float(static_cast<std::uint16_t>(load_wide(codes, i, 2)));
  } else if (element == fp16_format()) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = fp16_to_float(static_cast<std::uint16_t>(load_wide(codes, i, 2)));
  } else if (width == 1) {
    const std::array<float, 256> table = value_table(element);
    for (std::int64_t i = 0; i < n; ++i) to[i] = table[std::to_integer<std::size_t>(codes[i])];
  } else {
    const WideDecoder decoder(element, out.size());
    for (std::int64_t i = 0; i < n; ++i) to[i] = decoder(load_wide(codes, i, width));
  }
}

void encode_dense(const ElementFormat& element, std::span<const float> values, std::byte* codes, int code_bytes) {
  if (values.empty()) return;
  if (element == fp32_format()) {
    std::memcpy(codes, values.data(), values.size_bytes());
    return;
  }
  if (element == bf16_format() || element == fp16_format()) {  // plain casts: overflow becomes infinity, NaN stays
    const bool is_bf16 = element == bf16_format();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::uint16_t code = is_bf16 ? float_to_bf16(values[i]) : float_to_fp16(values[i]);
      std::memcpy(codes + 2 * i, &code, 2);
    }
    return;
  }
  const FloatEncoder encoder(element);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint32_t code = encoder(values[i]);
    std::memcpy(codes + i * static_cast<std::size_t>(code_bytes), &code, static_cast<std::size_t>(code_bytes));
  }
}

// The scales of one row of cells: rows [top, bottom) of the matrix.
void choose_scales(const ScaleChooser& chooser, std::span<const float> values, std::int64_t top, std::int64_t bottom,
                   std::int64_t cols, std::int64_t col_span, std::span<ScaleZero> out) {
  const auto run = [&](std::int64_t row, std::int64_t cell) {
    const std::int64_t left = cell * col_span, right = std::min(cols, left + col_span);
    return values.subspan(static_cast<std::size_t>(row * cols + left), static_cast<std::size_t>(right - left));
  };
  std::vector<float> gathered;
  for (std::size_t cell = 0; cell < out.size(); ++cell) {
    const auto at = static_cast<std::int64_t>(cell);
    if (bottom - top == 1) {
      out[cell] = chooser.choose(run(top, at));
    } else if (chooser.needs_values()) {
      gathered.clear();
      for (std::int64_t row = top; row < bottom; ++row) {
        const auto part = run(row, at);
        gathered.insert(gathered.end(), part.begin(), part.end());
      }
      out[cell] = chooser.choose(gathered);
    } else {
      Range range;
      for (std::int64_t row = top; row < bottom; ++row) {
        const Range part = values_range(run(row, at));
        range.low = std::min(range.low, part.low);
        range.high = std::max(range.high, part.high);
      }
      out[cell] = chooser.choose(range);
    }
  }
}

bool is_finite_row(std::span<const float> row) {
  TensorStats stats;
  accumulate_stats(stats, row, 0);
  return stats.non_finite == 0;
}

}  // namespace

std::span<std::byte> allocate_codes(QuantizedTensor& tensor) {
  std::size_t bytes = 0;
  if (tensor.scheme.ggml) {
    bytes = static_cast<std::size_t>(scheme_bytes(tensor.scheme, tensor.rows, tensor.cols));
  } else {
    const std::size_t elements = checked_size(tensor.rows, tensor.cols);
    bytes = checked_size(static_cast<std::int64_t>(elements), tensor.code_bytes());
  }
  auto buffer = std::make_shared<std::vector<std::byte>>(bytes);
  const std::span<std::byte> view(*buffer);
  tensor.codes = view;
  tensor.owner = std::move(buffer);
  return view;
}

void dequantize_rows(const QuantizedTensor& tensor, std::int64_t first, std::int64_t count, std::span<float> out) {
  HT_CHECK(first >= 0 && count >= 0 && count <= tensor.rows && first <= tensor.rows - count);
  HT_CHECK(out.size() == checked_size(count, tensor.cols));
  const Scheme& scheme = tensor.scheme;
  const std::int64_t cols = tensor.cols;
  if (scheme.ggml) {
    const auto row_bytes = static_cast<std::size_t>(scheme_bytes(scheme, 1, cols));
    HT_CHECK(tensor.codes.size() == row_bytes * static_cast<std::size_t>(tensor.rows));
    ggml_decode(
        *scheme.ggml,
        tensor.codes.subspan(static_cast<std::size_t>(first) * row_bytes, static_cast<std::size_t>(count) * row_bytes),
        out);
    return;
  }
  const int width = tensor.code_bytes();
  HT_CHECK(tensor.codes.size() == checked_size(tensor.rows, cols) * static_cast<std::size_t>(width));
  if (scheme.is_dense()) return decode_dense(tensor, first * cols, out);

  const SchemeShape shape = tensor.scales_shape();
  HT_CHECK(tensor.scales.size() == checked_size(shape.scale_rows, shape.scale_cols));
  HT_CHECK(tensor.zeros.empty() || tensor.zeros.size() == tensor.scales.size());
  const Cells cells(scheme, tensor.rows, cols);
  const ElementFormat& element = scheme.element;
  const std::array<float, 256> table = width == 1 ? value_table(element) : std::array<float, 256>{};
  const WideDecoder wide(element, width == 1 ? 0 : out.size());
  for (std::int64_t r = first; r < first + count; ++r) {
    float* row = out.data() + (r - first) * cols;
    const std::byte* codes = tensor.codes.data() + r * cols * width;
    for (std::int64_t left = 0; left < cols; left += cells.col_span) {
      const auto cell = static_cast<std::size_t>(r / cells.row_span * cells.scale_cols + left / cells.col_span);
      const float scale = tensor.scales[cell] * tensor.global_scale;
      const auto zero = tensor.zeros.empty() ? 0.0F : static_cast<float>(tensor.zeros[cell]);
      const std::int64_t right = std::min(left + cells.col_span, cols);
      if (width == 1) {
        for (std::int64_t c = left; c < right; ++c) {
          row[c] = (table[std::to_integer<std::size_t>(codes[c])] - zero) * scale;
        }
      } else {
        for (std::int64_t c = left; c < right; ++c) row[c] = wide(load_wide(codes, c, width)) * scale;
      }
    }
  }
}

void accumulate_stats(TensorStats& stats, std::span<const float> values, std::int64_t first_element) {
  float low = stats.range.low, high = stats.range.high;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float x = values[i];
    if (!std::isfinite(x)) {
      if (stats.non_finite++ == 0) stats.first_non_finite = first_element + static_cast<std::int64_t>(i);
      continue;
    }
    low = x < low ? x : low;
    high = x > high ? x : high;
  }
  stats.range = {low, high};
  stats.amax = std::max({stats.amax, -low, high});
}

std::int64_t row_multiple(const Scheme& scheme) {
  return !scheme.ggml && scheme.granularity == Granularity::block ? scheme.block_rows : 1;
}

bool needs_whole_tensor_stats(const Scheme& scheme) {
  return !scheme.ggml && (scheme.granularity == Granularity::tensor || scheme.two_level);
}

QuantizedTensor quantize_rows(const Scheme& scheme, std::span<const float> values, std::int64_t rows, std::int64_t cols,
                              const TensorStats& whole) {
  HT_CHECK(rows >= 0 && cols >= 0 && values.size() == checked_size(rows, cols));
  QuantizedTensor tensor;
  tensor.scheme = scheme;
  tensor.rows = rows;
  tensor.cols = cols;
  if (scheme.ggml && rows > 0) {
    if (const auto reason = scheme_refusal(scheme, rows, cols)) fail(ErrorKind::unsupported, "{}", *reason);
  }
  const std::span<std::byte> codes = allocate_codes(tensor);
  if (scheme.ggml) {
    if (!values.empty()) ggml_encode(*scheme.ggml, values, codes);
    return tensor;
  }
  const int width = tensor.code_bytes();
  if (scheme.is_dense()) {
    encode_dense(scheme.element, values, codes.data(), width);
    return tensor;
  }
  if (scheme.two_level) tensor.global_scale = choose_global_scale(scheme, whole.amax);
  const SchemeShape shape = tensor.scales_shape();
  const std::size_t cell_count = checked_size(shape.scale_rows, shape.scale_cols);
  tensor.scales.reserve(cell_count);
  if (!scheme.symmetric) tensor.zeros.reserve(cell_count);

  const Cells cells(scheme, rows, cols);
  const ScaleChooser chooser(scheme, tensor.global_scale);
  const RunEncoder encoder(scheme);
  std::vector<ScaleZero> chosen(static_cast<std::size_t>(shape.scale_cols));
  for (std::int64_t i = 0; i < shape.scale_rows; ++i) {
    const std::int64_t top = i * cells.row_span, bottom = std::min(rows, top + cells.row_span);
    if (scheme.granularity == Granularity::tensor) {
      chosen[0] = chooser.choose(whole.range);
    } else {
      choose_scales(chooser, values, top, bottom, cols, cells.col_span, chosen);
    }
    for (const ScaleZero& sz : chosen) {
      tensor.scales.push_back(sz.scale);
      if (!scheme.symmetric) tensor.zeros.push_back(sz.zero);
    }
    for (std::int64_t row = top; row < bottom; ++row) {
      for (std::int64_t left = 0; left < cols; left += cells.col_span) {
        const std::int64_t right = std::min(cols, left + cells.col_span), at = row * cols + left;
        encoder.encode(values.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(right - left)),
                       chosen[static_cast<std::size_t>(left / cells.col_span)], tensor.global_scale,
                       codes.data() + at * width, width);
      }
    }
  }
  return tensor;
}

void fake_quantize_rows(const Scheme& scheme, std::span<float> values, std::int64_t rows, std::int64_t cols) {
  HT_CHECK(!scheme.ggml && scheme.granularity != Granularity::block);
  HT_CHECK(rows >= 0 && cols >= 0 && values.size() == checked_size(rows, cols));
  Scheme dynamic = scheme;
  if (dynamic.scale == bf16_format()) dynamic.scale = fp32_format();
  TensorStats stats;
  if (needs_whole_tensor_stats(dynamic)) accumulate_stats(stats, values, 0);
  // Runs of finite rows; a few ten thousand values at once stay in the cache between coding and decoding.
  const std::int64_t most = std::max<std::int64_t>(1, 32768 / std::max<std::int64_t>(1, cols));
  const auto row_span = [&](std::int64_t first, std::int64_t count) {
    return values.subspan(static_cast<std::size_t>(first * cols), static_cast<std::size_t>(count * cols));
  };
  std::int64_t first = 0;
  while (first < rows) {
    std::int64_t end = first;
    while (end < rows && end - first < most && is_finite_row(row_span(end, 1))) ++end;
    if (end > first) {
      const std::span<float> run = row_span(first, end - first);
      dequantize_rows(quantize_rows(dynamic, run, end - first, cols, stats), 0, end - first, run);
      first = end;
    } else {
      ++first;
    }
  }
}

QuantizedTensor slice_rows(const QuantizedTensor& tensor, std::int64_t first, std::int64_t count) {
  HT_CHECK(first >= 0 && count >= 0 && first + count <= tensor.rows && first % row_multiple(tensor.scheme) == 0);
  QuantizedTensor out;
  out.scheme = tensor.scheme;
  out.rows = count;
  out.cols = tensor.cols;
  out.global_scale = tensor.global_scale;
  out.owner = tensor.owner;
  const std::size_t row_bytes = tensor.rows > 0 ? tensor.codes.size() / static_cast<std::size_t>(tensor.rows) : 0;
  out.codes = tensor.codes.subspan(static_cast<std::size_t>(first) * row_bytes, static_cast<std::size_t>(count) * row_bytes);
  const SchemeShape part = out.scales_shape();
  const std::int64_t skipped = tensor.scheme.granularity == Granularity::tensor
                                   ? 0
                                   : first / row_multiple(tensor.scheme) * part.scale_cols;
  const auto cells = static_cast<std::ptrdiff_t>(part.scale_rows * part.scale_cols);
  if (!tensor.scales.empty()) {
    out.scales.assign(tensor.scales.begin() + skipped, tensor.scales.begin() + skipped + cells);
  }
  if (!tensor.zeros.empty()) out.zeros.assign(tensor.zeros.begin() + skipped, tensor.zeros.begin() + skipped + cells);
  return out;
}

}  // namespace halftone
