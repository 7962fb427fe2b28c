// Where every byte of an output checkpoint will stand, known before any weight is read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/hf_writer.h"
#include "pipeline/quantize_job.h"
#include "pipeline/stored.h"
#include "quantize/calibrated_method.h"

namespace halftone {

struct OutputTensor {
  TensorInfo info;
  std::size_t file = 0;      // index into JobLayout::files
  std::uint64_t offset = 0;  // in that file
};

struct JobItem {
  std::size_t planned = 0;          // index into plan.tensors
  std::optional<StoredModule> module;  // quantized, restored: how it is stored
  std::optional<DType> cast;           // plain numbers in another dtype
  std::vector<OutputTensor> outputs;   // one for copies and casts
  bool calibrated = false;             // its codes are chosen by JobLayout::methods
  std::int64_t row_multiple = 1;       // of chunks, for source and output alike
  std::uint64_t bytes() const;
};

struct JobLayout {
  Plan plan;
  StoredMethod method = StoredMethod::none;
  std::vector<JobItem> items;  // in the order of work
  std::vector<std::unique_ptr<CalibratedMethod>> methods;  // empty: everything is rounded to nearest
  std::vector<HfShard> files;
  std::string index_json;               // empty with one file
  nlohmann::ordered_json config;        // of the output; null if there is none to write
  std::uint64_t base_bytes = 0;         // resident beside the chunks
  std::uint64_t minimum_bytes = 0;      // the smallest --max-memory that works
  std::string minimum_tensor;           // which tensor needs it
};

// Bytes of working memory for one value under way: floats, codes, decoded values, stored bytes, mapped pages.
inline constexpr std::int64_t kBytesPerValue = 48;
// Values of one task.
inline constexpr std::int64_t kTaskValues = std::int64_t{1} << 16;

std::int64_t task_rows(const JobItem& item, std::int64_t cols);

// Error as quantize_checkpoint.
JobLayout lay_out(const Checkpoint& source, const QuantizeOptions& options, int threads);

}  // namespace halftone
