#include "quantize/recipe.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "base/error.h"
#include "numeric/names.h"
#include "base/file.h"
#include "quantize/calibrated_method.h"
#include "quantize/observers.h"
#include "quantize/paddle_arguments.h"

namespace halftone {

std::string scheme_text(const Scheme& scheme) {
  return scheme.ggml ? std::string(ggml_info(*scheme.ggml).name) : to_string(scheme);
}

namespace {

using Json = nlohmann::ordered_json;

std::string hint(std::string_view word, const std::vector<std::string>& names) {
  const std::string near = nearest_name(word, names);
  return near.empty() ? fmt::format("there are: {}", fmt::join(names, ", ")) : fmt::format("did you mean '{}'?", near);
}

void check_keys(const Json& object, const std::vector<std::string>& known, const std::string& where) {
  if (!object.is_object()) fail(ErrorKind::usage, "{}: must be an object in braces", where);
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      fail(ErrorKind::usage, "{}: unknown key '{}'; {}", where, key, hint(key, known));
    }
  }
}

std::string text_at(const Json& value, const std::string& where) {
  if (!value.is_string()) fail(ErrorKind::usage, "{}: must be a text in quotes, not {}", where, value.dump());
  return value.get<std::string>();
}

SchemePair pair_at(const Json& value, const std::string& where) {
  const std::string text = text_at(value, where);
  try {
    return parse_scheme_or_alias(text);
  } catch (const Error& error) {
    fail(ErrorKind::usage, "{}: {}", where, error.what());
  }
}

std::optional<Scheme> weights_at(const Json& value, const std::string& where) {
  if (value.is_null()) return std::nullopt;
  return pair_at(value, where).weights;
}

std::optional<Scheme> activations_at(const Json& value, const std::string& where) {
  if (value.is_null()) return std::nullopt;
  Scheme scheme = pair_at(value, where).weights;
  if (scheme.ggml || scheme.granularity == Granularity::channel || scheme.granularity == Granularity::block) {
    fail(ErrorKind::usage, "{}: '{}' cannot code activations; use :token or :gN, such as fp8_e4m3:token", where,
         text_at(value, where));
  }
  if (scheme.is_dense()) return std::nullopt;  // "bf16": full precision
  return scheme;
}

std::optional<double> number_at(const Json& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return std::nullopt;
  if (!found->is_number() || found->get<double>() < 0.0) {
    fail(ErrorKind::usage, "{}.{}: must be a number that is not negative", where, key);
  }
  return found->get<double>();
}

