// report.json: what became of every tensor, and why. The same job gives the same bytes: no times, no paths, no memory.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "pipeline/job_layout.h"

namespace halftone {

nlohmann::ordered_json to_json(const TensorOutcome& outcome);
TensorOutcome outcome_from_json(const nlohmann::ordered_json& json);  // reads to_json back, exactly

nlohmann::ordered_json make_report(const Checkpoint& source, const JobLayout& layout, const QuantizeOptions& options,
                                   const std::vector<TensorOutcome>& tensors, const VerifyResult& verification,
                                   const std::string& fingerprint, const nlohmann::ordered_json& calibration,
                                   const nlohmann::ordered_json& quality);

}  // namespace halftone
