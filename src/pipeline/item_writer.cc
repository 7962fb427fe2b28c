#include "pipeline/item_writer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/integer.h"
#include "kernels/codec/codec.h"
#include "pipeline/hash.h"

namespace halftone {

namespace fs = std::filesystem;

// What a task hands back: the bytes of every output tensor for its rows, and what was seen.
struct ItemWriter::TaskResult {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<RowError> errors;
  TensorStats stats;
  CellCounts counts;
  std::int64_t overflow = 0, underflow = 0;
};

struct ItemWriter::Transform {
  const JobItem& item;
  const PlannedTensor& tensor;
  const ValueReader::Item& from;
  const TensorStats& whole;
  const QuantizedTensor* solved;
  CodeRange range;
};

namespace {

std::int64_t count_non_finite(DType dtype, std::span<const std::byte> bytes) {
  std::int64_t count = 0;
  if (dtype == DType::bf16 || dtype == DType::f16) {
    const unsigned exponent = dtype == DType::bf16 ? 0x7F80U : 0x7C00U;
    for (std::size_t i = 0; i + 1 < bytes.size(); i += 2) {
      std::uint16_t code = 0;
      std::memcpy(&code, bytes.data() + i, 2);
      count += (code & exponent) == exponent ? 1 : 0;
    }
  } else if (dtype == DType::f32) {
    for (std::size_t i = 0; i + 3 < bytes.size(); i += 4) {
      std::uint32_t code = 0;
      std::memcpy(&code, bytes.data() + i, 4);
      count += (code & 0x7F800000U) == 0x7F800000U ? 1 : 0;
    }
  }
  return count;
}

std::string scheme_of(const PlannedTensor& tensor) {
  return tensor.scheme->ggml ? std::string(ggml_info(*tensor.scheme->ggml).name) : to_string(*tensor.scheme);
}

[[noreturn]] void refuse_non_finite(const PlannedTensor& tensor, const TensorStats& stats) {
  fail(ErrorKind::bad_input, "tensor '{}': {} of its values {} not finite, the first at index {} (row {}, column {})",
       tensor.name, stats.non_finite, stats.non_finite == 1 ? "is" : "are", stats.first_non_finite,
       stats.first_non_finite / tensor.cols, stats.first_non_finite % tensor.cols);
}

void merge(TensorStats& into, const TensorStats& from) {
  into.amax = std::max(into.amax, from.amax);
  into.range.low = std::min(into.range.low, from.range.low);
  into.range.high = std::max(into.range.high, from.range.high);
  into.non_finite += from.non_finite;
  if (into.first_non_finite < 0) into.first_non_finite = from.first_non_finite;
}

}  // namespace

ItemWriter::ItemWriter(const Checkpoint& source, const QuantizeOptions& options, const JobLayout& layout,
                       ThreadPool& pool)
    : source_(source),
      options_(options),
      layout_(layout),
      pool_(pool),
      reader_(source.tensors, source.weights),
      observer_(make_observer(options.recipe.observer)) {
  const std::uint64_t limit = options.max_memory > 0 ? options.max_memory : layout.plan.peak_memory_bytes;
  working_bytes_ = limit > layout.base_bytes ? limit - layout.base_bytes : 0;
}

void ItemWriter::open(const fs::path& staged, Journal& journal) {
  for (std::size_t i = 0; i < layout_.files.size(); ++i) {
    const HfShard& file = layout_.files[i];
    files_.push_back(std::make_unique<OutputFile>(staged / file.name, true));
    if (files_.back()->size() == file.bytes) continue;
    // A file of another size cannot hold what the journal says.
    for (const JobItem& item : layout_.items) {
      if (item.outputs.front().file == i) journal.forget(layout_.plan.tensors[item.planned].name);
    }
    files_.back()->truncate(file.bytes);
  }
  for (std::size_t i = 0; i < layout_.files.size(); ++i) {
    files_[i]->write_at(0, std::as_bytes(std::span(layout_.files[i].header)));
  }
}

void ItemWriter::sync() {
  for (const auto& file : files_) file->sync();
}

void ItemWriter::close() {
  for (const auto& file : files_) file->close();
  files_.clear();
}

TensorOutcome ItemWriter::write(const JobItem& item, const QuantizedTensor* solved) {
  const PlannedTensor& tensor = planned(item);
  TensorOutcome outcome;
  outcome.name = tensor.name;
  outcome.role = role_name(tensor.role);
  outcome.scheme = tensor.scheme && tensor.action != PlanAction::copy ? scheme_of(tensor) : tensor.source_format;
  outcome.activations = tensor.activations ? to_string(*tensor.activations) : "";
  outcome.rule = tensor.rule;
  outcome.bytes = item.bytes();
  switch (tensor.action) {
    case PlanAction::copy:
      outcome.action = "copied";
      break;
    case PlanAction::cast:
      outcome.action = "cast";
      break;
    case PlanAction::restore:
      outcome.action = "kept quantized";
      break;
    case PlanAction::quantize:
      outcome.action = "quantized";
      break;
  }
  if (tensor.action == PlanAction::copy) {
    copy(item, outcome);
  } else {
    transform(item, tensor, solved, outcome);
  }
  return outcome;
}

void ItemWriter::copy(const JobItem& item, TensorOutcome& outcome) {
  const OutputTensor& output = item.outputs.front();
  const TensorInfo& info = source_.tensors->at(output.info.name);
  outcome.sqnr_db = std::numeric_limits<double>::infinity();
  Hash hash;
  std::uint64_t at = output.offset;
  constexpr std::size_t piece = std::size_t{1} << 20;
  if (info.bytes > 0) {
    const std::uint64_t row = std::max<std::uint64_t>(1, info.row_bytes());
    const auto step = static_cast<std::int64_t>(std::max<std::uint64_t>(1, (std::uint64_t{4} << 20) / row));
    std::vector<std::byte> scratch;
    for (std::int64_t first = 0; first < info.rows(); first += step) {
      throw_if_interrupted();
      const std::int64_t count = std::min(step, info.rows() - first);
      const std::span<const std::byte> bytes = source_.tensors->rows(info, first, count, scratch);
      for (std::size_t done = 0; done < bytes.size(); done += piece) {
        const auto part = bytes.subspan(done, std::min(piece, bytes.size() - done));
        outcome.non_finite += count_non_finite(info.dtype, part);
        hash.add(part.data(), part.size());
        files_[output.file]->write_at(at, part);
        at += part.size();
        source_.tensors->forget(info);
      }
    }
  }
  HT_CHECK(at == output.offset + output.info.bytes);
  outcome.hash = hash.hex();
}

std::int64_t ItemWriter::tasks_a_chunk(std::int64_t rows, std::int64_t cols) const {
  const double task = static_cast<double>(rows) * static_cast<double>(cols) * static_cast<double>(kBytesPerValue);
  const auto fit = static_cast<std::int64_t>(static_cast<double>(working_bytes_) / std::max(task, 1.0));
  return std::clamp<std::int64_t>(fit, 1, 4 * std::int64_t{pool_.size()});
}

// Rows of one task, cut down where --max-memory allows no more.
std::int64_t ItemWriter::rows_a_task(const JobItem& item, std::int64_t cols) const {
  std::int64_t rows = task_rows(item, cols);
  const auto fit = static_cast<std::int64_t>(working_bytes_ / static_cast<std::uint64_t>(kBytesPerValue * cols));
  if (rows > fit) rows = std::max(item.row_multiple, fit / item.row_multiple * item.row_multiple);
  return rows;
}

TensorStats ItemWriter::scan_rows(const JobItem& item, const PlannedTensor& tensor, const ValueReader::Item& from,
                                  std::int64_t first_row) {
  const std::int64_t rows = rows_a_task(item, tensor.cols);
  const std::int64_t chunk = rows * tasks_a_chunk(rows, tensor.cols);
  TensorStats whole;
  for (std::int64_t first = first_row; first < tensor.rows; first += chunk) {
    throw_if_interrupted();
    const std::int64_t count = std::min(chunk, tensor.rows - first);
    std::vector<TensorStats> parts(static_cast<std::size_t>(ceil_div(count, rows)));
    pool_.run(static_cast<std::int64_t>(parts.size()), [&](std::int64_t task, int) {
      const std::int64_t begin = first + task * rows, n = std::min(rows, first + count - begin);
      std::vector<float> values(static_cast<std::size_t>(n * tensor.cols));
      reader_.read(from, begin, n, values);
      accumulate_stats(parts[static_cast<std::size_t>(task)], values, begin * tensor.cols);
    });
    for (const TensorStats& part : parts) merge(whole, part);
    reader_.forget(from);
  }
  return whole;
}

std::vector<float> ItemWriter::values(const JobItem& item) {
  const PlannedTensor& tensor = planned(item);
  const std::optional<ValueReader::Item> from = reader_.find(tensor.name);
  HT_CHECK(from.has_value());
  std::vector<float> out(static_cast<std::size_t>(tensor.rows * tensor.cols));
  reader_.read(*from, 0, tensor.rows, out);
  reader_.forget(*from);
  TensorStats stats;
  accumulate_stats(stats, out, 0);
  if (stats.non_finite > 0) refuse_non_finite(tensor, stats);
  return out;
}

void ItemWriter::transform(const JobItem& item, const PlannedTensor& tensor, const QuantizedTensor* solved,
                           TensorOutcome& outcome) {
  const std::optional<ValueReader::Item> from = reader_.find(tensor.name);
  HT_CHECK(from.has_value());
  const bool quantizes = tensor.action == PlanAction::quantize;
  TensorStats whole;
  if (quantizes && solved == nullptr && needs_whole_tensor_stats(*tensor.scheme)) {
    whole = scan_rows(item, tensor, *from, 0);
    if (whole.non_finite > 0) refuse_non_finite(tensor, whole);
  }
  const Transform work{item,  tensor, *from,
                       whole, solved, quantizes && !tensor.scheme->ggml ? code_range(*tensor.scheme) : CodeRange{}};
  const std::int64_t rows = rows_a_task(item, tensor.cols);
  const std::int64_t chunk = rows * tasks_a_chunk(rows, tensor.cols);
  std::vector<Hash> hashes(item.outputs.size());
  std::vector<std::uint64_t> written(item.outputs.size(), 0);
  ErrorSums sums;
  std::int64_t overflow = 0;
  for (std::int64_t first = 0; first < tensor.rows; first += chunk) {
    throw_if_interrupted();
    const std::int64_t count = std::min(chunk, tensor.rows - first);
    std::vector<TaskResult> results(static_cast<std::size_t>(ceil_div(count, rows)));
    pool_.run(static_cast<std::int64_t>(results.size()), [&](std::int64_t task, int) {
      const std::int64_t begin = first + task * rows, n = std::min(rows, first + count - begin);
      run_task(work, begin, n, results[static_cast<std::size_t>(task)]);
    });
    for (std::size_t t = 0; t < results.size(); ++t) {
      TaskResult& result = results[t];
      if (quantizes && result.stats.non_finite > 0) {
        refuse_non_finite(tensor, scan_rows(item, tensor, *from, first / item.row_multiple * item.row_multiple));
      }
      for (const RowError& row : result.errors) sums.add(row);
      outcome.clipped += result.counts.clipped;
      outcome.zero_cells += result.counts.zero_cells;
      outcome.underflow += result.underflow;
      outcome.non_finite += result.stats.non_finite;
      overflow += result.overflow;
      for (std::size_t i = 0; i < item.outputs.size(); ++i) {
        const std::vector<std::byte>& bytes = result.bytes[i];
        if (bytes.empty()) continue;
        const OutputTensor& output = item.outputs[i];
        HT_CHECK(written[i] + bytes.size() <= output.info.bytes);
        hashes[i].add(bytes.data(), bytes.size());
        files_[output.file]->write_at(output.offset + written[i], bytes);
        written[i] += bytes.size();
      }
      result = TaskResult{};
    }
    reader_.forget(*from);
  }
  for (std::size_t i = 0; i < item.outputs.size(); ++i) HT_CHECK(written[i] == item.outputs[i].info.bytes);
  if (overflow > 0 && !options_.allow_lossy_f16) {
    fail(ErrorKind::unsupported,
         "tensor '{}': {} of its values are beyond the range of FP16 (65504); convert to bf16, or clip them with "
         "--allow-lossy-f16",
         tensor.name, overflow);
  }
  outcome.clipped += overflow;
  outcome.sqnr_db = sums.sqnr_db();
  outcome.max_error = sums.max_error;
  outcome.hash = joined_hash(hashes);
}

void ItemWriter::run_task(const Transform& work, std::int64_t first, std::int64_t rows, TaskResult& result) const {
  const JobItem& item = work.item;
  const PlannedTensor& tensor = work.tensor;
  const std::int64_t cols = tensor.cols;
  if (tensor.action == PlanAction::restore) {
    const QuantizedTensor codes = source_.weights->rows(*work.from.matrix, first, rows);
    for (std::size_t i = 0; i < item.outputs.size(); ++i) {
      result.bytes.push_back(store_rows(layout_.method, *item.module, i, first, codes));
    }
    return;
  }
  std::vector<float> values(static_cast<std::size_t>(rows * cols)), back(values.size());
  reader_.read(work.from, first, rows, values);
  accumulate_stats(result.stats, values, first * cols);
  if (item.cast) {
    result.bytes.push_back(cast(*item.cast, values, back, result));
  } else {
    if (result.stats.non_finite > 0) return;
    const QuantizedTensor codes = work.solved != nullptr
                                      ? slice_rows(*work.solved, first, rows)
                                      : quantize_with(*observer_, *tensor.scheme, values, rows, cols, work.whole);
    ThreadPool serial(1);
    dequantize(codes, back, serial);
    if (!codes.scheme.is_dense()) result.counts = count_cells(work.range, codes, values);
    for (std::size_t i = 0; i < item.outputs.size(); ++i) {
      result.bytes.push_back(store_rows(layout_.method, *item.module, i, first, codes));
    }
  }
  const auto width = static_cast<std::size_t>(cols);
  result.errors.reserve(static_cast<std::size_t>(rows));
  for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
    result.errors.push_back(
        row_error(std::span(values).subspan(r * width, width), std::span(back).subspan(r * width, width)));
  }
}

