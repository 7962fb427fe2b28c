// Writing side of pipeline/stored.h.
#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/integer.h"
#include "numeric/packing.h"
#include "pipeline/stored.h"
#include "pipeline/stored_config.h"

namespace halftone {
namespace {

using Json = nlohmann::ordered_json;

enum class Content : std::uint8_t {
  natural,         // a dtype that holds the codes as they are
  row_bits,        // U8, bit stream a row
  words,           // I32, offset integers
  blocks,          // U8, GGUF blocks
  scales,          // in the scale format's dtype
  zeros,           // I8
  zeros_in_words,  // I32, packed along the rows
  global_scale,    // F32 [1]
  shape            // I64 [2]
};

struct Stored {
  TensorInfo info;
  Content content;
};


std::uint64_t checked_bytes(const std::string& name, const Shape& shape, int bits) {
  std::int64_t total = bits;
  for (const std::int64_t dim : shape) {
    if (__builtin_mul_overflow(total, dim, &total)) fail(ErrorKind::bad_input, "tensor '{}': too large", name);
  }
  return static_cast<std::uint64_t>(total / 8);
}

std::optional<DType> natural_dtype(const ElementFormat& element) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f8_e4m3, DType::f8_e5m2, DType::f8_e4m3fnuz,
                            DType::f8_e5m2fnuz, DType::i8}) {
    const std::optional<ElementFormat> format = dtype_format(dtype);
    if (format && *format == element) return dtype;
  }
  return element == int_format(8) ? std::optional<DType>(DType::i8) : std::nullopt;
}

DType scale_dtype(const ElementFormat& scale) {
  if (scale == e8m0_format()) return DType::u8;  // what older readers can open; see shared/formats.md 3.1
  const std::optional<DType> dtype = natural_dtype(scale);
  HT_CHECK(dtype.has_value());
  return *dtype;
}

bool is_packed(StoredMethod method, const StoredModule& module) {
  if (module.weights.is_dense() && natural_dtype(module.weights.element)) return false;
  if (method == StoredMethod::compressed_tensors) {
    const std::optional<std::string> format = compressed_format(module, nullptr);
    HT_CHECK(format.has_value());
    return format->find("pack") != std::string::npos;
  }
  return !natural_dtype(module.weights.element);
}

std::vector<Stored> layout_of(StoredMethod method, const StoredModule& module) {
  const Scheme& scheme = module.weights;
  const std::int64_t rows = module.rows, cols = module.cols;
  HT_CHECK(rows > 0 && cols > 0);
  std::vector<Stored> out;
  const auto add = [&](const char* suffix, DType dtype, Shape shape, Content content) {
    Stored stored;
    stored.info.name = module.module + suffix;
    stored.info.dtype = dtype;
    stored.info.bytes = checked_bytes(stored.info.name, shape, dtype_bits(dtype));
    stored.info.shape = std::move(shape);
    stored.content = content;
    out.push_back(std::move(stored));
  };
  const int bits = scheme.element.bits;
  const bool compressed = method == StoredMethod::compressed_tensors && !scheme.is_dense();
  if (scheme.ggml) {
    const GgmlTypeInfo& type = ggml_info(*scheme.ggml);
    HT_CHECK(cols % type.block_elements == 0);
    add(".weight_blocks", DType::u8, {rows, cols / type.block_elements * type.block_bytes}, Content::blocks);
    return out;
  }
  if (!is_packed(method, module)) {
    add(".weight", *natural_dtype(scheme.element), {rows, cols}, Content::natural);
  } else if (compressed && scheme.element.kind == FormatKind::integer) {
    add(".weight_packed", DType::i32, {rows, ceil_div(cols * bits, 32)}, Content::words);
    add(".weight_shape", DType::i64, {2}, Content::shape);
  } else {
    add(".weight_packed", DType::u8, {rows, ceil_div(cols * bits, 8)}, Content::row_bits);
    if (cols * bits % 8 != 0) add(".weight_shape", DType::i64, {2}, Content::shape);
  }
  if (scheme.is_dense()) return out;

  const SchemeShape cells = scale_shape(scheme, rows, cols);
  Shape shape{cells.scale_rows, cells.scale_cols};
  if (scheme.granularity == Granularity::tensor) shape = {1};
  add(".weight_scale", scale_dtype(scheme.scale), shape, Content::scales);
  if (!scheme.symmetric) {
    if (compressed && out.front().content == Content::words) {
      add(".weight_zero_point", DType::i32, {ceil_div(rows * bits, 32), cells.scale_cols}, Content::zeros_in_words);
    } else {
      add(".weight_zero_point", DType::i8, shape, Content::zeros);
    }
  }
  if (scheme.two_level) add(".weight_global_scale", DType::f32, {1}, Content::global_scale);
  return out;
}

