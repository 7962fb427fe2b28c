// Reading side of pipeline/stored.h.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/integer.h"
#include "pipeline/json_text.h"
#include "numeric/packing.h"
#include "pipeline/stored.h"
#include "pipeline/stored_config.h"

namespace halftone {
namespace {

using Json = nlohmann::ordered_json;

enum class Layout : std::uint8_t {
  dense,        // plain floats whose codes are the bytes of the file
  converted,    // plain numbers that are read as FP32
  bytes,        // one byte a code: F8_*, I8
  row_bits,     // bit stream a row, least significant bits first, two's complement or float codes
  words,        // compressed-tensors: bit stream a row in 32-bit words, integers offset by 2^(b-1)
  padded,       // the same with floor(32/b) codes a word
  ggml
};

struct Parts {
  const TensorInfo *weight = nullptr, *packed = nullptr, *blocks = nullptr, *scale = nullptr, *scale_inv = nullptr,
                   *zero = nullptr, *global = nullptr, *shape = nullptr, *order = nullptr, *input_scale = nullptr;
  bool bare_name = false;  // the tensor's name has no ".weight"
  std::vector<std::string> names;
};

struct Matrix {
  WeightInfo info;
  bool quantized = false;
  Layout layout = Layout::dense;
  const TensorInfo *codes = nullptr, *scales = nullptr, *zeros = nullptr;
  bool zeros_in_words = false, zeros_padded = false;
  float global_scale = 1.0F;
};

std::string quoted(const TensorInfo& info) { return fmt::format("'{}' ({})", info.name, info.file); }

struct Suffix {
  std::string_view text;
  const TensorInfo* Parts::*slot;
};
constexpr Suffix kSuffixes[] = {{".weight_packed", &Parts::packed},       {".weight_blocks", &Parts::blocks},
                                {".weight_scale_inv", &Parts::scale_inv}, {".weight_scale", &Parts::scale},
                                {".weight_zero_point", &Parts::zero},     {".weight_global_scale", &Parts::global},
                                {".weight_shape", &Parts::shape},         {".weight_g_idx", &Parts::order},
                                {".input_scale", &Parts::input_scale},    {".input_zero_point", nullptr},
                                {".input_global_scale", nullptr},         {".weight", &Parts::weight}};

// Tensors in the order of their first part, grouped by module.
struct Grouped {
  std::vector<std::string> order;
  std::map<std::string, Parts> modules;
};

Grouped group_tensors(const TensorSource& tensors) {
  Grouped grouped;
  for (const TensorInfo& info : tensors.tensors()) {
    std::string module = info.name;
    const TensorInfo* Parts::*slot = &Parts::weight;
    bool bare = true;
    for (const Suffix& suffix : kSuffixes) {
      if (info.name.size() > suffix.text.size() && info.name.ends_with(suffix.text)) {
        module.resize(module.size() - suffix.text.size());
        slot = suffix.slot;
        bare = false;
        break;
      }
    }
    auto [at, fresh] = grouped.modules.try_emplace(module);
    if (fresh) grouped.order.push_back(module);
    Parts& parts = at->second;
    if (slot != nullptr) {
      if (parts.*slot != nullptr) {
        fail(ErrorKind::bad_input, "{}: the tensors {} and {} stand for the same thing", info.file,
             quoted(*(parts.*slot)), quoted(info));
      }
      parts.*slot = &info;
    }
    if (slot == &Parts::weight) parts.bare_name = bare;
    parts.names.push_back(info.name);
  }
  return grouped;
}

struct Group {
  std::vector<ModulePattern> targets;
  Scheme weights;
  std::optional<Scheme> activations;
  std::string format;
  std::string name;
};

struct Quantization {
  std::string method;  // "", "compressed-tensors", "fp8", "halftone"
  std::vector<Group> groups;
  std::vector<ModulePattern> ignore;
  std::int64_t block_rows = 0, block_cols = 0;  // fp8
  std::optional<Scheme> activations;            // fp8
  std::vector<std::string> notes;