// Plain numbers to plain numbers, nearest even. Finite values beyond FP16 are counted and clipped to its largest.
std::vector<std::byte> ItemWriter::cast(DType dtype, std::span<const float> values, std::span<float> back,
                                        TaskResult& result) {
  std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(dtype_bits(dtype) / 8));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float value = values[i];
    if (dtype == DType::f32) {
      std::memcpy(bytes.data() + 4 * i, &value, 4);
      back[i] = value;
      continue;
    }
    std::uint16_t code = dtype == DType::f16 ? float_to_fp16(value) : float_to_bf16(value);
    if (std::isfinite(value)) {
      if (dtype == DType::f16 && (code & 0x7FFFU) == 0x7C00U) {
        ++result.overflow;
        code = static_cast<std::uint16_t>((code & 0x8000U) | 0x7BFFU);
      } else if (dtype == DType::bf16 && (code & 0x7FFFU) == 0x7F80U) {
        code = static_cast<std::uint16_t>((code & 0x8000U) | 0x7F7FU);  // FP32 values above the largest BF16
      }
      if (value != 0.0F && (code & 0x7FFFU) == 0) ++result.underflow;
    }
    std::memcpy(bytes.data() + 2 * i, &code, 2);
    back[i] = dtype == DType::f16 ? fp16_to_float(code) : bf16_to_float(code);
  }
  return bytes;
}

}  // namespace halftone
