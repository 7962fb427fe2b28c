// quantization_config <-> schemes. The args objects of compressed-tensors (shared/formats.md 3.3.1) and how groups of a
// config find their modules.
#pragma once

#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "numeric/scheme.h"
#include "pipeline/stored.h"

namespace halftone {

// Element format and granularity of a weights or input_activations object; the scale format is left as the default
// (weights: the file's scale tensor decides). Error(unsupported) names `where` and the value that cannot be read.
// `is_static` is set for activations whose scale stands in the file.
Scheme scheme_from_args(const nlohmann::ordered_json& args, bool activations, const std::string& where,
                        bool* is_static);

// nullopt, with the reason in `why`, if compressed-tensors has no words for the scheme.
std::optional<nlohmann::ordered_json> args_from_weights(const Scheme& scheme, std::string* why);
std::optional<nlohmann::ordered_json> args_from_activations(const Scheme& scheme, std::string* why);

// "pack-quantized", "float-quantized", ...; nullopt with the reason if compressed-tensors cannot store the module.
std::optional<std::string> compressed_format(const StoredModule& module, std::string* why);

// A target or ignore entry: a module name, a class name ("Linear": every module) or a `re:` pattern (Python's re.match:
// anchored at the start).
class ModulePattern {
 public:
  ModulePattern(const std::string& text, const std::string& where);  // Error(bad_input) for a broken pattern
  bool is_class() const { return is_class_; }
  bool matches(const std::string& module) const;  // classes match every module

 private:
  std::string text_;
  bool is_class_ = false;
  std::optional<std::regex> pattern_;
};

// The shortest honest description of `members` among `all` modules: names that differ only in their numbers become one
// `re:` pattern where every module of `all` that fits the pattern is a member.
std::vector<std::string> compact_names(const std::vector<std::string>& members, const std::vector<std::string>& all);

// The quantization_config of a config.json: at the top, under text_config, or compression_config; null if there is none.
nlohmann::ordered_json find_quantization_config(const nlohmann::ordered_json& config);

}  // namespace halftone