  const Group* group_of(const std::string& module) const {
    for (const bool classes : {false, true}) {
      for (const Group& group : groups) {
        for (const ModulePattern& target : group.targets) {
          if (target.is_class() == classes && target.matches(module)) return &group;
        }
      }
    }
    return nullptr;
  }
};

std::vector<ModulePattern> patterns_of(const Json& object, const char* key, const std::string& where) {
  std::vector<ModulePattern> out;
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return out;
  if (!found->is_array()) fail(ErrorKind::bad_input, "{}: '{}' must be a list of names", where, key);
  for (const Json& item : *found) {
    if (!item.is_string()) fail(ErrorKind::bad_input, "{}: '{}' must be a list of names", where, key);
    out.emplace_back(item.get<std::string>(), fmt::format("{}: '{}'", where, key));
  }
  return out;
}

void read_compressed_tensors(const Json& config, Quantization& out) {
  const std::string where = "quantization_config";
  const std::string status = text_of(config, "quantization_status");
  if (!status.empty() && status != "compressed") {
    fail(ErrorKind::unsupported,
         "{}: quantization_status '{}' cannot be read: only 'compressed' checkpoints hold the quantized codes", where,
         status);
  }
  const std::string format = text_of(config, "format");
  const auto sparsity = config.find("sparsity_config");
  if (sparsity != config.end() && sparsity->is_object() && !sparsity->empty()) {
    const std::string sparse = text_of(*sparsity, "format");
    if (!sparse.empty() && sparse != "dense") {
      fail(ErrorKind::unsupported, "{}: sparse format '{}' cannot be read; save the checkpoint without it", where,
           sparse);
    }
  }
  const auto groups = config.find("config_groups");
  if (groups == config.end() || !groups->is_object()) {
    fail(ErrorKind::bad_input, "{}: 'config_groups' is missing", where);
  }
  static constexpr std::string_view known[] = {
      "int-quantized",        "float-quantized",      "naive-quantized", "pack-quantized",      "nvfp4-pack-quantized",
      "mxfp4-pack-quantized", "mxfp6-pack-quantized", "mxfp8-quantized", "mxfp8-pack-quantized"};
  bool noted = false;
  for (const auto& [name, value] : groups->items()) {
    const std::string here = fmt::format("{}.config_groups.{}", where, name);
    if (!value.is_object()) fail(ErrorKind::bad_input, "{}: must be an object", here);
    Group group;
    group.name = name;
    group.targets = patterns_of(value, "targets", here);
    group.format = text_of(value, "format");
    if (group.format.empty()) group.format = format;
    const auto weights = value.find("weights");
    if (weights == value.end() || weights->is_null()) continue;  // activations only: nothing stored differently
    if (std::find(std::begin(known), std::end(known), group.format) == std::end(known)) {
      fail(ErrorKind::unsupported, "{}: format '{}' cannot be read (these can: {})", here, group.format,
           fmt::join(known, ", "));
    }
    group.weights = scheme_from_args(*weights, false, here + ".weights", nullptr);
    const auto inputs = value.find("input_activations");
    if (inputs != value.end() && !inputs->is_null()) {
      bool is_static = false;
      group.activations = scheme_from_args(*inputs, true, here + ".input_activations", &is_static);
      if (is_static && !noted) {
        noted = true;
        out.notes.push_back(fmt::format(
            "{}: static activation scales are not used; activations take dynamic {} scales instead", here,
            to_string(*group.activations)));
      }
    }
    out.groups.push_back(std::move(group));
  }
  out.ignore = patterns_of(config, "ignore", where);
}

void read_fp8(const Json& config, Quantization& out) {
  const std::string where = "quantization_config (fp8)";
  const std::string fmt_name = text_of(config, "fmt");
  if (!fmt_name.empty() && fmt_name != "e4m3") {
    fail(ErrorKind::unsupported, "{}: fmt '{}' cannot be read (e4m3 can)", where, fmt_name);
  }
  const std::string experts = text_of(config, "expert_dtype");
  if (!experts.empty() && experts != "fp8") {
    fail(ErrorKind::unsupported, "{}: expert_dtype '{}' cannot be read (fp8 can)", where, experts);
  }
  const auto block = config.find("weight_block_size");
  if (block != config.end() && !block->is_null()) {
    if (!block->is_array() || block->size() != 2 || !(*block)[0].is_number_integer() ||
        !(*block)[1].is_number_integer() || (*block)[0].get<std::int64_t>() <= 0 ||
        (*block)[1].get<std::int64_t>() <= 0) {
      fail(ErrorKind::bad_input, "{}: 'weight_block_size' must be two positive numbers", where);
    }
    out.block_rows = (*block)[0].get<std::int64_t>();
    out.block_cols = (*block)[1].get<std::int64_t>();
  }
  Scheme activations;
  activations.element = fp8_e4m3_format();
  activations.scale = fp32_format();
  activations.granularity = out.block_cols > 0 ? Granularity::group : Granularity::token;
  activations.group = out.block_cols;
  out.activations = activations;
  if (text_of(config, "activation_scheme") == "static") {
    out.notes.push_back(fmt::format("{}: static activation scales are not used; activations take dynamic {} scales",
                                    where, to_string(activations)));
  }
}

void read_halftone(const Json& config, Quantization& out) {
  const std::string where = "quantization_config (halftone)";
  const auto version = config.find("version");
  if (version == config.end() || !version->is_number_integer() || version->get<std::int64_t>() != 1) {
    fail(ErrorKind::unsupported, "{}: only version 1 can be read; use a newer Halftone", where);
  }
  const auto groups = config.find("config_groups");
  if (groups == config.end() || !groups->is_object()) {
    fail(ErrorKind::bad_input, "{}: 'config_groups' is missing", where);
  }
  for (const auto& [name, value] : groups->items()) {
    const std::string here = fmt::format("{}.config_groups.{}", where, name);
    if (!value.is_object()) fail(ErrorKind::bad_input, "{}: must be an object", here);
    Group group;
    group.name = name;
    group.format = "halftone";
    group.targets = patterns_of(value, "targets", here);
    const std::string blocks = text_of(value, "ggml"), scheme = text_of(value, "scheme");
    try {
      if (!blocks.empty()) {
        const GgmlTypeInfo* type = find_ggml_type(blocks);
        if (type == nullptr) fail(ErrorKind::bad_input, "{}: unknown block type '{}'", here, blocks);
        group.weights.ggml = type->type;
      } else {
        group.weights = parse_scheme(scheme);
      }
      const std::string activations = text_of(value, "activations");
      if (!activations.empty()) group.activations = parse_scheme(activations);
    } catch (const Error& error) {
      fail(ErrorKind::bad_input, "{}: {}", here, error.what());
    }
    out.groups.push_back(std::move(group));
  }
  out.ignore = patterns_of(config, "ignore", where);
}

Quantization read_quantization(const Json& whole) {
  Quantization out;
  const Json config = find_quantization_config(whole);
  if (config.is_null()) return out;
  out.method = text_of(config, "quant_method");
  if (out.method == "compressed-tensors" || (out.method.empty() && config.contains("config_groups"))) {
    out.method = "compressed-tensors";
    read_compressed_tensors(config, out);
  } else if (out.method == "fp8") {
    read_fp8(config, out);
  } else if (out.method == "halftone") {
    read_halftone(config, out);
  } else {
    fail(ErrorKind::unsupported,
         "quantization_config: quant_method '{}' cannot be read (these can: compressed-tensors, fp8, halftone)",
         out.method);
  }
  return out;
}

bool is_quantized_dtype(DType dtype) {
  switch (dtype) {
    case DType::f4: case DType::f6_e2m3: case DType::f6_e3m2: case DType::u8: case DType::i8: case DType::f8_e5m2:
    case DType::f8_e4m3: case DType::f8_e4m3fnuz: case DType::f8_e5m2fnuz:
      return true;
    default:
      return false;
  }
}

ElementFormat scale_format_of(const TensorInfo& scale) {
  switch (scale.dtype) {
    case DType::f32: return fp32_format();
    case DType::bf16: return bf16_format();
    case DType::f16: return fp16_format();
    case DType::f8_e4m3: return fp8_e4m3_format();
    case DType::u8: case DType::f8_e8m0: return e8m0_format();
    default:
      fail(ErrorKind::unsupported, "tensor {}: scales of dtype {} cannot be read", quoted(scale),
           dtype_name(scale.dtype));
  }
}

// The scales of a matrix must be as many as its scheme has cells.
void check_scale_shape(const Matrix& matrix, const TensorInfo& scale, std::string_view what) {
  const SchemeShape shape = scale_shape(matrix.info.scheme, matrix.info.rows, matrix.info.cols);
  const std::int64_t cells = shape.scale_rows * shape.scale_cols;
  bool fits = scale.elements() == cells;
  // [rows, n] must not be a transposed [n, rows]: the last dimension counts unless the tensor is flat.
  if (fits && scale.shape.size() >= 2 && cells > 1) fits = scale.cols() == shape.scale_cols;
  if (!fits) {
    fail(ErrorKind::bad_input, "tensor {}: {} of shape {} do not fit a [{}, {}] matrix in {} (expected [{}, {}])",
         quoted(scale), what, shape_string(scale.shape), matrix.info.rows, matrix.info.cols,
         to_string(matrix.info.scheme), shape.scale_rows, shape.scale_cols);
  }
}


std::vector<std::int64_t> read_integers(const TensorSource& tensors, const TensorInfo& info) {
  if (info.dtype != DType::i64 && info.dtype != DType::i32) {
    fail(ErrorKind::bad_input, "tensor {}: must hold whole numbers, not {}", quoted(info), dtype_name(info.dtype));
  }
  std::vector<std::byte> scratch;
  const std::span<const std::byte> bytes = tensors.rows(info, 0, info.rows(), scratch);
  std::vector<std::int64_t> out(static_cast<std::size_t>(info.elements()));
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (info.dtype == DType::i64) {
      std::memcpy(&out[i], bytes.data() + 8 * i, 8);
    } else {
      std::int32_t value = 0;
      std::memcpy(&value, bytes.data() + 4 * i, 4);
      out[i] = value;
    }
  }
  return out;
}

// Everything but the scales of a quantized matrix: its codes, logical shape and layout.
void bind_codes(const TensorSource& tensors, const std::string& module, const Parts& parts, const Group* group,
                Matrix& matrix) {
  Scheme& scheme = matrix.info.scheme;
  const int bits = scheme.element.bits;
  if (parts.blocks != nullptr) {
    const TensorInfo& blocks = *parts.blocks;
    if (!scheme.ggml || blocks.dtype != DType::u8) {
      fail(ErrorKind::bad_input, "tensor {}: the config does not say that it holds U8 blocks", quoted(blocks));
    }
    const GgmlTypeInfo& type = ggml_info(*scheme.ggml);
    if (blocks.cols() % type.block_bytes != 0) {
      fail(ErrorKind::bad_input, "tensor {}: rows of {} bytes are not whole {} blocks", quoted(blocks), blocks.cols(),
           type.name);
    }
    matrix.codes = &blocks;
    matrix.layout = Layout::ggml;
    matrix.info.rows = blocks.rows();
    matrix.info.cols = blocks.cols() / type.block_bytes * type.block_elements;
    return;
  }
  if (scheme.ggml) fail(ErrorKind::bad_input, "module '{}': weight_blocks is missing", module);
  if (parts.packed == nullptr) {
    const TensorInfo& weight = *parts.weight;
    matrix.codes = &weight;
    matrix.layout = Layout::bytes;
    matrix.info.rows = weight.rows();
    matrix.info.cols = weight.cols();
    const std::optional<ElementFormat> stored = dtype_format(weight.dtype);
    const bool small_integer = weight.dtype == DType::i8 && scheme.element.kind == FormatKind::integer;
    if (!small_integer && !(stored && *stored == scheme.element)) {
      fail(ErrorKind::bad_input, "tensor {}: dtype {} does not hold {} codes", quoted(weight), dtype_name(weight.dtype),
           format_name(scheme.element));
    }
    return;
  }
  const TensorInfo& packed = *parts.packed;
  if (parts.weight != nullptr) {
    fail(ErrorKind::bad_input, "module '{}': has both weight and weight_packed", module);
  }
  matrix.codes = &packed;
  matrix.info.rows = packed.rows();
  std::int64_t cols = -1;
  if (parts.shape != nullptr) {
    const std::vector<std::int64_t> shape = read_integers(tensors, *parts.shape);
    if (shape.size() < 2 || shape.back() <= 0) {
      fail(ErrorKind::bad_input, "tensor {}: must hold the shape of a matrix", quoted(*parts.shape));
    }
    std::int64_t rows = 1;
    for (std::size_t i = 0; i + 1 < shape.size(); ++i) {
      if (shape[i] <= 0 || __builtin_mul_overflow(rows, shape[i], &rows)) rows = -1;
      if (rows < 0) break;
    }
    if (rows != packed.rows()) {
      fail(ErrorKind::bad_input, "tensor {}: does not fit the {} rows of weight_packed", quoted(*parts.shape),
           packed.rows());
    }
    cols = shape.back();
    if (cols > std::int64_t{1} << 40) {
      fail(ErrorKind::bad_input, "tensor {}: {} columns are too many", quoted(*parts.shape), cols);
    }
  }
  if (packed.dtype == DType::i32 && group != nullptr && group->format == "pack-quantized") {
    if (cols < 0) fail(ErrorKind::bad_input, "module '{}': weight_shape is missing", module);
    if (packed.cols() == ceil_div(cols * bits, 32)) {
      matrix.layout = Layout::words;
    } else if (packed.cols() == ceil_div(cols, 32 / bits)) {
      matrix.layout = Layout::padded;
    } else {
      fail(ErrorKind::bad_input, "tensor {}: rows of {} words hold no {} codes of {} bits", quoted(packed),
           packed.cols(), cols, bits);
    }
  } else if (packed.dtype == DType::u8) {
    if (cols < 0) cols = packed.cols() * 8 / bits;
    if (packed.cols() != ceil_div(cols * bits, 8)) {
      fail(ErrorKind::bad_input, "tensor {}: rows of {} bytes hold no {} codes of {} bits", quoted(packed),
           packed.cols(), cols, bits);
    }
    matrix.layout = Layout::row_bits;
  } else {
    fail(ErrorKind::bad_input, "tensor {}: dtype {} does not hold packed codes", quoted(packed),
         dtype_name(packed.dtype));
  }
  matrix.info.cols = cols;
}

void bind_zeros(const Parts& parts, Matrix& matrix) {
  if (parts.zero == nullptr) {
    if (!matrix.info.scheme.symmetric) {
      fail(ErrorKind::bad_input, "module '{}': weight_zero_point is missing for {}", matrix.info.module,
           to_string(matrix.info.scheme));
    }
    return;
  }
  if (matrix.info.scheme.symmetric) return;  // written by some tools as zeros; says nothing
  const TensorInfo& zero = *parts.zero;
  matrix.zeros = &zero;
  if (zero.dtype == DType::i32 && (matrix.layout == Layout::words || matrix.layout == Layout::padded)) {
    const SchemeShape shape = scale_shape(matrix.info.scheme, matrix.info.rows, matrix.info.cols);
    const int bits = matrix.info.scheme.element.bits;
    const std::int64_t words = ceil_div(shape.scale_rows * bits, 32), padded = ceil_div(shape.scale_rows, 32 / bits);
    if (zero.cols() != shape.scale_cols || (zero.rows() != words && zero.rows() != padded)) {
      fail(ErrorKind::bad_input, "tensor {}: zero points of shape {} do not fit (expected [{}, {}])", quoted(zero),
           shape_string(zero.shape), words, shape.scale_cols);
    }
    matrix.zeros_in_words = true;
    matrix.zeros_padded = matrix.layout == Layout::padded || zero.rows() != words;
    return;
  }
  if (zero.dtype != DType::i8) {
    fail(ErrorKind::bad_input, "tensor {}: zero points of dtype {} cannot be read", quoted(zero),
         dtype_name(zero.dtype));
  }
  check_scale_shape(matrix, zero, "zero points");
}

Matrix bind_quantized(const TensorSource& tensors, const std::string& module, const Parts& parts,
                      const Quantization& quantization) {
  Matrix matrix;
  matrix.quantized = true;
  matrix.info.module = module;
  const TensorInfo& any = parts.weight   ? *parts.weight
                          : parts.packed ? *parts.packed
                          : parts.blocks ? *parts.blocks
                          : parts.scale  ? *parts.scale
                                         : *parts.scale_inv;
  if (parts.order != nullptr) {
    fail(ErrorKind::unsupported, "tensor {}: activation order (g_idx) cannot be read; save the model without it",
         quoted(*parts.order));
  }
  if (quantization.method.empty()) {
    fail(ErrorKind::bad_input,
         "module '{}' ({}) has quantized weights or scales, but config.json has no quantization_config that says how",
         module, any.file);
  }
  const TensorInfo* scale = parts.scale != nullptr ? parts.scale : parts.scale_inv;
  if (parts.weight == nullptr && parts.packed == nullptr && parts.blocks == nullptr) {
    fail(ErrorKind::bad_input, "tensor {}: a scale without its weight", quoted(any));
  }
  const Group* group = nullptr;
  Scheme& scheme = matrix.info.scheme;
  if (quantization.method == "fp8") {
    if (scale == nullptr) {
      fail(ErrorKind::bad_input, "tensor {}: its scale ('{}.weight_scale_inv' or '{}.weight_scale') is missing",
           quoted(any), module, module);
    }
    scheme.element = fp8_e4m3_format();
    if (parts.scale_inv != nullptr && quantization.block_rows > 0) {
      scheme.granularity = Granularity::block;
      scheme.block_rows = quantization.block_rows;
      scheme.block_cols = quantization.block_cols;
    } else if (scale->elements() == 1) {
      scheme.granularity = Granularity::tensor;
    } else {
      scheme.granularity = Granularity::channel;
    }
    matrix.info.activations = quantization.activations;
  } else {
    group = quantization.group_of(module);
    if (group == nullptr) {
      fail(ErrorKind::bad_input, "module '{}' ({}) is quantized, but no group of quantization_config names it", module,
           any.file);
    }
    scheme = group->weights;
    matrix.info.activations = group->activations;
  }
  bind_codes(tensors, module, parts, group, matrix);
  if (matrix.info.rows <= 0 || matrix.info.cols <= 0) {
    fail(ErrorKind::bad_input, "tensor {}: a quantized matrix with no values", quoted(*matrix.codes));
  }
  if (scheme.granularity == Granularity::block && any.shape.size() > 2 &&
      any.shape[any.shape.size() - 2] % scheme.block_rows != 0) {
    fail(ErrorKind::unsupported, "tensor {}: stacked matrices with partial blocks cannot be read", quoted(any));
  }
  if (scheme.ggml || scheme.granularity == Granularity::none) return matrix;

  if (scale == nullptr) {
    fail(ErrorKind::bad_input, "tensor {}: its scale ('{}.weight_scale') is missing", quoted(*matrix.codes), module);
  }
  const ElementFormat scale_format = scale_format_of(*scale);
  if (quantization.method == "halftone") {
    if (!(scale_format == scheme.scale)) {
      fail(ErrorKind::bad_input, "tensor {}: dtype {} is not the scale format of {}", quoted(*scale),
           dtype_name(scale->dtype), to_string(scheme));
    }
  } else {
    scheme.scale = scale_format;
  }
  matrix.scales = scale;
  check_scale_shape(matrix, *scale, "scales");
  bind_zeros(parts, matrix);
  if (scheme.two_level) {
    if (parts.global == nullptr || parts.global->elements() != 1) {
      fail(ErrorKind::bad_input, "module '{}': weight_global_scale (one value) is missing", module);
    }
    const float value = read_as_float(tensors, *parts.global).at(0);
    if (!std::isfinite(value) || value <= 0.0F) {
      fail(ErrorKind::bad_input, "tensor {}: {} is no scale", quoted(*parts.global), value);
    }
    // compressed-tensors stores the divisor, Halftone the multiplier.
    matrix.global_scale = quantization.method == "halftone" ? value : 1.0F / value;
  }
  return matrix;
}

std::optional<Matrix> bind_plain(const std::string& module, const TensorInfo& weight,
                                 const Quantization& quantization) {
  if (weight.shape.size() < 2) return std::nullopt;
  Matrix matrix;
  matrix.info.module = module;
  matrix.codes = &weight;
  matrix.info.rows = weight.rows();
  matrix.info.cols = weight.cols();
  if (weight.dtype == DType::ggml_block) {
    matrix.quantized = true;
    matrix.layout = Layout::ggml;
    matrix.info.scheme.ggml = weight.ggml;
    return matrix;
  }
  const std::optional<ElementFormat> format = dtype_format(weight.dtype);
  if (!format && weight.dtype != DType::f64) return std::nullopt;
  if (weight.dtype == DType::i8) return std::nullopt;
  if (!quantization.method.empty() && is_quantized_dtype(weight.dtype)) {
    fail(ErrorKind::bad_input, "tensor {}: its scale ('{}.weight_scale{}') is missing", quoted(weight), module,
         quantization.method == "fp8" ? "_inv" : "");
  }
  if (weight.dtype == DType::f64) {
    matrix.layout = Layout::converted;
    matrix.info.scheme.element = fp32_format();
  } else {
    matrix.info.scheme.element = *format;
    matrix.layout = format->bits < 8 ? Layout::row_bits : Layout::dense;
  }
  return matrix;
}

struct Bound {
  std::vector<StoredEntry> entries;
  std::map<std::string, Matrix, std::less<>> matrices;
  std::vector<std::string> notes;
};

Bound bind_all(const TensorSource& tensors, const Json& config) {
  Bound bound;
  const Grouped grouped = group_tensors(tensors);
  const Quantization quantization = read_quantization(config);
  bound.notes = quantization.notes;
  for (const std::string& module : grouped.order) {
    const Parts& parts = grouped.modules.at(module);
    const bool has_scales = parts.scale || parts.scale_inv || parts.zero || parts.global || parts.packed ||
                            parts.blocks;
    std::optional<Matrix> matrix;
    if (has_scales) {
      matrix = bind_quantized(tensors, module, parts, quantization);
    } else if (parts.weight != nullptr) {
      const Group* group = quantization.method == "halftone" ? quantization.group_of(module) : nullptr;
      if (group != nullptr && group->weights.granularity == Granularity::none && !group->weights.ggml &&
          is_quantized_dtype(parts.weight->dtype)) {
        matrix = bind_quantized(tensors, module, parts, quantization);
      } else {
        matrix = bind_plain(module, *parts.weight, quantization);
      }
    }
    if (matrix && matrix->quantized) {
      StoredEntry entry;
      entry.name = parts.bare_name ? module : module + ".weight";
      entry.module = module;
      entry.quantized = true;
      entry.info = matrix->info;
      entry.parts = parts.names;
      bound.entries.push_back(std::move(entry));
    } else {
      for (const std::string& name : parts.names) {
        StoredEntry entry;
        entry.name = name;
        entry.parts = {name};
        bound.entries.push_back(std::move(entry));
      }
    }
    if (matrix) bound.matrices.emplace(module, std::move(*matrix));
  }
  return bound;
}

struct Held {
  std::shared_ptr<const TensorSource> tensors;
  std::vector<std::byte> bytes;
};

class StoredWeights final : public WeightSource {
 public:
  StoredWeights(std::shared_ptr<const TensorSource> tensors, const Json& config, std::vector<std::string>* notes)
      : tensors_(std::move(tensors)) {
    Bound bound = bind_all(*tensors_, config);
    matrices_ = std::move(bound.matrices);
    if (notes != nullptr) notes->insert(notes->end(), bound.notes.begin(), bound.notes.end());
  }

