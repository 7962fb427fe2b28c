// Walks a model block by block, the original and the quantized one side by side, so that each matrix is quantized for
// the inputs that it will really get. In memory: one block twice, and the hidden states of the calibration data.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/threads.h"
#include "model/config.h"
#include "quantize/matrix_problem.h"
#include "tensor/weights.h"

namespace halftone {

// The job that the walk serves.
class CalibrationJob {
 public:
  virtual ~CalibrationJob() = default;
  // Whether codes of this matrix are still to be chosen for its inputs.
  virtual bool needs_inputs(const std::string& module) const = 0;
  // How its inputs will be quantized.
  virtual std::optional<Scheme> activations(const std::string& module) const = 0;
  // Puts these matrices into the output. `inputs` is nullptr if none of them needs any.
  virtual void write(const std::vector<std::string>& modules, const ProblemInputs* inputs) = 0;
  // Matrices that write() has put there, read back from the output.
  virtual std::shared_ptr<const WeightSource> written(const std::vector<std::string>& modules) const = 0;
};

struct WalkOptions {
  double damping = 0.01;       // of the second moments' factor
  double table_damping = 0.1;  // of a tied table's, which is also looked up
};

// Sequences of token ids, each from position 0. Error(bad_input) for ids outside the vocabulary and activations that
// are not finite. The result does not depend on threads.
void walk_calibration(const ModelConfig& config, const WeightSource& original,
                      const std::vector<std::vector<std::int32_t>>& sequences, const WalkOptions& options,
                      CalibrationJob& job, ThreadPool& pool, Progress& progress);

// Bytes that a walk needs beside the weights' file pages: an upper bound.
std::uint64_t walk_bytes(const ModelConfig& config, std::int64_t tokens);

}  // namespace halftone
