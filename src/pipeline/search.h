// Which layer gets which format: the loss of every matrix under every candidate is measured or predicted, and bytes are
// spent where they save the most (a Lagrangian over additive losses, as HAWQ and llama.cpp's target size have it).
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/threads.h"
#include "pipeline/calibration_data.h"
#include "pipeline/open.h"
#include "quantize/recipe.h"

namespace halftone {

// One matrix: what each candidate costs and loses.
struct Sensitivity {
  std::string module;
  Role role = Role::other;
  std::int64_t rows = 0, cols = 0;
  std::size_t measured = 0;          // the candidate whose loss was measured; the others follow from their errors
  std::vector<double> kl;            // mean KL divergence, nats a token, of the model with this matrix alone changed
  std::vector<std::uint64_t> bytes;  // in the file
  std::vector<float> importance;     // [cols], second moments of the inputs
};

struct SensitivityReport {
  std::vector<Scheme> candidates;
  std::vector<Sensitivity> matrices;
  std::uint64_t other_bytes = 0;  // of tensors that no candidate touches
  std::int64_t parameters = 0;    // of the whole model
  std::int64_t tokens = 0;        // that losses were measured on
};

// int2 .. int8 in groups of 64, asymmetric below 6 bits: what the search chooses from if nothing else is said.
std::vector<Scheme> default_candidates();

// Runs the model on the data: second moments of every input, then the KL divergence that each matrix causes under the
// middle candidate, alone. Needs the whole model in memory. Error(usage) for candidates that cannot be solved.
SensitivityReport measure_sensitivity(const Checkpoint& source, const CalibrationData& data,
                                      const std::vector<Scheme>& candidates, ThreadPool& pool, Progress& progress);

// A choice of one candidate a matrix.
struct Allocation {
  std::vector<std::size_t> choice;  // index into candidates, by matrix
  std::uint64_t bytes = 0;          // of all tensors
  double bits = 0;                  // a parameter
  double predicted_kl = 0;          // the sum of the matrices' losses
};

// The smallest predicted loss with at most `max_bytes` of tensors. Error(usage) if even the smallest candidates are
// larger (both numbers).
Allocation allocate(const SensitivityReport& report, std::uint64_t max_bytes);
// The convex front, from the smallest to the largest: what a Lagrangian can reach.
std::vector<Allocation> pareto_front(const SensitivityReport& report);

// The weights of `source` with an allocation's formats, rounded to nearest under weighed scales, for trying it out.
std::shared_ptr<const WeightSource> allocated_weights(const Checkpoint& source, const SensitivityReport& report,
                                                      const Allocation& allocation, ThreadPool& pool);

// One rule for each part and scheme, the scheme of most bytes as the default.
Recipe recipe_of(const SensitivityReport& report, const Allocation& allocation, std::string name,
                 std::string description);

// A report as a file keeps it, so that one measurement serves many budgets. Error(bad_input) that names `where` for
// anything to_json did not write.
nlohmann::ordered_json to_json(const SensitivityReport& report);
SensitivityReport sensitivity_from_json(const nlohmann::ordered_json& json, const std::string& where);
nlohmann::ordered_json to_json(const std::vector<Allocation>& front);

}  // namespace halftone