std::uint32_t code_at(const QuantizedTensor& tensor, std::size_t index) {
  const int width = tensor.code_bytes();
  std::uint32_t code = 0;
  std::memcpy(&code, tensor.codes.data() + index * static_cast<std::size_t>(width), static_cast<std::size_t>(width));
  return code;
}

std::vector<std::byte> pack_rows(const QuantizedTensor& chunk, std::int64_t row_bytes, bool offset) {
  const int bits = chunk.scheme.element.bits;
  const auto cols = static_cast<std::size_t>(chunk.cols);
  const auto stride = static_cast<std::size_t>(row_bytes);
  std::vector<std::byte> out(static_cast<std::size_t>(chunk.rows) * stride);
  const std::uint32_t mask = (1U << bits) - 1, half = offset ? 1U << (bits - 1) : 0U;
  std::vector<std::uint8_t> row(cols);
  for (std::int64_t r = 0; r < chunk.rows; ++r) {
    const std::size_t start = static_cast<std::size_t>(r) * cols;
    const std::span<std::byte> to(out.data() + static_cast<std::size_t>(r) * stride, stride);
    if (bits <= 8) {
      for (std::size_t c = 0; c < cols; ++c) {
        row[c] = static_cast<std::uint8_t>((std::to_integer<std::uint32_t>(chunk.codes[start + c]) + half) & mask);
      }
      pack_bits(row, bits, to.first((cols * static_cast<std::size_t>(bits) + 7) / 8));
      continue;
    }
    for (std::size_t c = 0; c < cols; ++c) {
      const std::size_t bit = c * static_cast<std::size_t>(bits);
      const std::uint32_t window = (code_at(chunk, start + c) & mask) << (bit % 8);
      for (std::size_t k = 0; k < 3 && bit / 8 + k < stride; ++k) {
        to[bit / 8 + k] |= static_cast<std::byte>((window >> (8 * k)) & 0xFFU);
      }
    }
  }
  return out;
}

void append_value(std::vector<std::byte>& out, const void* value, std::size_t bytes) {
  const auto* from = static_cast<const std::byte*>(value);
  out.insert(out.end(), from, from + bytes);
}

std::vector<std::byte> scale_bytes(const ElementFormat& format, std::span<const float> scales) {
  std::vector<std::byte> out;
  out.reserve(scales.size() * 4);
  for (const float scale : scales) {
    if (format == fp32_format()) {
      append_value(out, &scale, 4);
    } else if (format.bits == 16) {
      const std::uint16_t code = format == bf16_format() ? float_to_bf16(scale) : float_to_fp16(scale);
      append_value(out, &code, 2);
    } else {
      const auto code = format == e8m0_format() ? encode_e8m0(scale, E8m0Rounding::nearest)
                                                : static_cast<std::uint8_t>(encode(format, scale));
      out.push_back(static_cast<std::byte>(code));
    }
  }
  return out;
}

// Rows are a stream of codes down each column; a chunk that starts at a multiple of 32 rows starts at a word.
std::vector<std::byte> zero_words(const QuantizedTensor& chunk) {
  const int bits = chunk.scheme.element.bits;
  const SchemeShape cells = chunk.scales_shape();
  const std::int64_t words = ceil_div(cells.scale_rows * bits, 32), cols = cells.scale_cols;
  std::vector<std::uint32_t> out(static_cast<std::size_t>(words * cols), 0);
  const std::uint32_t mask = (1U << bits) - 1;
  for (std::int64_t r = 0; r < cells.scale_rows; ++r) {
    const std::int64_t bit = r * bits;
    for (std::int64_t c = 0; c < cols; ++c) {
      const std::int32_t zero = chunk.zeros[static_cast<std::size_t>(r * cols + c)];
      const std::uint64_t code = (static_cast<std::uint32_t>(zero) + (1U << (bits - 1))) & mask;
      const std::uint64_t window = code << (bit % 32);
      out[static_cast<std::size_t>(bit / 32 * cols + c)] |= static_cast<std::uint32_t>(window);
      if (bit % 32 + bits > 32) {
        out[static_cast<std::size_t>((bit / 32 + 1) * cols + c)] |= static_cast<std::uint32_t>(window >> 32);
      }
    }
  }
  std::vector<std::byte> bytes(out.size() * 4);
  std::memcpy(bytes.data(), out.data(), bytes.size());
  return bytes;
}

std::string scheme_key(const StoredModule& module) {
  std::string key = module.weights.ggml ? std::string("ggml ") + std::string(ggml_info(*module.weights.ggml).name)
                                        : to_string(module.weights);
  if (module.activations) key += " + " + to_string(*module.activations);
  return key;
}

}  // namespace