bool glob_matches(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0, star = std::string_view::npos, mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || (pattern[p] != '*' && pattern[p] == text[t]))) {
      ++p;
      ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

// "attention" stands for every "attention.*".
bool role_matches(std::string_view pattern, Role role) {
  const std::string_view name = role_name(role);
  return glob_matches(pattern, name) ||
         (name.size() > pattern.size() && name.starts_with(pattern) && name[pattern.size()] == '.');
}

RecipeRule parse_rule(const Json& value, const std::string& where) {
  check_keys(value, {"match", "weights", "activations", "keep"}, where);
  RecipeRule rule;
  const auto match = value.find("match");
  if (match == value.end()) fail(ErrorKind::usage, "{}: 'match' is missing", where);
  rule.match = text_at(*match, where + ".match");
  if (rule.match.empty()) fail(ErrorKind::usage, "{}.match: must not be empty", where);
  if (rule.match.starts_with("re:")) {
    try {
      const std::regex check(rule.match.substr(3));
    } catch (const std::regex_error&) {
      fail(ErrorKind::usage, "{}.match: '{}' is not a regular expression", where, rule.match);
    }
  }
  if (const auto keep = value.find("keep"); keep != value.end()) {
    if (!keep->is_boolean()) fail(ErrorKind::usage, "{}.keep: must be true or false", where);
    rule.keep = keep->get<bool>();
  }
  if (const auto weights = value.find("weights"); weights != value.end()) {
    if (weights->is_null()) {
      rule.keep = true;
    } else {
      rule.weights = weights_at(*weights, where + ".weights");
    }
  }
  if (const auto activations = value.find("activations"); activations != value.end()) {
    rule.says_activations = true;
    rule.activations = activations_at(*activations, where + ".activations");
  }
  if (rule.keep && rule.weights) {
    fail(ErrorKind::usage, "{}: says both 'keep' and 'weights'; leave one out", where);
  }
  if (!rule.keep && !rule.weights && !rule.says_activations) {
    fail(ErrorKind::usage, "{}: says nothing; add \"weights\", \"activations\" or \"keep\": true", where);
  }
  return rule;
}

void parse_default(const Json& value, Recipe& recipe, const std::string& where) {
  if (value.is_string()) {
    const SchemePair pair = pair_at(value, where);
    recipe.weights = pair.weights;
    recipe.activations = pair.activations;
    return;
  }
  check_keys(value, {"weights", "activations"}, where);
  if (const auto weights = value.find("weights"); weights != value.end() && !weights->is_null()) {
    const SchemePair pair = pair_at(*weights, where + ".weights");
    recipe.weights = pair.weights;
    recipe.activations = pair.activations;
  }
  if (const auto activations = value.find("activations"); activations != value.end()) {
    recipe.activations = activations_at(*activations, where + ".activations");
  }
}

void parse_methods(const Json& value, Recipe& recipe, const std::string& where) {
  if (!value.is_array()) fail(ErrorKind::usage, "{}: must be a list such as [\"rtn\"]", where);
  recipe.methods.clear();
  for (const Json& item : value) {
    const std::string name = text_at(item, where);
    const std::vector<std::string> names = method_names();
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      fail(ErrorKind::usage, "{}: unknown method '{}'; {}", where, name, hint(name, names));
    }
    recipe.methods.push_back(name);
  }
  try {
    make_calibrated_methods(recipe.methods);
  } catch (const Error& error) {
    fail(ErrorKind::usage, "{}: {}", where, error.what());
  }
}

void parse_calibration(const Json& value, Recipe& recipe, const std::string& where) {
  if (value.is_null()) return;
  check_keys(value, {"dataset", "samples", "length", "chat", "seed"}, where);
  Recipe::Calibration& calibration = recipe.calibration;
  if (value.contains("dataset") && !value["dataset"].is_null()) {
    calibration.dataset = text_at(value["dataset"], where + ".dataset");
  }
  const auto count = [&](const char* key, auto& into) {
    const auto found = value.find(key);
    if (found == value.end() || found->is_null()) return;
    if (!found->is_number_integer() || found->get<std::int64_t>() < 1) {
      fail(ErrorKind::usage, "{}.{}: must be a positive whole number", where, key);
    }
    into = found->get<std::remove_reference_t<decltype(into)>>();
  };
  count("samples", calibration.samples);
  count("length", calibration.length);
  count("seed", calibration.seed);
  if (value.contains("chat")) {
    if (!value["chat"].is_boolean()) fail(ErrorKind::usage, "{}.chat: must be true or false", where);
    calibration.chat = value["chat"].get<bool>();
  }
}

Json optional_scheme(const std::optional<Scheme>& scheme) { return scheme ? Json(scheme_text(*scheme)) : Json(); }

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : recipe_presets()) names.emplace_back(preset.name);
  return names;
}

std::optional<Recipe> find_preset(std::string_view name) {
  for (const Preset& preset : recipe_presets()) {
    if (lower_case(name) == preset.name) {
      Recipe recipe = parse_recipe(preset.text, std::string(preset.name));
      recipe.name = preset.name;
      return recipe;
    }
  }
  return std::nullopt;
}

}  // namespace

std::string nearest_name(std::string_view word, const std::vector<std::string>& names) {
  std::string best;
  std::size_t smallest = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& name : names) {
    const std::size_t distance = edit_distance(lower_case(word), lower_case(name));
    if (distance < smallest) {
      smallest = distance;
      best = name;
    }
  }
  return best;
}

