// Looks at a written checkpoint as a stranger would: opens it, reads every matrix back, and compares with the source.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
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
  std::uint64_t chunk_bytes = std::uint64_t{64} << 20;  // working memory
  std::vector<std::string> missing;                     // source tensors that the output need not hold (a tied head)
};

// Error(bad_input) names the first matrix of `output` that holds a non-finite scale or code where the source is finite,
// or that the output lacks. `source` and `output` may be any checkpoints with the same canonical names.
VerifyResult verify_checkpoint(const Checkpoint& source, const std::filesystem::path& output, ThreadPool& pool,
                               Progress& progress = no_progress(), const VerifyOptions& options = {});

nlohmann::ordered_json to_json(const VerifyResult& result);

// Sums over rows, added in row order, so that the result depends neither on threads nor on chunks.
struct RowError {
  double signal = 0, noise = 0, max_error = 0;
};
RowError row_error(std::span<const float> source, std::span<const float> output);
struct ErrorSums {
  double signal = 0, noise = 0, max_error = 0;
  void add(const RowError& row);
  double sqnr_db() const;  // infinity if noise is 0
};

// Rows of any tensor of a checkpoint as numbers, quantized or not.
class ValueReader {
 public:
  ValueReader(std::shared_ptr<const TensorSource> tensors, std::shared_ptr<const WeightSource> weights)
      : tensors_(std::move(tensors)), weights_(std::move(weights)) {}
  struct Item {
    const TensorInfo* plain = nullptr;  // or
    std::optional<WeightInfo> matrix;
    std::int64_t rows = 0, cols = 0;
  };
  std::optional<Item> find(const std::string& name) const;  // tensor name, with ".weight"
  std::int64_t row_multiple(const Item& item) const;
  void read(const Item& item, std::int64_t first, std::int64_t count, std::span<float> out) const;
  void forget(const Item& item) const;

 private:
  std::shared_ptr<const TensorSource> tensors_;
  std::shared_ptr<const WeightSource> weights_;
};

// verify_checkpoint on opened sources; `names` are the tensors to compare.
VerifyResult verify_values(const ValueReader& source, const ValueReader& output, const std::vector<std::string>& names,
                           ThreadPool& pool, Progress& progress, const VerifyOptions& options);

}  // namespace halftone