StoredMethod choose_method(const std::vector<StoredModule>& quantized, std::string* why) {
  bool any = false;
  for (const StoredModule& module : quantized) {
    if (module.weights.is_dense() && natural_dtype(module.weights.element) && !module.activations &&
        module.weights.element.bits >= 16) {
      continue;
    }
    any = true;
    if (!compressed_format(module, why)) return StoredMethod::halftone;
  }
  return any ? StoredMethod::compressed_tensors : StoredMethod::none;
}

std::vector<TensorInfo> stored_tensors(StoredMethod method, const StoredModule& module) {
  std::vector<TensorInfo> out;
  for (Stored& stored : layout_of(method, module)) out.push_back(std::move(stored.info));
  return out;
}

std::int64_t store_row_multiple(StoredMethod method, const StoredModule& module) {
  std::int64_t multiple = row_multiple(module.weights);
  if (method == StoredMethod::compressed_tensors && !module.weights.symmetric) multiple = std::lcm(multiple, 32);
  return multiple;
}

std::vector<std::byte> store_rows(StoredMethod method, const StoredModule& module, std::size_t which,
                                  std::int64_t first, const QuantizedTensor& chunk) {
  const std::vector<Stored> layout = layout_of(method, module);
  HT_CHECK(which < layout.size());
  HT_CHECK(chunk.scheme == module.weights && chunk.cols == module.cols);
  HT_CHECK(first % store_row_multiple(method, module) == 0);
  const Stored& stored = layout[which];
  std::vector<std::byte> out;
  switch (stored.content) {
    case Content::natural:
    case Content::blocks:
      out.assign(chunk.codes.begin(), chunk.codes.end());
      break;
    case Content::row_bits:
    case Content::words:
      out = pack_rows(chunk, static_cast<std::int64_t>(stored.info.row_bytes()), stored.content == Content::words);
      break;
    case Content::scales:
      if (module.weights.granularity == Granularity::tensor && first > 0) break;
      out = scale_bytes(module.weights.scale, chunk.scales);
      break;
    case Content::zeros:
      if (module.weights.granularity == Granularity::tensor && first > 0) break;
      for (const std::int32_t zero : chunk.zeros) out.push_back(static_cast<std::byte>(zero & 0xFF));
      break;
    case Content::zeros_in_words:
      out = zero_words(chunk);
      break;
    case Content::global_scale:
      if (first == 0) {
        const float value =
            method == StoredMethod::compressed_tensors ? 1.0F / chunk.global_scale : chunk.global_scale;
        append_value(out, &value, 4);
      }
      break;
    case Content::shape:
      if (first == 0) {
        const std::int64_t shape[2] = {module.rows, module.cols};
        append_value(out, shape, sizeof shape);
      }
      break;
  }
  return out;
}

Json quantization_config(StoredMethod method, const std::vector<StoredModule>& quantized,
                         const std::vector<std::string>& dense_linears) {
  HT_CHECK(method != StoredMethod::none);
  std::vector<std::string> order, all = dense_linears;
  std::map<std::string, std::vector<const StoredModule*>> groups;
  for (const StoredModule& module : quantized) {
    auto& members = groups[scheme_key(module)];
    if (members.empty()) order.push_back(scheme_key(module));
    members.push_back(&module);
    all.push_back(module.module);
  }
  Json config, config_groups = Json::object();
  std::string whole_format;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::vector<const StoredModule*>& members = groups[order[i]];
    const StoredModule& sample = *members.front();
    std::vector<std::string> names;
    for (const StoredModule* module : members) names.push_back(module->module);
    Json group;
    if (method == StoredMethod::compressed_tensors) {
      const std::string format = *compressed_format(sample, nullptr);
      whole_format = whole_format.empty() || whole_format == format ? format : "mixed-precision";
      group["targets"] = order.size() == 1 ? std::vector<std::string>{"Linear"} : compact_names(names, all);
      group["weights"] = *args_from_weights(sample.weights, nullptr);
      group["input_activations"] = sample.activations ? *args_from_activations(*sample.activations, nullptr) : Json();
      group["output_activations"] = nullptr;
      group["format"] = format;
    } else {
      group["targets"] = compact_names(names, all);
      if (sample.weights.ggml) {
        group["ggml"] = std::string(ggml_info(*sample.weights.ggml).name);
      } else {
        group["scheme"] = to_string(sample.weights);
      }
      group["activations"] = sample.activations ? Json(to_string(*sample.activations)) : Json();
    }
    config_groups[fmt::format("group_{}", i)] = std::move(group);
  }
  if (method == StoredMethod::compressed_tensors) {
    config["quant_method"] = "compressed-tensors";
    config["format"] = whole_format;
    config["quantization_status"] = "compressed";
  } else {
    config["quant_method"] = "halftone";
    config["version"] = 1;
  }
  config["config_groups"] = std::move(config_groups);
  config["ignore"] = compact_names(dense_linears, all);
  if (method == StoredMethod::compressed_tensors) config["kv_cache_scheme"] = nullptr;
  return config;
}

}  // namespace halftone
