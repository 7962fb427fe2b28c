#include "pipeline/stored_config.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "base/error.h"
#include "pipeline/json_text.h"

namespace halftone {
namespace {

using Json = nlohmann::ordered_json;

std::int64_t integer_of(const Json& object, const char* key, std::int64_t otherwise, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return otherwise;
  if (!found->is_number_integer()) fail(ErrorKind::bad_input, "{}: '{}' must be a whole number", where, key);
  return found->get<std::int64_t>();
}

bool boolean_of(const Json& object, const char* key, bool otherwise) {
  const auto found = object.find(key);
  return found != object.end() && found->is_boolean() ? found->get<bool>() : otherwise;
}

void read_block_structure(const Json& args, Scheme& scheme, const std::string& where) {
  const auto found = args.find("block_structure");
  if (found != args.end() && found->is_array() && found->size() == 2 && (*found)[0].is_number_integer() &&
      (*found)[1].is_number_integer()) {
    scheme.block_rows = (*found)[0].get<std::int64_t>();
    scheme.block_cols = (*found)[1].get<std::int64_t>();
  } else if (found != args.end() && found->is_string()) {
    const std::string text = found->get<std::string>();
    if (std::sscanf(text.c_str(), "%ldx%ld", &scheme.block_rows, &scheme.block_cols) != 2) scheme.block_rows = 0;
  }
  if (scheme.block_rows <= 0 || scheme.block_cols <= 0) {
    fail(ErrorKind::bad_input, "{}: strategy 'block' needs a block_structure of two positive numbers", where);
  }
}

bool same_element(const ElementFormat& format, std::string_view name) { return format == *find_format(name); }

std::optional<Json> refuse(std::string* why, std::string reason) {
  if (why != nullptr) *why = std::move(reason);
  return std::nullopt;
}

// num_bits, type and symmetric; nullopt if compressed-tensors does not know the element.
std::optional<Json> element_args(const Scheme& scheme, std::string* why) {
  Json args;
  const ElementFormat& element = scheme.element;
  if (scheme.ggml) return refuse(why, "compressed-tensors has no GGUF block types");
  if (element.kind == FormatKind::integer && element == int_format(element.bits)) {
    args["num_bits"] = element.bits;
    args["type"] = "int";
  } else if (same_element(element, "fp8_e4m3") || same_element(element, "fp4_e2m1") ||
             same_element(element, "fp6_e2m3")) {
    args["num_bits"] = element.bits;
    args["type"] = "float";
  } else {
    return refuse(why, fmt::format("compressed-tensors has no element format {}", format_name(element)));
  }
  args["symmetric"] = scheme.symmetric;
  return args;
}

bool is_plain_scale(const ElementFormat& scale) {
  return scale == bf16_format() || scale == fp16_format() || scale == fp32_format();
}

}  // namespace

Scheme scheme_from_args(const Json& args, bool activations, const std::string& where, bool* is_static) {
  if (!args.is_object()) fail(ErrorKind::bad_input, "{}: must be an object or null", where);
  Scheme scheme;
  const std::string type = args.contains("type") ? text_of(args, "type") : "int";
  const std::int64_t bits = integer_of(args, "num_bits", 8, where);
  if (type == "int" && bits >= 2 && bits <= 8) {
    scheme.element = int_format(static_cast<int>(bits));
  } else if (type == "float" && bits == 8) {
    scheme.element = fp8_e4m3_format();
  } else if (type == "float" && bits == 6) {
    scheme.element = format_or_fail("fp6_e2m3");
  } else if (type == "float" && bits == 4) {
    scheme.element = fp4_e2m1_format();
  } else {
    fail(ErrorKind::unsupported, "{}: elements of type '{}' with {} bits cannot be read (int 2 to 8, float 4, 6, 8 can)",
         where, type, bits);
  }
  scheme.symmetric = boolean_of(args, "symmetric", true);
  if (!scheme.symmetric && scheme.element.kind != FormatKind::integer) {
    fail(ErrorKind::unsupported, "{}: float elements with zero points cannot be read", where);
  }
  scheme.scale = activations ? fp32_format() : bf16_format();

  const std::int64_t group = integer_of(args, "group_size", -1, where);
  std::string strategy = text_of(args, "strategy");
  if (strategy.empty()) strategy = group > 0 ? "group" : group == -1 && args.contains("group_size") ? "channel" : "tensor";
  if (strategy == "tensor") {
    scheme.granularity = Granularity::tensor;
  } else if (strategy == "channel") {
    scheme.granularity = Granularity::channel;
  } else if (strategy == "token") {
    scheme.granularity = Granularity::token;
  } else if (strategy == "group" || strategy == "tensor_group") {
    if (group == -1 && !activations && strategy == "group") {
      scheme.granularity = Granularity::channel;
    } else if (group <= 0) {
      fail(ErrorKind::bad_input, "{}: strategy '{}' needs a positive group_size", where, strategy);
    } else {
      scheme.granularity = Granularity::group;
      scheme.group = group;
    }
    if (strategy == "tensor_group") {
      scheme.two_level = true;
      scheme.scale = fp8_e4m3_format();
    } else if (bits != 8 && type == "float") {
      scheme.scale = e8m0_format();
    }
    const std::string scale_type = text_of(args, "scale_dtype");
    if (strategy == "group" && (scale_type == "torch.uint8" || scale_type == "torch.float8_e8m0fnu")) {
      scheme.scale = e8m0_format();
    }
  } else if (strategy == "block") {
    scheme.granularity = Granularity::block;
    read_block_structure(args, scheme, where);
  } else {
    fail(ErrorKind::unsupported, "{}: strategy '{}' cannot be read", where, strategy);
  }

  if (activations) {
    const auto dynamic = args.find("dynamic");
    const bool is_dynamic = dynamic != args.end() && ((dynamic->is_boolean() && dynamic->get<bool>()) ||
                                                      (dynamic->is_string() && *dynamic == "local"));
    if (is_static != nullptr) *is_static = !is_dynamic;
    if (!is_dynamic && (scheme.granularity == Granularity::tensor || scheme.granularity == Granularity::channel)) {
      scheme.granularity = Granularity::token;
    }
    if (scheme.granularity == Granularity::block) {  // [1, K] tiles of activations are groups along the row
      scheme.granularity = Granularity::group;
      scheme.group = scheme.block_cols;
      scheme.block_rows = scheme.block_cols = 0;
    }
    if (scheme.granularity == Granularity::tensor) scheme.granularity = Granularity::token;
  }
  return scheme;
}

std::optional<Json> args_from_weights(const Scheme& scheme, std::string* why) {
  std::optional<Json> args = element_args(scheme, why);
  if (!args) return std::nullopt;
  const int bits = scheme.element.bits;
  const bool is_float = scheme.element.kind == FormatKind::floating;
  switch (scheme.granularity) {
    case Granularity::tensor:
      (*args)["strategy"] = "tensor";
      break;
    case Granularity::channel:
      (*args)["strategy"] = "channel";
      break;
    case Granularity::group:
      (*args)["strategy"] = scheme.two_level ? "tensor_group" : "group";
      (*args)["group_size"] = scheme.group;
      break;
    case Granularity::block:
      (*args)["strategy"] = "block";
      (*args)["block_structure"] = {scheme.block_rows, scheme.block_cols};
      break;
    default:
      return refuse(why, fmt::format("compressed-tensors has no weight scheme {}", to_string(scheme)));
  }
  (*args)["dynamic"] = false;
  if (is_plain_scale(scheme.scale) && (!is_float || bits == 8)) {
    if (!is_float && scheme.granularity == Granularity::block) {
      return refuse(why, "compressed-tensors readers know blocks for FP8 only");
    }
    return args;
  }
  if (is_float && bits == 4 && scheme.two_level && scheme.group == 16 && scheme.scale == fp8_e4m3_format()) {
    (*args)["scale_dtype"] = "torch.float8_e4m3fn";
    return args;
  }
  if (is_float && scheme.granularity == Granularity::group && scheme.group == 32 && scheme.scale == e8m0_format()) {
    (*args)["scale_dtype"] = "torch.uint8";
    return args;
  }
  return refuse(why, fmt::format("compressed-tensors has no scheme {}", to_string(scheme)));
}

std::optional<Json> args_from_activations(const Scheme& scheme, std::string* why) {
  std::optional<Json> args = element_args(scheme, why);
  if (!args) return std::nullopt;
  const bool is_float = scheme.element.kind == FormatKind::floating;
  if (scheme.element.bits != 8 && !(is_float && scheme.scale == e8m0_format())) {
    return refuse(why, fmt::format("compressed-tensors needs calibrated scales for {} activations", to_string(scheme)));
  }
  switch (scheme.granularity) {
    case Granularity::token:
      (*args)["strategy"] = "token";
      break;
    case Granularity::tensor:
      (*args)["strategy"] = "tensor";
      break;
    case Granularity::group:
      (*args)["strategy"] = "group";
      (*args)["group_size"] = scheme.group;
      break;
    default:
      return refuse(why, fmt::format("compressed-tensors has no activation scheme {}", to_string(scheme)));
  }
  (*args)["dynamic"] = true;
  if (scheme.scale == e8m0_format()) {
    (*args)["scale_dtype"] = "torch.uint8";
  } else if (!is_plain_scale(scheme.scale)) {
    return refuse(why, fmt::format("compressed-tensors has no activation scheme {}", to_string(scheme)));
  }
  return args;
}

std::optional<std::string> compressed_format(const StoredModule& module, std::string* why) {
  const Scheme& scheme = module.weights;
  const auto no = [&](std::string reason) -> std::optional<std::string> {
    if (why != nullptr) *why = fmt::format("{}: {}", module.module, reason);
    return std::nullopt;
  };
  if (module.is_table) return no("compressed-tensors readers quantize linear layers only, not embedding tables");
  std::string reason;
  if (!args_from_weights(scheme, &reason)) return no(reason);
  if (module.activations && !args_from_activations(*module.activations, &reason)) return no(reason);
  if (scheme.granularity == Granularity::group && module.cols % scheme.group != 0) {
    return no(fmt::format("rows of {} values are not whole groups of {}, which compressed-tensors needs", module.cols,
                          scheme.group));
  }
  if (scheme.element.kind == FormatKind::floating) {
    if (scheme.two_level) return "nvfp4-pack-quantized";
    if (scheme.scale == e8m0_format()) {
      if (scheme.element.bits == 4) return "mxfp4-pack-quantized";
      if (scheme.element.bits == 6) return "mxfp6-pack-quantized";
      return "mxfp8-quantized";
    }
    return "float-quantized";
  }
  if (scheme.element.bits == 8 && module.activations && scheme.granularity != Granularity::group) return "int-quantized";
  if (!scheme.symmetric && scheme.granularity == Granularity::tensor) {
    return no("compressed-tensors packs zero points along the rows, which one zero point a matrix has not");
  }
  return "pack-quantized";
}

ModulePattern::ModulePattern(const std::string& text, const std::string& where) : text_(text) {
  if (text.starts_with("re:")) {
    try {
      pattern_.emplace(text.substr(3), std::regex::ECMAScript | std::regex::optimize);
    } catch (const std::regex_error&) {
      fail(ErrorKind::bad_input, "{}: '{}' is not a regular expression", where, text);
    }
  } else {
    is_class_ = !text.empty() && text.find('.') == std::string::npos &&
                std::isupper(static_cast<unsigned char>(text.front())) != 0;
  }
}

bool ModulePattern::matches(const std::string& module) const {
  if (is_class_) return true;
  if (!pattern_) return module == text_;
  return std::regex_search(module, *pattern_, std::regex_constants::match_continuous);
}

namespace {

// "model.layers.3.mlp" -> "model\.layers\.\d+\.mlp$"
std::string number_pattern(const std::string& name) {
  std::string pattern;
  for (std::size_t i = 0; i < name.size();) {
    const bool starts = i == 0 || name[i - 1] == '.';
    std::size_t end = i;
    while (end < name.size() && std::isdigit(static_cast<unsigned char>(name[end])) != 0) ++end;
    if (starts && end > i && (end == name.size() || name[end] == '.')) {
      pattern += "\\d+";
      i = end;
      continue;
    }
    const char c = name[i++];
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_') pattern += '\\';
    pattern += c;
  }
  return pattern + "$";
}

}  // namespace

std::vector<std::string> compact_names(const std::vector<std::string>& members, const std::vector<std::string>& all) {
  std::map<std::string, std::size_t> fitting;
  for (const std::string& name : all) ++fitting[number_pattern(name)];
  std::map<std::string, std::vector<std::string>> by_pattern;
  std::vector<std::string> order;
  for (const std::string& name : members) {
    auto& names = by_pattern[number_pattern(name)];
    if (names.empty()) order.push_back(number_pattern(name));
    names.push_back(name);
  }
  std::vector<std::string> out;
  for (const std::string& pattern : order) {
    const std::vector<std::string>& names = by_pattern[pattern];
    if (names.size() > 1 && names.size() == fitting[pattern]) {
      out.push_back("re:" + pattern);
    } else {
      out.insert(out.end(), names.begin(), names.end());
    }
  }
  return out;
}

Json find_quantization_config(const Json& config) {
  if (!config.is_object()) return nullptr;
  for (const char* key : {"quantization_config", "compression_config"}) {
    const auto found = config.find(key);
    if (found != config.end() && found->is_object()) return *found;
  }
  const auto text = config.find("text_config");
  if (text != config.end() && text->is_object()) {
    const auto found = text->find("quantization_config");
    if (found != text->end() && found->is_object()) return *found;
  }
  return nullptr;
}

}  // namespace halftone
