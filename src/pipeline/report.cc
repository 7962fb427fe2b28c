#include "pipeline/report.h"

#include <cmath>
#include <limits>

#include "base/error.h"

namespace halftone {

using Json = nlohmann::ordered_json;

Json to_json(const TensorOutcome& outcome) {
  Json json;
  json["name"] = outcome.name;
  json["role"] = outcome.role;
  json["action"] = outcome.action;
  json["scheme"] = outcome.scheme;
  json["activations"] = outcome.activations.empty() ? Json() : Json(outcome.activations);
  json["rule"] = outcome.rule;
  json["bytes"] = outcome.bytes;
  json["sqnr_db"] = std::isfinite(outcome.sqnr_db) ? Json(outcome.sqnr_db) : Json();
  json["max_error"] = outcome.max_error;
  json["clipped"] = outcome.clipped;
  json["zero_blocks"] = outcome.zero_cells;
  json["underflow"] = outcome.underflow;
  json["non_finite"] = outcome.non_finite;
  if (!outcome.methods.empty()) {
    json["methods"] = outcome.methods;
    json["output_error"] = outcome.output_error;
    json["damping"] = outcome.damping;
  }
  json["xxh64"] = outcome.hash;
  return json;
}

TensorOutcome outcome_from_json(const Json& json) {
  TensorOutcome outcome;
  try {
    outcome.name = json.at("name").get<std::string>();
    outcome.role = json.at("role").get<std::string>();
    outcome.action = json.at("action").get<std::string>();
    outcome.scheme = json.at("scheme").get<std::string>();
    if (!json.at("activations").is_null()) outcome.activations = json.at("activations").get<std::string>();
    outcome.rule = json.at("rule").get<std::string>();
    outcome.bytes = json.at("bytes").get<std::uint64_t>();
    outcome.sqnr_db = json.at("sqnr_db").is_null() ? std::numeric_limits<double>::infinity()
                                                   : json.at("sqnr_db").get<double>();
    outcome.max_error = json.at("max_error").get<double>();
    outcome.clipped = json.at("clipped").get<std::int64_t>();
    outcome.zero_cells = json.at("zero_blocks").get<std::int64_t>();
    outcome.underflow = json.at("underflow").get<std::int64_t>();
    outcome.non_finite = json.at("non_finite").get<std::int64_t>();
    if (json.contains("methods")) {
      outcome.methods = json.at("methods").get<std::string>();
      outcome.output_error = json.at("output_error").get<double>();
      outcome.damping = json.at("damping").get<double>();
    }
    outcome.hash = json.at("xxh64").get<std::string>();
  } catch (const Json::exception& error) {
    fail(ErrorKind::bad_input, "a record of a finished tensor cannot be read ({}); use --force to start anew",
         error.what());
  }
  return outcome;
}

Json make_report(const Checkpoint& source, const JobLayout& layout, const QuantizeOptions& options,
                 const std::vector<TensorOutcome>& tensors, const VerifyResult& verification,
                 const std::string& fingerprint, const Json& calibration, const Json& quality) {
  const Plan& plan = layout.plan;
  Json report;
  report["halftone"] = options.version;
  report["fingerprint"] = fingerprint;
  Json files = Json::array();
  for (const std::filesystem::path& file : source.files) files.push_back(file.filename().string());
  report["source"] = {{"container", source.container}, {"files", files}, {"tensor_bytes", plan.source_bytes}};
  report["recipe"] = to_json(options.recipe);
  report["weights_only"] = options.weights_only;
  report["storage"] = plan.storage;
  if (!plan.storage_reason.empty()) report["storage_reason"] = plan.storage_reason;
  report["output_bytes"] = plan.output_bytes;
  report["parameters"] = plan.parameters;
  report["bits_per_weight"] = plan.bits_per_weight;

  const Json planned = to_json(plan);
  report["substitutions"] = planned["substitutions"];
  report["dropped"] = planned["dropped"];
  report["notes"] = planned["notes"];

  std::int64_t quantized = 0, clipped = 0, zero_blocks = 0, underflow = 0, non_finite = 0;
  Json items = Json::array();
  for (const TensorOutcome& outcome : tensors) {
    quantized += outcome.action == "quantized" ? 1 : 0;
    clipped += outcome.clipped;
    zero_blocks += outcome.zero_cells;
    underflow += outcome.underflow;
    non_finite += outcome.non_finite;
    items.push_back(to_json(outcome));
  }
  report["totals"] = {{"tensors", tensors.size()}, {"quantized", quantized},   {"clipped", clipped},
                      {"zero_blocks", zero_blocks}, {"underflow", underflow}, {"non_finite", non_finite}};
  if (!calibration.is_null()) report["calibration"] = calibration;
  report["verification"] = options.verify ? to_json(verification) : Json();
  report["quality"] = quality;
  report["tensors"] = std::move(items);
  return report;
}

}  // namespace halftone
