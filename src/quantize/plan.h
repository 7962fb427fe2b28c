// A plan is a recipe resolved for one checkpoint, from headers alone: a scheme a tensor, and everything that will be
// different from what was asked. Conservation law: every tensor of the input is in `tensors` or in `dropped`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "quantize/recipe.h"
#include "quantize/roles.h"
#include "tensor/source.h"

namespace halftone {

// One thing to decide on: a plain tensor, or a matrix that is already quantized (with its scales).
struct PlanInput {
  std::string name;                // tensor name ("...weight"), or the module of a quantized matrix plus ".weight"
  Shape shape;                     // logical, [rows, cols] for quantized matrices
  DType dtype = DType::f32;        // of a plain tensor
  std::optional<GgmlType> ggml;
  std::uint64_t bytes = 0;         // in the input, companions included
  std::optional<Scheme> stored;    // set if the matrix is quantized (GGUF blocks too)
  std::optional<Scheme> stored_activations;
  std::vector<std::string> parts;  // names of the input tensors that make it up
};

enum class PlanAction : std::uint8_t {
  copy,      // byte for byte
  cast,      // to another plain format
  restore,   // a quantized matrix keeps its codes and scales
  quantize
};

struct PlannedTensor {
  std::string name;
  Role role = Role::other;
  PlanAction action = PlanAction::copy;
  Shape shape;
  std::int64_t rows = 0, cols = 0;
  std::optional<Scheme> scheme;        // of the output; nullopt for copied bytes
  std::optional<Scheme> activations;
  std::string rule;
  std::string source_format;           // "BF16", "q4_k", "int4:g64"
  std::vector<std::string> parts;
  std::uint64_t source_bytes = 0;
  std::uint64_t bytes = 0;             // in the output file, scales included; filled by the job's layout

  std::string scheme_name() const;     // "int4:g64", or the dtype of copied bytes
};

struct Substitution {
  std::string tensor, asked, given, reason;
  std::int64_t asked_bytes = 0, given_bytes = 0;  // asked: at the nominal bits per weight of the type
  bool lossless = false;
};

struct DroppedTensor {
  std::string tensor, reason;
  bool lossless = false;  // its content is in the output under another name, or carries no information
};

struct PlanOptions {
  bool weights_only = false;   // leave activations in full precision
  bool strict = false;         // a substitution or lossy drop is Error(unsupported)
  bool tied_head = false;      // the embedding table is the head too
};

struct Plan {
  std::vector<PlannedTensor> tensors;
  std::vector<Substitution> substitutions;
  std::vector<DroppedTensor> dropped;
  std::vector<std::string> notes;
  std::string storage;                  // "compressed-tensors", "halftone", "none"
  std::string storage_reason;           // why not compressed-tensors, if so
  std::uint64_t output_bytes = 0;       // all weight files and their index, headers included, to the byte
  std::uint64_t source_bytes = 0;       // tensor data of the input
  std::uint64_t peak_memory_bytes = 0;  // resident, an upper bound; with --max-memory at most that
  std::uint64_t disk_bytes = 0;         // free space that the run needs
  std::int64_t parameters = 0;
  double bits_per_weight = 0;           // of all tensors in the output
  double estimated_seconds = 0;
};

// The decision part: schemes, rules, substitutions. Sizes stay 0.
Plan resolve_plan(const std::vector<PlanInput>& inputs, const Recipe& recipe, const PlanOptions& options);

// The scheme that takes the place of one that cannot code rows of `cols` values; the dense BF16 scheme if nothing can.
Scheme fallback_scheme(const Scheme& asked, std::int64_t rows, std::int64_t cols);

nlohmann::ordered_json to_json(const Plan& plan);  // keys of design.md section 6
std::string to_text(const Plan& plan);             // for people

}  // namespace halftone
