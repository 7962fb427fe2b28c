// A recipe says which schemes to use where. JSON with comments; the first rule that matches wins.
//
//   {
//     "default": {"weights": "fp8_e4m3:channel", "activations": "fp8_e4m3:token"},   // or one alias: "default": "fp8"
//     "rules": [
//       {"match": "head", "weights": "int8:channel", "activations": null},           // a role (globs: "attention.*"),
//       {"match": "re:.*layers\\.0\\..*", "keep": true},                              // a regular expression or a glob
//       {"match": "*.down_proj", "weights": "int8:g64"}                               // over module names
//     ],
//     "kv_cache": "fp8",
//     "methods": ["gptaq", "gptq", "quantease"],      // default ["rtn"]; see calibrated_method.h
//     "observer": "absmax",                           // how plain rounding chooses scales
//     "calibration": {"dataset": "text.jsonl", "samples": 48, "length": 512, "chat": false, "seed": 1}, "gate": {"max_kl": 0.05, "max_perplexity_ratio": 1.02}
//   }
#pragma once

#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "numeric/scheme.h"
#include "quantize/roles.h"

namespace halftone {

// As to_string says it, but GGUF types by their bare names ("q4_1"): the words of plans and reports.
std::string scheme_text(const Scheme& scheme);

struct RecipeRule {
  std::string match;                    // as written
  bool keep = false;                    // the matrix stays as it is
  std::optional<Scheme> weights;        // absent: the default's
  bool says_activations = false;        // "activations" stands in the rule (maybe null)
  std::optional<Scheme> activations;
};

struct QualityGate {
  std::optional<double> max_kl;                // mean KL divergence, nats a token
  std::optional<double> max_perplexity_ratio;  // quantized / source
  std::optional<double> min_top1_agreement;    // 0..1
  bool empty() const { return !max_kl && !max_perplexity_ratio && !min_top1_agreement; }
};

struct Recipe {
  std::string name;                      // of the preset or file; "to SCHEME" for --to
  std::string description;
  std::optional<Scheme> weights;         // default of linear roles; nullopt: they are kept
  std::optional<Scheme> activations;
  std::vector<RecipeRule> rules;
  std::string kv_cache;                  // "" = not said
  std::vector<std::string> methods = {"rtn"};
  std::string observer = "absmax";       // absmax, mse, percentile, percentile:99.9
  struct Calibration {
    std::string dataset;                 // a file; "" or "self": sampled from the model
    std::int64_t samples = 0, length = 0;  // 0: the default
    bool chat = false;
    std::uint64_t seed = 1;              // of a sampled text
  } calibration;                         // for calibrated methods
  QualityGate gate;
  std::vector<std::string> notes;        // what a translated file asked for and does not get; go to the plan's notes
  bool every_matrix = false;             // convert: all floating tensors take `weights`, norms and vectors included
};

// Also takes the argument files of PaddleNLP (quantize/paddle_arguments.h).
// Error(usage) names the key or value, the nearest right one, and `where` (a file name).
Recipe parse_recipe(std::string_view json_with_comments, const std::string& where);
// What `--recipe` accepts: a file, else the name of a preset. Error(usage) lists near preset names.
Recipe load_recipe(const std::string& file_or_preset);
// What `--to` accepts: a preset or one scheme or alias for every linear layer.
Recipe recipe_for(std::string_view preset_or_scheme);
// Every floating tensor as plain numbers: "bf16", "fp16", "fp32". Error(usage) for others.
Recipe dense_recipe(std::string_view format);
nlohmann::ordered_json to_json(const Recipe& recipe);  // parse_recipe reads it back

struct Preset {
  std::string_view name, text;  // text: the bytes of recipes/NAME.json
};
std::vector<Preset> recipe_presets();

// Which rule holds for a tensor. `rule` is "rule 2: head", "default" or "kept: norm" and stands in the plan.
struct RuleChoice {
  std::optional<Scheme> weights;  // nullopt: keep
  std::optional<Scheme> activations;
  std::string rule;
};

// Compiled once, asked once a tensor.
class RuleMatcher {
 public:
  explicit RuleMatcher(const Recipe& recipe);
  // A tied table is embedding and head at once: a rule for either holds.
  RuleChoice choose(const std::string& module, Role role, bool tied_head) const;
  std::vector<std::string> unused_rules() const;  // rules that never matched

 private:
  struct Compiled {
    const RecipeRule* rule = nullptr;
    std::optional<std::regex> pattern;
    std::string glob;  // empty with a pattern
    mutable bool used = false;
  };
  const Recipe& recipe_;
  std::vector<Compiled> compiled_;
};

// The nearest of `names` by edit distance, for messages; "" if none is near.
std::string nearest_name(std::string_view word, const std::vector<std::string>& names);

}  // namespace halftone
