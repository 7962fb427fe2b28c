#include "quantize/paddle_arguments.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/error.h"
#include "numeric/names.h"
#include "quantize/calibrated_method.h"

namespace halftone {
namespace {

using PaddleJson = nlohmann::ordered_json;

// The spelled type, what weights and activations become, the format of the KV cache ("" = not said). Activations take a
// scale a token where PaddleNLP has one static scale a tensor: the same codes, never a worse range.
struct QuantType {
  std::string_view name, weights, activations, kv;
};
constexpr std::array kQuantTypes = {
    QuantType{"a8w8", "int8:channel", "int8:token", ""},
    QuantType{"w8a8", "int8:channel", "int8:token", ""},
    QuantType{"a8w8c8", "int8:channel", "int8:token", "int8"},
    QuantType{"w8a8c8", "int8:channel", "int8:token", "int8"},
    QuantType{"a8w8_fp8", "fp8_e4m3:channel", "fp8_e4m3:token", ""},
    QuantType{"w8a8_fp8", "fp8_e4m3:channel", "fp8_e4m3:token", ""},
    QuantType{"a8w8c8_fp8", "fp8_e4m3:channel", "fp8_e4m3:token", "fp8"},
    QuantType{"w8a8c8_fp8", "fp8_e4m3:channel", "fp8_e4m3:token", "fp8"},
    QuantType{"weight_only_int8", "int8:channel", "", ""},
    QuantType{"wint8", "int8:channel", "", ""},
    QuantType{"weight_only_int4", "int4:channel", "", ""},
    QuantType{"wint4", "int4:channel", "", ""},
};

// Flags that ask for a method, in PaddleNLP's order of work, and the method's name here.
struct MethodFlag {
  const char *key, *method;
};
constexpr std::array kMethodFlags = {
    MethodFlag{"shift", "shift"}, MethodFlag{"smooth_piecewise_search", "pss"}, MethodFlag{"smooth", "smoothquant"},
    MethodFlag{"do_awq", "awq"},  MethodFlag{"auto_clip", "awq_clip"},          MethodFlag{"do_gptq", "gptq"},
};

// Read here, by name, below.
constexpr std::array kReadKeys = {"quant_type",
                                  "use_fp8",
                                  "fp8_type",
                                  "skip_list_names",
                                  "weight_quant_method",
                                  "group_size",
                                  "do_ptq",
                                  "ptq_step",
                                  "gptq_step",
                                  "awq_step",
                                  "src_length",
                                  "do_qat",
                                  "load_quant_model",
                                  "cachekv_quant_method",
                                  "per_device_train_batch_size",
                                  "batch_size"};

// Keys of the model, the data and the trainer: why they say nothing about a recipe.
struct ForeignKey {
  const char *key, *reason;
};
constexpr std::array kForeignKeys = {
    ForeignKey{"model_name_or_path", "the model is given on the command line"},
    ForeignKey{"dataset_name_or_path", "calibration text is given on the command line"},
    ForeignKey{"output_dir", "the output is given with -o"},
    ForeignKey{"act_quant_method", "activations take their scale from each token"},
    ForeignKey{"fp16_opt_level", "arithmetic is in FP32"},
    ForeignKey{"fp16", "arithmetic is in FP32"},
    ForeignKey{"bf16", "arithmetic is in FP32"},
};

bool flag(const PaddleJson& json, const char* key, const std::string& here) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return false;
  if (!found->is_boolean()) fail(ErrorKind::usage, "{}.{}: must be true or false", here, key);
  return found->get<bool>();
}

std::string word(const PaddleJson& json, const char* key, const std::string& here) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return "";
  if (!found->is_string()) fail(ErrorKind::usage, "{}.{}: must be a text in quotes", here, key);
  return lower_case(found->get<std::string>());
}

std::int64_t positive(const PaddleJson& json, const char* key, std::int64_t otherwise, const std::string& here) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return otherwise;
  if (!found->is_number_integer() || found->get<std::int64_t>() < 1 || found->get<std::int64_t>() > (1 << 30)) {
    fail(ErrorKind::usage, "{}.{}: must be a positive whole number", here, key);
  }
  return found->get<std::int64_t>();
}

const QuantType& quant_type(const std::string& name, const std::string& here) {
  for (const QuantType& type : kQuantTypes) {
    if (type.name == name) return type;
  }
  std::vector<std::string> names;
  for (const QuantType& type : kQuantTypes) names.emplace_back(type.name);
  fail(ErrorKind::usage, "{}.quant_type: unknown type '{}'; there are: {}", here, name, fmt::join(names, ", "));
}