Recipe parse_recipe(std::string_view text, const std::string& where) {
  Json json;
  try {
    json = Json::parse(text, nullptr, true, true);
  } catch (const Json::parse_error& error) {
    fail(ErrorKind::usage, "recipe {}: not JSON at byte {}", where, error.byte);
  }
  const std::string here = "recipe " + where;
  if (is_paddle_arguments(json)) return recipe_of_paddle_arguments(json, where);
  check_keys(json, {"name", "description", "default", "rules", "kv_cache", "methods", "observer", "calibration", "gate"},
             here);
  Recipe recipe;
  recipe.name = where;
  if (json.contains("name")) recipe.name = text_at(json["name"], here + ".name");
  if (json.contains("description")) recipe.description = text_at(json["description"], here + ".description");
  if (json.contains("default")) parse_default(json["default"], recipe, here + ".default");
  if (json.contains("rules")) {
    if (!json["rules"].is_array()) fail(ErrorKind::usage, "{}.rules: must be a list", here);
    std::size_t number = 0;
    for (const Json& rule : json["rules"]) {
      recipe.rules.push_back(parse_rule(rule, fmt::format("{}.rules[{}]", here, number++)));
    }
  }
  if (json.contains("kv_cache") && !json["kv_cache"].is_null()) {
    static const std::vector<std::string> formats = {"fp32", "bf16", "fp16", "int8", "fp8", "fp8_e4m3", "fp8_e5m2"};
    recipe.kv_cache = text_at(json["kv_cache"], here + ".kv_cache");
    if (std::find(formats.begin(), formats.end(), recipe.kv_cache) == formats.end()) {
      fail(ErrorKind::usage, "{}.kv_cache: unknown format '{}'; {}", here, recipe.kv_cache,
           hint(recipe.kv_cache, formats));
    }
  }
  if (json.contains("methods")) parse_methods(json["methods"], recipe, here + ".methods");
  if (json.contains("observer")) {
    recipe.observer = text_at(json["observer"], here + ".observer");
    try {
      make_observer(recipe.observer);
    } catch (const Error& error) {
      fail(ErrorKind::usage, "{}.observer: {}", here, error.what());
    }
  }
  if (json.contains("calibration")) {
    parse_calibration(json["calibration"], recipe, here + ".calibration");
  }
  if (json.contains("gate") && !json["gate"].is_null()) {
    const Json& gate = json["gate"];
    check_keys(gate, {"max_kl", "max_perplexity_ratio", "min_top1_agreement"}, here + ".gate");
    recipe.gate.max_kl = number_at(gate, "max_kl", here + ".gate");
    recipe.gate.max_perplexity_ratio = number_at(gate, "max_perplexity_ratio", here + ".gate");
    recipe.gate.min_top1_agreement = number_at(gate, "min_top1_agreement", here + ".gate");
  }
  if (!recipe.weights && recipe.rules.empty()) {
    fail(ErrorKind::usage, "{}: quantizes nothing; add \"default\" or \"rules\"", here);
  }
  return recipe;
}

Recipe load_recipe(const std::string& file_or_preset) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(file_or_preset, ignored)) {
    return parse_recipe(read_text_file(file_or_preset), file_or_preset);
  }
  if (std::optional<Recipe> preset = find_preset(file_or_preset)) return *preset;
  fail(ErrorKind::usage, "recipe '{}' is neither a file nor a preset; {}", file_or_preset,
       hint(file_or_preset, preset_names()));
}

Recipe recipe_for(std::string_view preset_or_scheme) {
  if (std::optional<Recipe> preset = find_preset(preset_or_scheme)) return *preset;
  Recipe recipe;
  try {
    const SchemePair pair = parse_scheme_or_alias(preset_or_scheme);
    recipe.weights = pair.weights;
    recipe.activations = pair.activations;
  } catch (const Error& error) {
    fail(ErrorKind::usage, "{}; presets are: {}", error.what(), fmt::join(preset_names(), ", "));
  }
  if (recipe.weights->granularity == Granularity::token) {
    fail(ErrorKind::usage, "scheme '{}' codes activations; weights take :channel or :gN", preset_or_scheme);
  }
  recipe.name = fmt::format("to {}", preset_or_scheme);
  return recipe;
}

Recipe dense_recipe(std::string_view format) {
  const std::optional<ElementFormat> element = find_format(format);
  if (!element || !(*element == fp32_format() || *element == bf16_format() || *element == fp16_format())) {
    fail(ErrorKind::usage, "'{}' is no plain format to convert to (there are: bf16, fp16, fp32)", format);
  }
  Recipe recipe;
  recipe.name = fmt::format("convert to {}", format_name(*element));
  recipe.weights.emplace();
  recipe.weights->element = *element;
  recipe.every_matrix = true;
  return recipe;
}

