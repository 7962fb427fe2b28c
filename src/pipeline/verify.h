// Looks at a written checkpoint as a stranger would: opens it, reads every matrix back, and compares with the source.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/progress.h"
#include "base/threads.h"
#include "pipeline/open.h"

namespace halftone {

struct TensorError {
  std::string name, scheme;
  double sqnr_db = 0;    // 10 log10(sum x^2 / sum (x-y)^2); infinity if equal
  double max_error = 0;
};

struct VerifyResult {
  std::int64_t tensors = 0, matrices = 0, values = 0;
  std::vector<TensorError> errors;  // of every matrix or vector that changed, worst SQNR first
  std::vector<std::string> worst(std::size_t count) const;  // "name scheme 21.3 dB"
  double seconds = 0;
};

struct VerifyOptions {
  std::uint64_t chunk_bytes = std::uint64_t{32} << 20;  // working memory
};

// Error(bad_input) names the first matrix of `output` that holds a non-finite scale or code where the source is finite,
// or that the output lacks. `source` and `output` may be any checkpoints with the same canonical names.
VerifyResult verify_checkpoint(const Checkpoint& source, const std::filesystem::path& output, ThreadPool& pool,
                               Progress& progress = no_progress(), const VerifyOptions& options = {});

nlohmann::ordered_json to_json(const VerifyResult& result);

// Sums over rows, in row order, so that the result depends neither on threads nor on chunks.
struct ErrorSums {
  double signal = 0, noise = 0, max_error = 0;
  void add_row(std::span<const float> source, std::span<const float> output);
  double sqnr_db() const;  // infinity if noise is 0
};

}  // namespace halftone