// "skip_list_names" holds substrings of layer names; dots and brackets in them stand for themselves.
std::string substring_pattern(const std::string& text) {
  std::string pattern = "re:.*";
  for (const char c : text) {
    if (std::string_view(".*+?()[]{}|^$\\").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

std::string fp8_element(const PaddleJson& json, std::size_t index, const std::string& here) {
  const auto found = json.find("fp8_type");
  if (found == json.end() || found->is_null()) return "fp8_e4m3";
  if (!found->is_array() || found->size() != 2 || !found->at(index).is_string()) {
    fail(ErrorKind::usage, "{}.fp8_type: must be a list of two texts, such as [\"e4m3\", \"e4m3\"]", here);
  }
  const std::string name = lower_case(found->at(index).get<std::string>());
  if (name != "e4m3" && name != "e5m2")
    fail(ErrorKind::usage, "{}.fp8_type: '{}' is neither e4m3 nor e5m2", here, name);
  return "fp8_" + name;
}

void choose_formats(const PaddleJson& json, Recipe& recipe, const std::string& here) {
  std::string name = word(json, "quant_type", here);
  if (name.empty()) name = flag(json, "do_gptq", here) ? "weight_only_int4" : "a8w8";
  const QuantType& type = quant_type(name, here);
  std::string weights(type.weights), activations(type.activations);
  recipe.kv_cache = type.kv;

  // The older spelling: letters of W, A, C become FP8.
  const std::string fp8 = word(json, "use_fp8", here);
  if (fp8.find_first_not_of("wac") != std::string::npos) {
    fail(ErrorKind::usage, "{}.use_fp8: '{}' is not made of the letters W, A and C", here, fp8);
  }
  const bool wholly = name.ends_with("_fp8");
  if (wholly || fp8.find('w') != std::string::npos) weights = fp8_element(json, 1, here) + ":channel";
  if (!activations.empty() && (wholly || fp8.find('a') != std::string::npos)) {
    activations = fp8_element(json, 0, here) + ":token";
  }
  if (!recipe.kv_cache.empty() && fp8.find('c') != std::string::npos) recipe.kv_cache = "fp8";

  // GPTQ writes 4-bit weights only, whatever quant_type says.
  if (flag(json, "do_gptq", here) && !weights.starts_with("int4")) {
    recipe.notes.push_back(
        fmt::format("quant_type '{}' is taken as weight_only_int4: do_gptq makes 4-bit weights", name));
    weights = "int4:channel";
    activations.clear();
  }
  const std::string method = word(json, "weight_quant_method", here);
  if (method == "groupwise") {
    const std::int64_t size = positive(json, "group_size", 128, here);
    if (size != 64 && size != 128) fail(ErrorKind::usage, "{}.group_size: must be 64 or 128", here);
    weights = weights.substr(0, weights.find(':')) + ":g" + std::to_string(size);
  } else if (json.contains("group_size")) {
    recipe.notes.push_back("group_size has no meaning without weight_quant_method groupwise");
  }
  if (method == "abs_max" || method == "avg") {
    recipe.notes.push_back(
        fmt::format("weight_quant_method '{}' (one scale a tensor) is taken as one scale a channel", method));
  } else if (!method.empty() && method != "groupwise" && method != "abs_max_channel_wise") {
    fail(ErrorKind::usage,
         "{}.weight_quant_method: unknown method '{}'; there are: abs_max, abs_max_channel_wise, avg, groupwise", here,
         method);
  }
  recipe.weights = parse_scheme_or_alias(weights).weights;
  if (!activations.empty()) {
    recipe.activations = parse_scheme_or_alias(activations).weights;
    recipe.notes.push_back("activations take a scale a token, where the argument file means one static scale a tensor");
  }
  if (const std::string kv = word(json, "cachekv_quant_method", here); !kv.empty()) {
    recipe.notes.push_back(
        recipe.kv_cache.empty()
            ? fmt::format("cachekv_quant_method '{}' has no meaning: quant_type '{}' leaves the KV cache alone", kv,
                          name)
            : fmt::format("cachekv_quant_method '{}' is taken as scales of each token and head", kv));
  }
}

void choose_methods(const PaddleJson& json, Recipe& recipe, const std::string& here) {
  const std::vector<std::string> known = method_names();
  recipe.methods.clear();
  const bool search = flag(json, "smooth_piecewise_search", here);
  for (const MethodFlag& entry : kMethodFlags) {
    const bool asked = flag(json, entry.key, here);
    const std::string key = entry.key;
    if (!asked) continue;
    if (key == "smooth" && search) continue;                      // the search is the way to smooth
    if (key == "smooth" && flag(json, "do_awq", here)) continue;  // AWQ's scaling replaces the smoothing
    if (key == "smooth_piecewise_search" && !flag(json, "smooth", here)) {
      recipe.notes.push_back("smooth_piecewise_search has no meaning without smooth");
      continue;
    }
    if (std::find(known.begin(), known.end(), entry.method) == known.end()) {
      recipe.notes.push_back(
          fmt::format("'{}' asks for the method {}, which this version does not have: left out", key, entry.method));
      continue;
    }
    recipe.methods.emplace_back(entry.method);
  }
  const bool rounds = std::find(recipe.methods.begin(), recipe.methods.end(), "gptq") != recipe.methods.end();
  if (!rounds) recipe.methods.emplace_back("rtn");
}

void name_foreign_keys(const PaddleJson& json, Recipe& recipe) {
  std::set<std::string> read(kReadKeys.begin(), kReadKeys.end());
  for (const MethodFlag& entry : kMethodFlags) read.insert(entry.key);
  for (const auto& [key, value] : json.items()) {
    if (read.contains(key)) continue;
    const auto foreign = std::find_if(kForeignKeys.begin(), kForeignKeys.end(),
                                      [&](const ForeignKey& entry) { return key == entry.key; });
    recipe.notes.push_back(foreign != kForeignKeys.end() ? fmt::format("'{}' is not used: {}", key, foreign->reason)
                                                         : fmt::format("'{}' has no meaning here", key));
  }
}

}  // namespace

bool is_paddle_arguments(const PaddleJson& json) {
  if (!json.is_object() || json.contains("default") || json.contains("rules")) return false;
  for (const char* key : {"quant_type", "do_ptq", "do_gptq", "do_awq", "do_qat", "ptq_step", "gptq_step"}) {
    if (json.contains(key)) return true;
  }
  return false;
}

Recipe recipe_of_paddle_arguments(const PaddleJson& json, const std::string& where) {
  const std::string here = "recipe " + where;
  const int modes =
      int{flag(json, "do_ptq", here)} + int{flag(json, "do_gptq", here)} + int{flag(json, "do_qat", here)};
  if (modes > 1) fail(ErrorKind::usage, "{}: do_ptq, do_gptq and do_qat exclude each other", here);
  if (flag(json, "do_qat", here))
    fail(ErrorKind::usage, "{}.do_qat: a recipe does not train; use do_ptq or do_gptq", here);
  if (flag(json, "load_quant_model", here)) {
    fail(ErrorKind::usage, "{}.load_quant_model: a finished model is opened directly, without a recipe", here);
  }
  if (modes == 0) fail(ErrorKind::usage, "{}: quantizes nothing; set do_ptq or do_gptq to true", here);
  Recipe recipe;
  recipe.name = where;
  recipe.description = "translated from an argument file of PaddleNLP";
  choose_formats(json, recipe, here);
  choose_methods(json, recipe, here);
  if (const auto skip = json.find("skip_list_names"); skip != json.end() && !skip->is_null()) {
    if (!skip->is_array()) fail(ErrorKind::usage, "{}.skip_list_names: must be a list of texts", here);
    for (const PaddleJson& item : *skip) {
      if (!item.is_string() || item.get<std::string>().empty()) {
        fail(ErrorKind::usage, "{}.skip_list_names: every entry must be a text that is not empty", here);
      }
      RecipeRule rule;
      rule.match = substring_pattern(item.get<std::string>());
      rule.keep = true;
      recipe.rules.push_back(rule);
    }
  }
  // A step is one batch.
  const bool gptq = flag(json, "do_gptq", here), awq = flag(json, "do_awq", here);
  const char* step = gptq ? "gptq_step" : awq && json.contains("awq_step") ? "awq_step" : "ptq_step";
  const std::int64_t batch = positive(json, "per_device_train_batch_size", positive(json, "batch_size", 1, here), here);
  recipe.calibration.samples = positive(json, step, gptq ? 8 : 32, here) * batch;
  recipe.calibration.length = positive(json, "src_length", 1024, here);
  name_foreign_keys(json, recipe);
  for (const char* other : {"ptq_step", "gptq_step", "awq_step"}) {
    if (json.contains(other) && std::string_view(other) != step) {
      recipe.notes.push_back(fmt::format("'{}' is not used: the number of batches comes from {}", other, step));
    }
  }
  return recipe;
}

}  // namespace halftone
