// `eval --tasks`: multiple choice of a model, beside a reference.
#pragma once

#include "cli/common.h"

namespace halftone::cli {

struct TaskFlags {
  std::string file, labels, kv;
  std::int64_t limit = 0, ctx = 0;
};
Json tasks_json(const TaskFlags& flags, const LoadedModel& candidate, const LoadedModel* reference, Progress& progress);
std::string tasks_text(const Json& json);

}  // namespace halftone::cli