  std::optional<WeightInfo> find(std::string_view module) const override {
    const auto found = matrices_.find(module);
    if (found == matrices_.end()) return std::nullopt;
    return found->second.info;
  }

  QuantizedTensor rows(const WeightInfo& info, std::int64_t first, std::int64_t count) const override {
    const auto found = matrices_.find(info.module);
    HT_CHECK(found != matrices_.end());
    const Matrix& matrix = found->second;
    HT_CHECK(first >= 0 && count >= 0 && first <= matrix.info.rows && count <= matrix.info.rows - first);
    QuantizedTensor out;
    out.scheme = matrix.info.scheme;
    out.rows = count;
    out.cols = matrix.info.cols;
    out.global_scale = matrix.global_scale;
    if (count == 0) return out;
    read_codes(matrix, first, count, out);
    if (matrix.scales != nullptr) {
      const Cells cells = cells_of(matrix, first, count);
      out.scales = read_scales(*matrix.scales, matrix, cells);
      if (matrix.zeros != nullptr) out.zeros = read_zeros(matrix, cells);
    }
    return out;
  }

  std::optional<std::vector<float>> vector(std::string_view name) const override {
    const TensorInfo* info = tensors_->find(name);
    if (info == nullptr) return std::nullopt;
    return read_as_float(*tensors_, *info);
  }

