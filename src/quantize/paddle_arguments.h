// PaddleNLP's argument files (ptq_argument.json, gptq_argument.json, awq_argument.json, ...) as recipes: a flat object
// whose keys are those of its quant_config.py. What each key becomes stands in one table (paddle_arguments.cc); a key
// that has no meaning here gets a line in Recipe::notes, never silence.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "quantize/recipe.h"

namespace halftone {

// True for a flat object that holds a key only these files have (quant_type, do_ptq, do_gptq, ptq_step, ...).
bool is_paddle_arguments(const nlohmann::ordered_json& json);

// Error(usage) for values of a wrong type, unknown quant types (lists them), several exclusive modes at once, and modes
// that train (do_qat) or reload (load_quant_model).
Recipe recipe_of_paddle_arguments(const nlohmann::ordered_json& json, const std::string& where);

}  // namespace halftone
