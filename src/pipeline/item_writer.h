// Writes the tensors of an output checkpoint to their places, one job item at a time, in row chunks under the memory
// limit.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "base/file.h"
#include "base/threads.h"
#include "pipeline/cell_counts.h"
#include "pipeline/job_layout.h"
#include "pipeline/journal.h"
#include "pipeline/verify.h"
#include "quantize/observers.h"

namespace halftone {

class ItemWriter {
 public:
  ItemWriter(const Checkpoint& source, const QuantizeOptions& options, const JobLayout& layout, ThreadPool& pool);

  // Opens the files, in their final sizes, and writes their headers. The journal forgets what cannot be there.
  void open(const std::filesystem::path& staged, Journal& journal);
  // Copies, casts, restores or quantizes one item. `solved`: its codes, where a calibrated method has chosen them; else
  // values are rounded to nearest with the recipe's observer.
  TensorOutcome write(const JobItem& item, const QuantizedTensor* solved = nullptr);
  void sync();
  void close();

  // All values of a matrix that will be quantized. Error(bad_input) if one is not finite.
  std::vector<float> values(const JobItem& item);

 private:
  struct TaskResult;
  struct Transform;  // one matrix on its way

  void copy(const JobItem& item, TensorOutcome& outcome);
  void transform(const JobItem& item, const PlannedTensor& tensor, const QuantizedTensor* solved,
                 TensorOutcome& outcome);
  void run_task(const Transform& work, std::int64_t first, std::int64_t rows, TaskResult& result) const;
  static std::vector<std::byte> cast(DType dtype, std::span<const float> values, std::span<float> back,
                                     TaskResult& result);
  TensorStats scan_rows(const JobItem& item, const PlannedTensor& tensor, const ValueReader::Item& from,
                        std::int64_t first_row);
  std::int64_t tasks_a_chunk(std::int64_t rows, std::int64_t cols) const;
  std::int64_t rows_a_task(const JobItem& item, std::int64_t cols) const;
  const PlannedTensor& planned(const JobItem& item) const { return layout_.plan.tensors[item.planned]; }

  const Checkpoint& source_;
  const QuantizeOptions& options_;
  const JobLayout& layout_;
  ThreadPool& pool_;
  ValueReader reader_;
  std::unique_ptr<ScaleObserver> observer_;
  std::uint64_t working_bytes_ = 0;
  std::vector<std::unique_ptr<OutputFile>> files_;
};

}  // namespace halftone
