// Smoothing of a whole model before its matrices are quantized: scales are searched for every input that something can
// be divided by (a norm's weight, the rows of the up projection), and the checkpoint is shown with them folded in. What
// the model computes stays the same; only what is hard to round has moved.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/progress.h"
#include "base/threads.h"
#include "pipeline/open.h"
#include "quantize/smoothing.h"

namespace halftone {

struct SmoothedCheckpoint {
  Checkpoint checkpoint;          // the source with other norms and, in FP32, other matrices
  nlohmann::ordered_json report;  // an entry a place: {"input", "how", "loss", "identity_loss"}
};

// What a matrix will be quantized to; nullopt: it stays as it is, and so does everything that shares its input.
struct MatrixFormats {
  Scheme weights;
  std::optional<Scheme> activations;
};
using FormatsOf = std::function<std::optional<MatrixFormats>(const std::string& module)>;

// `method`: "smoothquant" (alpha 0.5), "pss", "awq" (quantize/smoothing.h). Norms keep their dtype; the scales are what
// the rounded norm makes of them. Activations are gathered block by block; memory as a calibration walk's.
SmoothedCheckpoint smooth_checkpoint(const Checkpoint& source, std::string_view method,
                                     const std::vector<std::vector<std::int32_t>>& sequences, const FormatsOf& formats,
                                     ThreadPool& pool, Progress& progress);

}  // namespace halftone
