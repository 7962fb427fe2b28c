// The flags that plan and quantize share, and what a job becomes by them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/common.h"
#include "pipeline/quantize_job.h"

namespace halftone::cli {

struct QuantizeFlags {
  std::string model, output, recipe, to, max_memory, text, storage = "auto";
  bool weights_only = false, strict = false, force = false, dry_run = false, no_quality = false, lossy_f16 = false;
  std::int64_t gate_ctx = 256, gate_windows = 4;
  std::uint64_t seed = 1;
  std::optional<double> max_kl, max_ratio;
  std::optional<std::string> max_loss;
  std::vector<std::string> methods;
  std::string calibration;
  std::int64_t calibration_samples = 0, calibration_length = 0;
  bool calibration_chat = false;
};

void add_plan_flags(CLI::App& command, QuantizeFlags& flags);

// What the flags say of methods and their data goes into the recipe, so that the report tells it.
void take_calibration(const QuantizeFlags& flags, Recipe& recipe);
// How the job gets its calibration data; `source` and `flags` must outlive it.
void plan_calibration(const QuantizeFlags& flags, const Checkpoint& source, QuantizeOptions& job);
QuantizeOptions job_options(const QuantizeFlags& flags);

void show_plan(const Plan& plan, const Common& common);

}  // namespace halftone::cli