  void forget(const WeightInfo& info) const override {
    const auto found = matrices_.find(info.module);
    if (found == matrices_.end()) return;
    for (const TensorInfo* part : {found->second.codes, found->second.scales, found->second.zeros}) {
      if (part != nullptr) tensors_->forget(*part);
    }
  }

 private:
  struct Cells {
    std::int64_t first_row, rows, cols, all_rows;
  };

  static Cells cells_of(const Matrix& matrix, std::int64_t first, std::int64_t count) {
    const Scheme& scheme = matrix.info.scheme;
    const SchemeShape all = scale_shape(scheme, matrix.info.rows, matrix.info.cols);
    if (scheme.granularity == Granularity::tensor) return {0, 1, 1, 1};
    if (scheme.granularity == Granularity::block) {
      HT_CHECK(first % scheme.block_rows == 0);
      return {first / scheme.block_rows, ceil_div(count, scheme.block_rows), all.scale_cols, all.scale_rows};
    }
    return {first, count, all.scale_cols, all.scale_rows};
  }

  // The bytes of the cells' rows, from a tensor shaped [rows, cols] or flat.
  std::span<const std::byte> cell_bytes(const TensorInfo& info, const Cells& cells,
                                        std::vector<std::byte>& scratch) const {
    if (info.rows() == cells.all_rows) return tensors_->rows(info, cells.first_row, cells.rows, scratch);
    const std::uint64_t cell = info.bytes / static_cast<std::uint64_t>(info.elements());
    const std::uint64_t row = cell * static_cast<std::uint64_t>(cells.cols);
    return tensors_->rows(info, 0, info.rows(), scratch)
        .subspan(static_cast<std::size_t>(row) * static_cast<std::size_t>(cells.first_row),
                 static_cast<std::size_t>(row) * static_cast<std::size_t>(cells.rows));
  }

