// Whole-checkpoint quantizing and converting: planned from headers, streamed in row chunks under a memory limit,
// resumable after any kill, and visible under the final name only when complete and verified.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/progress.h"
#include "base/threads.h"
#include "pipeline/calibration_data.h"
#include "pipeline/open.h"
#include "pipeline/verify.h"
#include "quantize/plan.h"

namespace halftone {

struct QuantizeOptions {
  Recipe recipe;
  bool weights_only = false;
  bool strict = false;
  bool force = false;                    // replace a finished output, discard a partial one that does not fit
  bool allow_lossy_f16 = false;          // casts to FP16 may overflow to infinity (saturated, counted)
  std::uint64_t max_memory = 0;          // bytes resident; 0 = a comfortable default
  std::uint64_t shard_bytes = 5'000'000'000;
  std::string storage = "auto";          // auto, compressed-tensors (Error(unsupported) if it cannot), halftone
  bool verify = true;                    // read the staged output back and compare with the source
  std::string version = "0.1.0";         // of the tool; part of the fingerprint and the report

  // For recipes with calibrated methods: the data, asked for only if there is something to do, and what tells it from
  // other data (part of the fingerprint). Error(usage) if it is missing.
  std::function<CalibrationData(Progress& progress)> calibration;
  std::string calibration_identity;

  // Runs on the complete staged folder before it gets its name. What it returns is "quality" in report.json; an
  // Error(quality_gate) leaves the folder as OUT.rejected.
  std::function<nlohmann::ordered_json(const std::filesystem::path& staged)> quality;
};

// What quantize_checkpoint would do; opens headers only. Error(usage, unsupported, resources) as the run would.
Plan plan_quantization(const Checkpoint& source, const QuantizeOptions& options);

struct TensorOutcome {
  std::string name, role, scheme, activations, rule, action;
  std::uint64_t bytes = 0;
  double sqnr_db = 0;          // signal to quantization noise; infinity if exact (JSON: null)
  double max_error = 0;        // largest |output - source|
  std::int64_t clipped = 0;    // values beyond the range of their scale by more than half a step
  std::int64_t zero_cells = 0; // scale cells whose values are all zero
  std::int64_t underflow = 0;  // casts: values that became zero
  std::int64_t non_finite = 0; // copied or cast as they are
  std::string methods;         // "gptaq, gptq" where calibrated methods chose the codes, else ""
  double output_error = 0;     // then: squared error of the outputs on the calibration data, relative to their square
  double damping = 0;          // then: of the second moments, as a share of their mean
  std::string hash;            // XXH64 of the tensor's bytes in the output
};

struct QuantizeResult {
  std::filesystem::path output;
  Plan plan;
  std::vector<TensorOutcome> tensors;
  VerifyResult verification;
  nlohmann::ordered_json report;    // what stands in report.json; the same bytes for every run of the same job
  bool already_complete = false;    // the output of this very job was there; nothing was done
  std::int64_t resumed_tensors = 0; // taken over from an earlier, interrupted run
  double seconds = 0;               // this run
  std::uint64_t peak_memory_bytes = 0;  // VmHWM
};

// Errors: usage (output is the input or inside it, output exists without `force`), unsupported (strict, schemes),
// bad_input (non-finite values: tensor, index, count), resources (memory limit below the minimum, disk full with needed
// and free, permissions), quality_gate, interrupted. After any error nothing stands under the final name that was not
// there before; OUT.partial stays for the next run unless the input was at fault.
QuantizeResult quantize_checkpoint(const Checkpoint& source, const std::filesystem::path& output,
                                   const QuantizeOptions& options, ThreadPool& pool,
                                   Progress& progress = no_progress());

}  // namespace halftone
