// How an evaluation is printed and written, the same in `eval` and in the quality gate of `quantize`.
#pragma once

#include "cli/common.h"
#include "evaluate/divergence.h"

namespace halftone::cli {

Json quality_json(const EvaluateResult& result);
std::string quality_text(const EvaluateResult& result);

}  // namespace halftone::cli