Json to_json(const Recipe& recipe) {
  Json json;
  json["name"] = recipe.name;
  if (!recipe.description.empty()) json["description"] = recipe.description;
  json["default"] = {{"weights", optional_scheme(recipe.weights)}, {"activations", optional_scheme(recipe.activations)}};
  Json rules = Json::array();
  for (const RecipeRule& rule : recipe.rules) {
    Json item;
    item["match"] = rule.match;
    if (rule.keep) item["keep"] = true;
    if (rule.weights) item["weights"] = scheme_text(*rule.weights);
    if (rule.says_activations) item["activations"] = optional_scheme(rule.activations);
    rules.push_back(std::move(item));
  }
  json["rules"] = std::move(rules);
  if (!recipe.kv_cache.empty()) json["kv_cache"] = recipe.kv_cache;
  json["methods"] = recipe.methods;
  json["observer"] = recipe.observer;
  if (needs_calibration(recipe.methods)) {
    const Recipe::Calibration& calibration = recipe.calibration;
    Json& out = json["calibration"];
    out["dataset"] = calibration.dataset.empty() ? "self" : calibration.dataset;
    if (calibration.samples > 0) out["samples"] = calibration.samples;
    if (calibration.length > 0) out["length"] = calibration.length;
    out["chat"] = calibration.chat;
    out["seed"] = calibration.seed;
  }
  if (!recipe.gate.empty()) {
    Json gate;
    if (recipe.gate.max_kl) gate["max_kl"] = *recipe.gate.max_kl;
    if (recipe.gate.max_perplexity_ratio) gate["max_perplexity_ratio"] = *recipe.gate.max_perplexity_ratio;
    if (recipe.gate.min_top1_agreement) gate["min_top1_agreement"] = *recipe.gate.min_top1_agreement;
    json["gate"] = std::move(gate);
  }
  return json;
}

RuleMatcher::RuleMatcher(const Recipe& recipe) : recipe_(recipe) {
  for (const RecipeRule& rule : recipe.rules) {
    Compiled compiled;
    compiled.rule = &rule;
    if (rule.match.starts_with("re:")) {
      compiled.pattern.emplace(rule.match.substr(3), std::regex::ECMAScript | std::regex::optimize);
    } else {
      compiled.glob = rule.match;
    }
    compiled_.push_back(std::move(compiled));
  }
}

RuleChoice RuleMatcher::choose(const std::string& module, Role role, bool tied_head) const {
  RuleChoice choice;
  for (std::size_t i = 0; i < compiled_.size(); ++i) {
    const Compiled& compiled = compiled_[i];
    const bool matches =
        compiled.pattern
            ? std::regex_search(module, *compiled.pattern, std::regex_constants::match_continuous)
            : glob_matches(compiled.glob, module) || role_matches(compiled.glob, role) ||
                  (tied_head && (role_matches(compiled.glob, Role::head) || glob_matches(compiled.glob, "lm_head")));
    if (!matches) continue;
    compiled.used = true;
    const RecipeRule& rule = *compiled.rule;
    choice.rule = fmt::format("rule {}: {}", i + 1, rule.match);
    if (rule.keep) return choice;
    choice.weights = rule.weights ? rule.weights : recipe_.weights;
    const bool takes_activations = is_linear_role(role) || role == Role::head;
    if (rule.says_activations) {
      if (takes_activations) choice.activations = rule.activations;
    } else if (is_linear_role(role)) {
      choice.activations = recipe_.activations;
    }
    return choice;
  }
  if (recipe_.every_matrix || is_linear_role(role)) {
    choice.rule = "default";
    choice.weights = recipe_.weights;
    choice.activations = recipe_.activations;
    if (!choice.weights) choice.rule = "kept: no default";
  } else {
    choice.rule = fmt::format("kept: {}", role_name(role));
  }
  return choice;
}

std::vector<std::string> RuleMatcher::unused_rules() const {
  std::vector<std::string> unused;
  for (std::size_t i = 0; i < compiled_.size(); ++i) {
    if (!compiled_[i].used) unused.push_back(fmt::format("rule {}: {}", i + 1, compiled_[i].rule->match));
  }
  return unused;
}

}  // namespace halftone