  std::vector<float> read_scales(const TensorInfo& info, const Matrix& matrix, const Cells& cells) const {
    std::vector<std::byte> scratch;
    const std::span<const std::byte> bytes = cell_bytes(info, cells, scratch);
    std::vector<float> out(static_cast<std::size_t>(cells.rows * cells.cols));
    const ElementFormat& format = matrix.info.scheme.scale;
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (format == fp32_format()) {
        std::memcpy(&out[i], bytes.data() + 4 * i, 4);
      } else if (format.bits == 16) {
        std::uint16_t code = 0;
        std::memcpy(&code, bytes.data() + 2 * i, 2);
        out[i] = format == bf16_format() ? bf16_to_float(code) : fp16_to_float(code);
      } else if (format == e8m0_format()) {
        out[i] = decode_e8m0(std::to_integer<std::uint8_t>(bytes[i]));
      } else {
        out[i] = static_cast<float>(decode(format, std::to_integer<std::uint8_t>(bytes[i])));
      }
      if (!std::isfinite(out[i])) {
        fail(ErrorKind::bad_input, "tensor {}: the scale at cell {} is not finite", quoted(info),
             static_cast<std::int64_t>(i) + cells.first_row * cells.cols);
      }
    }
    return out;
  }

  std::vector<std::int32_t> read_zeros(const Matrix& matrix, const Cells& cells) const {
    const TensorInfo& info = *matrix.zeros;
    std::vector<std::int32_t> out(static_cast<std::size_t>(cells.rows * cells.cols));
    std::vector<std::byte> scratch;
    if (!matrix.zeros_in_words) {
      const std::span<const std::byte> bytes = cell_bytes(info, cells, scratch);
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::int8_t>(bytes[i]);
      return out;
    }
    // Word w of a column holds the bits [32w, 32w+32) of the stream of that column's codes.
    const int bits = matrix.info.scheme.element.bits;
    const std::int64_t per_word = 32 / bits;
    const std::int64_t first_word = matrix.zeros_padded ? cells.first_row / per_word : cells.first_row * bits / 32;
    const std::int64_t end_row = cells.first_row + cells.rows;
    const std::int64_t end_word = matrix.zeros_padded ? ceil_div(end_row, per_word) : ceil_div(end_row * bits, 32);
    const std::span<const std::byte> bytes = tensors_->rows(info, first_word, end_word - first_word, scratch);
    const auto word_at = [&](std::int64_t word, std::int64_t col) {
      std::uint32_t value = 0;
      std::memcpy(&value, bytes.data() + 4 * static_cast<std::size_t>((word - first_word) * cells.cols + col), 4);
      return value;
    };
    const std::uint32_t mask = (1U << bits) - 1;
    for (std::int64_t r = 0; r < cells.rows; ++r) {
      const std::int64_t row = cells.first_row + r;
      for (std::int64_t c = 0; c < cells.cols; ++c) {
        std::uint32_t code = 0;
        if (matrix.zeros_padded) {
          code = word_at(row / per_word, c) >> (bits * (row % per_word));
        } else {
          const std::int64_t bit = row * bits;
          std::uint64_t window = word_at(bit / 32, c);
          if (bit % 32 + bits > 32) window |= std::uint64_t{word_at(bit / 32 + 1, c)} << 32;
          code = static_cast<std::uint32_t>(window >> (bit % 32));
        }
        out[static_cast<std::size_t>(r * cells.cols + c)] = static_cast<std::int32_t>(code & mask) - (1 << (bits - 1));
      }
    }
    return out;
  }

  void read_codes(const Matrix& matrix, std::int64_t first, std::int64_t count, QuantizedTensor& out) const {
    auto held = std::make_shared<Held>();
    held->tensors = tensors_;
    if (matrix.layout == Layout::converted) {
      const std::span<std::byte> codes = allocate_codes(out);
      std::vector<float> values(static_cast<std::size_t>(count * matrix.info.cols));
      read_rows_as_float(*tensors_, *matrix.codes, first, count, values);
      std::memcpy(codes.data(), values.data(), codes.size());
      return;
    }
    const std::span<const std::byte> bytes = tensors_->rows(*matrix.codes, first, count, held->bytes);
    if (matrix.layout == Layout::dense || matrix.layout == Layout::bytes || matrix.layout == Layout::ggml) {
      out.codes = bytes;
      out.owner = std::move(held);
      return;
    }
    unpack_codes(matrix, bytes, out);
  }

  static void unpack_codes(const Matrix& matrix, std::span<const std::byte> bytes, QuantizedTensor& out) {
    const std::span<std::byte> codes = allocate_codes(out);
    const auto cols = static_cast<std::size_t>(out.cols);
    const std::size_t row_bytes = bytes.size() / static_cast<std::size_t>(out.rows);
    const int bits = out.scheme.element.bits;
    const bool integer = out.scheme.element.kind == FormatKind::integer;
    if (bits > 8) {
      unpack_wide(bytes, row_bytes, bits, cols, codes);
      return;
    }
    std::vector<std::uint8_t> row(cols);
    std::vector<std::uint32_t> words;
    const unsigned half = 1U << (bits - 1);
    for (std::int64_t r = 0; r < out.rows; ++r) {
      const std::span<const std::byte> in = bytes.subspan(row_bytes * static_cast<std::size_t>(r), row_bytes);
      if (matrix.layout == Layout::padded) {
        words.resize(row_bytes / 4);
        std::memcpy(words.data(), in.data(), row_bytes);
        unpack_padded32(words, bits, row);
      } else {
        unpack_bits(in.first((cols * static_cast<std::size_t>(bits) + 7) / 8), bits, row);
      }
      std::byte* to = codes.data() + cols * static_cast<std::size_t>(r);
      const bool offset = matrix.layout != Layout::row_bits;
      for (std::size_t c = 0; c < cols; ++c) {
        unsigned code = row[c];
        // Offset codes lose their offset; two's complement codes get their sign.
        if (offset) {
          code -= half;
        } else if (integer) {
          code = (code ^ half) - half;
        }
        to[c] = static_cast<std::byte>(code & 0xFFU);
      }
    }
  }

  // Codes of 9 to 16 bits, two bytes each in memory.
  static void unpack_wide(std::span<const std::byte> bytes, std::size_t row_bytes, int bits, std::size_t cols,
                          std::span<std::byte> codes) {
    const std::size_t rows = codes.size() / (2 * cols);
    for (std::size_t r = 0; r < rows; ++r) {
      const std::byte* in = bytes.data() + r * row_bytes;
      for (std::size_t c = 0; c < cols; ++c) {
        const std::size_t bit = c * static_cast<std::size_t>(bits);
        std::uint32_t window = 0;
        for (std::size_t k = 0; k < 3 && bit / 8 + k < row_bytes; ++k) {
          window |= std::to_integer<std::uint32_t>(in[bit / 8 + k]) << (8 * k);
        }
        const auto code = static_cast<std::uint16_t>((window >> (bit % 8)) & ((1U << bits) - 1));
        std::memcpy(codes.data() + 2 * (r * cols + c), &code, 2);
      }
    }
  }

  std::shared_ptr<const TensorSource> tensors_;
  std::map<std::string, Matrix, std::less<>> matrices_;
};

}  // namespace

std::shared_ptr<const WeightSource> stored_weights(std::shared_ptr<const TensorSource> tensors, const Json& config,
                                                   std::vector<std::string>* notes) {
  HT_CHECK(tensors != nullptr);
  return std::make_shared<StoredWeights>(std::move(tensors), config, notes);
}

std::vector<StoredEntry> stored_entries(const TensorSource& tensors, const Json& config) {
  return bind_all(tensors, config).entries;
}

}  // namespace halftone
