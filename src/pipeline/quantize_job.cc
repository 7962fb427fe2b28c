#include "pipeline/quantize_job.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <set>

#include "base/error.h"
#include "base/integer.h"
#include "base/file.h"
#include "checkpoint/safetensors.h"
#include "kernels/codec/codec.h"
#include "pipeline/job_layout.h"
#include "pipeline/journal.h"
#include "pipeline/report.h"
#include "quantize/method.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

struct HashDeleter {
  void operator()(XXH64_state_t* state) const { XXH64_freeState(state); }
};

class Hash {
 public:
  Hash() : state_(XXH64_createState()) { XXH64_reset(state_.get(), 0); }
  void add(const void* data, std::size_t bytes) { XXH64_update(state_.get(), data, bytes); }
  void add(std::string_view text) { add(text.data(), text.size()); }
  std::uint64_t digest() const { return XXH64_digest(state_.get()); }
  std::string hex() const { return fmt::format("{:016x}", digest()); }

 private:
  std::unique_ptr<XXH64_state_t, HashDeleter> state_;
};

// One hash for the tensors that hold a matrix.
std::string joined_hash(const std::vector<Hash>& parts) {
  if (parts.size() == 1) return parts.front().hex();
  Hash whole;
  for (const Hash& part : parts) whole.add(part.hex());
  return whole.hex();
}

// The header of the source, a few samples of its content, and its small files.
std::string source_fingerprint(const Checkpoint& source) {
  Hash hash;
  for (const TensorInfo& info : source.tensors->tensors()) {
    hash.add(fmt::format("{} {} {} {}\n", info.name, static_cast<int>(info.dtype), shape_string(info.shape),
                         info.bytes));
  }
  hash.add(source.config.dump());
  for (const auto& [name, text] : source.sidecars) {
    hash.add(name);
    hash.add(text);
  }
  for (const fs::path& path : source.files) {
    const MappedFile file(path);
    const auto bytes = file.bytes();
    hash.add(fmt::format("{} {}\n", path.filename().string(), bytes.size()));
    constexpr std::size_t samples = 64, sample = 4096;
    for (std::size_t i = 0; i < samples && !bytes.empty(); ++i) {
      const std::size_t at = bytes.size() / samples * i;
      hash.add(bytes.data() + at, std::min(sample, bytes.size() - at));
    }
  }
  return hash.hex();
}

std::string plan_fingerprint(const JobLayout& layout, const QuantizeOptions& options) {
  Hash hash;
  for (const JobItem& item : layout.items) {
    const PlannedTensor& tensor = layout.plan.tensors[item.planned];
    hash.add(fmt::format("{} {} {} {}\n", tensor.name, static_cast<int>(tensor.action), tensor.scheme_name(),
                         tensor.rule));
    for (const OutputTensor& output : item.outputs) {
      hash.add(fmt::format("{} {} {}\n", output.info.name, output.file, output.offset));
    }
  }
  hash.add(layout.config.dump());
  hash.add(to_json(options.recipe).dump());
  return hash.hex();
}

Json source_times(const Checkpoint& source) {
  Json times = Json::array();
  for (const fs::path& path : source.files) {
    struct stat info {};
    if (::stat(path.c_str(), &info) == 0) {
      times.push_back(std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + std::int64_t{info.st_mtim.tv_nsec});
    }
  }
  return times;
}

// ---------------------------------------------------------------------------------------------------- output folders

fs::path with_suffix(const fs::path& path, const char* suffix) {
  fs::path out = path;
  out += suffix;
  return out;
}

fs::path normal_output(const fs::path& output) {
  fs::path path = fs::absolute(output).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();  // a trailing slash
  if (path.filename().empty()) fail(ErrorKind::usage, "{}: cannot be an output folder", output.string());
  return path;
}

bool is_inside(const fs::path& inner, const fs::path& outer) {
  for (fs::path at = inner;; at = at.parent_path()) {
    if (same_file(at, outer)) return true;
    if (!at.has_parent_path() || at == at.parent_path()) return false;
  }
}

void refuse_own_input(const Checkpoint& source, const fs::path& output) {
  const auto refuse = [&] {
    fail(ErrorKind::usage, "output {} is the input or lies inside it; choose another folder", output.string());
  };
  for (const fs::path& file : source.files) {
    if (same_file(file, output)) refuse();
    std::error_code ignored;
    if (fs::is_directory(output, ignored)) {
      for (const auto& entry : fs::directory_iterator(output, ignored)) {
        if (same_file(entry.path(), file)) refuse();
      }
    }
  }
  // A folder inside the input's folder would be read as part of it; a neighbour of a single file is fine.
  if (fs::is_directory(source.path) && is_inside(output, source.path)) refuse();
}

bool is_empty_or_absent(const fs::path& path) {
  std::error_code ignored;
  return !fs::exists(fs::symlink_status(path, ignored)) || (fs::is_directory(path, ignored) && fs::is_empty(path, ignored));
}

bool looks_like_output(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) return false;
  if (fs::exists(folder / Journal::kFileName, ignored) || fs::exists(folder / "config.json", ignored)) return true;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().extension() == ".safetensors") return true;
  }
  return false;
}

// Whether a finished folder is what this job would write.
bool is_complete(const fs::path& output, const JobLayout& layout, const std::string& fingerprint, Json& report) {
  std::error_code error;
  if (!fs::is_regular_file(output / "report.json", error)) return false;
  report = Json::parse(read_text_file(output / "report.json"), nullptr, false);
  if (report.is_discarded() || !report.is_object() || report.value("fingerprint", "") != fingerprint) return false;
  for (const HfShard& file : layout.files) {
    if (fs::file_size(output / file.name, error) != file.bytes || error) return false;
  }
  return true;
}

void make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail(ErrorKind::resources, "{}: cannot create the folder: {}", path.string(), error.message());
}

void remove_folder(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail(ErrorKind::resources, "{}: cannot remove: {}", path.string(), error.message());
}

// The old output, if any, is never gone before the new one has its name.
void publish(const fs::path& staged, const fs::path& output) {
  if (is_empty_or_absent(output)) {
    rename_durably(staged, output);
    return;
  }
  const fs::path old = with_suffix(output, ".replaced");
  remove_folder(old);
  if (::renameat2(AT_FDCWD, staged.c_str(), AT_FDCWD, output.c_str(), RENAME_EXCHANGE) == 0) {
    remove_folder(staged);  // now the old output
    return;
  }
  rename_durably(output, old);
  rename_durably(staged, output);
  remove_folder(old);
}

// ------------------------------------------------------------------------------------------------------ scale cells

// The values that a scheme's codes reach, in units of the scale, with half a step and the scale's own rounding allowed.
struct CodeRange {
  double low = 0, high = 0;
};

CodeRange code_range(const Scheme& scheme) {
  CodeRange range;
  double below_high = -std::numeric_limits<double>::infinity();
  if (scheme.element.bits > 8) {
    range.high = max_finite(scheme.element);
    below_high = range.high * (1.0 - std::ldexp(1.0, -scheme.element.mantissa_bits - 1));
    range.low = -range.high;
  } else {
    for (std::uint32_t code = 0; code < code_count(scheme.element); ++code) {
      const double value = decode(scheme.element, code);
      if (!std::isfinite(value)) continue;
      range.low = std::min(range.low, value);
      range.high = std::max(range.high, value);
    }
    for (std::uint32_t code = 0; code < code_count(scheme.element); ++code) {
      const double value = decode(scheme.element, code);
      if (std::isfinite(value) && value < range.high) below_high = std::max(below_high, value);
    }
  }
  const double slack = (range.high - below_high) / 2 + 0.005 * range.high;
  range.high += slack;
  range.low -= slack;
  return range;
}

struct CellCounts {
  std::int64_t clipped = 0, zero_cells = 0;
};

CellCounts count_cells(const CodeRange& range, const QuantizedTensor& q, std::span<const float> values) {
  CellCounts counts;
  const Scheme& scheme = q.scheme;
  const bool blocks = scheme.ggml.has_value();
  if (!blocks && (scheme.is_dense() || scheme.granularity == Granularity::tensor)) return counts;
  const std::int64_t cell_rows = !blocks && scheme.granularity == Granularity::block ? scheme.block_rows : 1;
  std::int64_t cell_cols = q.cols;
  if (blocks) {
    cell_cols = ggml_info(*scheme.ggml).block_elements;
  } else if (scheme.granularity == Granularity::group) {
    cell_cols = scheme.group;
  } else if (scheme.granularity == Granularity::block) {
    cell_cols = scheme.block_cols;
  }
  std::size_t cell = 0;
  for (std::int64_t top = 0; top < q.rows; top += cell_rows) {
    for (std::int64_t left = 0; left < q.cols; left += cell_cols, ++cell) {
      const std::int64_t bottom = std::min(q.rows, top + cell_rows), right = std::min(q.cols, left + cell_cols);
      bool zero = true;
      double low = 0, high = 0;
      if (!blocks) {
        const double scale = static_cast<double>(q.scales[cell]) * static_cast<double>(q.global_scale);
        const double shift = q.zeros.empty() ? 0.0 : static_cast<double>(q.zeros[cell]);
        low = (range.low - shift) * scale;
        high = (range.high - shift) * scale;
      }
      for (std::int64_t r = top; r < bottom; ++r) {
        const float* row = values.data() + static_cast<std::size_t>(r * q.cols);
        for (std::int64_t c = left; c < right; ++c) {
          const double value = static_cast<double>(row[c]);
          zero = zero && value == 0.0;
          if (!blocks && (value > high || value < low)) ++counts.clipped;
        }
      }
      if (zero) ++counts.zero_cells;
    }
  }
  return counts;
}

// --------------------------------------------------------------------------------------------------------- the job

// What a task hands back: the bytes of every output tensor for its rows, and what was seen.
struct TaskResult {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<RowError> errors;
  TensorStats stats;
  CellCounts counts;
  std::int64_t overflow = 0, underflow = 0;
};

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

class Job {
 public:
  Job(const Checkpoint& source, const QuantizeOptions& options, const JobLayout& layout, ThreadPool& pool,
      Progress& progress)
      : source_(source),
        options_(options),
        layout_(layout),
        pool_(pool),
        progress_(progress),
        reader_(source.tensors, source.weights),
        method_(make_method(options.recipe.methods.at(0), options.recipe.observer)) {
    const std::uint64_t limit = options.max_memory > 0 ? options.max_memory : layout.plan.peak_memory_bytes;
    working_bytes_ = limit > layout.base_bytes ? limit - layout.base_bytes : 0;
  }

  std::int64_t resumed() const { return resumed_; }

  std::vector<TensorOutcome> run(const fs::path& staged, Journal& journal) {
    open_files(staged, journal);
    std::vector<TensorOutcome> outcomes;
    std::vector<Json> pending;
    std::uint64_t pending_bytes = 0;
    auto last_sync = Clock::now();
    const auto flush = [&] {
      for (const auto& file : files_) file->sync();
      journal.append(pending);
      pending.clear();
      pending_bytes = 0;
      last_sync = Clock::now();
    };
    std::uint64_t total = 0;
    for (const JobItem& item : layout_.items) total += item.bytes();
    progress_.begin("quantize", total, "bytes");
    try {
      for (const JobItem& item : layout_.items) {
        throw_if_interrupted();
        const PlannedTensor& tensor = layout_.plan.tensors[item.planned];
        const auto done = journal.finished().find(tensor.name);
        if (done != journal.finished().end()) {
          outcomes.push_back(outcome_from_json(done->second));
          ++resumed_;
          progress_.advance(item.bytes(), tensor.name);
          continue;
        }
        outcomes.push_back(write_item(item, tensor));
        pending.push_back(to_json(outcomes.back()));
        pending_bytes += item.bytes();
        progress_.advance(item.bytes(), tensor.name);
        if (pending_bytes >= (std::uint64_t{64} << 20) || Clock::now() - last_sync > std::chrono::seconds(1)) flush();
      }
    } catch (const Error&) {
      // What is complete need not be done again.
      try {
        flush();
      } catch (const Error&) {  // the first error says more
      }
      throw;
    }
    flush();
    progress_.end();
    for (const auto& file : files_) file->close();
    files_.clear();
    return outcomes;
  }

 private:
  void open_files(const fs::path& staged, Journal& journal) {
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

  TensorOutcome write_item(const JobItem& item, const PlannedTensor& tensor) {
    TensorOutcome outcome;
    outcome.name = tensor.name;
    outcome.role = role_name(tensor.role);
    outcome.scheme = tensor.scheme && tensor.action != PlanAction::copy ? scheme_of(tensor) : tensor.source_format;
    outcome.activations = tensor.activations ? to_string(*tensor.activations) : "";
    outcome.rule = tensor.rule;
    outcome.bytes = item.bytes();
    switch (tensor.action) {
      case PlanAction::copy: outcome.action = "copied"; break;
      case PlanAction::cast: outcome.action = "cast"; break;
      case PlanAction::restore: outcome.action = "kept quantized"; break;
      case PlanAction::quantize: outcome.action = "quantized"; break;
    }
    if (tensor.action == PlanAction::copy) {
      copy(item, outcome);
    } else {
      transform(item, tensor, outcome);
    }
    return outcome;
  }

  static std::string scheme_of(const PlannedTensor& tensor) {
    return tensor.scheme->ggml ? std::string(ggml_info(*tensor.scheme->ggml).name) : to_string(*tensor.scheme);
  }

  void copy(const JobItem& item, TensorOutcome& outcome) {
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

  std::int64_t tasks_a_chunk(std::int64_t rows, std::int64_t cols) const {
    const double task = static_cast<double>(rows) * static_cast<double>(cols) * static_cast<double>(kBytesPerValue);
    const auto fit = static_cast<std::int64_t>(static_cast<double>(working_bytes_) / std::max(task, 1.0));
    return std::clamp<std::int64_t>(fit, 1, 4 * std::int64_t{pool_.size()});
  }

  // Rows of one task, cut down where --max-memory allows no more.
  std::int64_t rows_a_task(const JobItem& item, std::int64_t cols) const {
    std::int64_t rows = task_rows(item, cols);
    const auto fit = static_cast<std::int64_t>(working_bytes_ / static_cast<std::uint64_t>(kBytesPerValue * cols));
    if (rows > fit) rows = std::max(item.row_multiple, fit / item.row_multiple * item.row_multiple);
    return rows;
  }

  [[noreturn]] static void refuse_non_finite(const PlannedTensor& tensor, const TensorStats& stats) {
    fail(ErrorKind::bad_input, "tensor '{}': {} of its values {} not finite, the first at index {} (row {}, column {})",
         tensor.name, stats.non_finite, stats.non_finite == 1 ? "is" : "are", stats.first_non_finite,
         stats.first_non_finite / tensor.cols, stats.first_non_finite % tensor.cols);
  }

  static void merge(TensorStats& into, const TensorStats& from) {
    into.amax = std::max(into.amax, from.amax);
    into.range.low = std::min(into.range.low, from.range.low);
    into.range.high = std::max(into.range.high, from.range.high);
    into.non_finite += from.non_finite;
    if (into.first_non_finite < 0) into.first_non_finite = from.first_non_finite;
  }

  TensorStats scan_rows(const JobItem& item, const PlannedTensor& tensor, const ValueReader::Item& from,
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

  void transform(const JobItem& item, const PlannedTensor& tensor, TensorOutcome& outcome) {
    const std::optional<ValueReader::Item> from = reader_.find(tensor.name);
    HT_CHECK(from.has_value());
    const bool quantizes = tensor.action == PlanAction::quantize;
    TensorStats whole;
    if (quantizes && needs_whole_tensor_stats(*tensor.scheme)) {
      whole = scan_rows(item, tensor, *from, 0);
      if (whole.non_finite > 0) refuse_non_finite(tensor, whole);
    }
    const CodeRange range = quantizes && !tensor.scheme->ggml ? code_range(*tensor.scheme) : CodeRange{};
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
        run_task(item, tensor, *from, begin, n, whole, range, results[static_cast<std::size_t>(task)]);
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

  void run_task(const JobItem& item, const PlannedTensor& tensor, const ValueReader::Item& from, std::int64_t first,
                std::int64_t rows, const TensorStats& whole, const CodeRange& range, TaskResult& result) const {
    const std::int64_t cols = tensor.cols;
    if (tensor.action == PlanAction::restore) {
      const QuantizedTensor codes = source_.weights->rows(*from.matrix, first, rows);
      for (std::size_t i = 0; i < item.outputs.size(); ++i) {
        result.bytes.push_back(store_rows(layout_.method, *item.module, i, first, codes));
      }
      return;
    }
    std::vector<float> values(static_cast<std::size_t>(rows * cols)), back(values.size());
    reader_.read(from, first, rows, values);
    accumulate_stats(result.stats, values, first * cols);
    if (item.cast) {
      result.bytes.push_back(cast(*item.cast, values, back, result));
    } else {
      if (result.stats.non_finite > 0) return;
      const QuantizedTensor codes =
          method_->apply({tensor.name, *tensor.scheme, values, first, rows, cols, whole});
      ThreadPool serial(1);
      dequantize(codes, back, serial);
      if (!codes.scheme.is_dense()) result.counts = count_cells(range, codes, values);
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
  static std::vector<std::byte> cast(DType dtype, std::span<const float> values, std::span<float> back,
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

  const Checkpoint& source_;
  const QuantizeOptions& options_;
  const JobLayout& layout_;
  ThreadPool& pool_;
  Progress& progress_;
  ValueReader reader_;
  std::unique_ptr<Method> method_;
  std::uint64_t working_bytes_ = 0;
  std::vector<std::unique_ptr<OutputFile>> files_;
  std::int64_t resumed_ = 0;
};

// Reads the staged files back: every tensor's bytes must be those that were written, and every value sane.
VerifyResult verify_staged(const Checkpoint& source, const fs::path& staged, const JobLayout& layout,
                           const std::vector<TensorOutcome>& outcomes, const QuantizeOptions& options,
                           ThreadPool& pool, Progress& progress) {
  std::vector<std::shared_ptr<SafetensorsFile>> files;
  for (const HfShard& file : layout.files) {
    files.push_back(std::make_shared<SafetensorsFile>(staged / file.name));
  }
  for (std::size_t i = 0; i < layout.items.size(); ++i) {
    throw_if_interrupted();
    std::vector<Hash> hashes(layout.items[i].outputs.size());
    for (std::size_t part = 0; part < hashes.size(); ++part) {
      const OutputTensor& output = layout.items[i].outputs[part];
      const SafetensorsFile& file = *files[output.file];
      const TensorInfo& info = file.at(output.info.name);
      if (info.bytes == 0) continue;
      const auto row = static_cast<std::int64_t>(std::max<std::uint64_t>(1, info.row_bytes()));
      const std::int64_t step = std::max<std::int64_t>(1, (std::int64_t{4} << 20) / row);
      std::vector<std::byte> scratch;
      for (std::int64_t first = 0; first < info.rows(); first += step) {
        const auto bytes = file.rows(info, first, std::min(step, info.rows() - first), scratch);
        constexpr std::size_t piece = std::size_t{1} << 20;
        for (std::size_t done = 0; done < bytes.size(); done += piece) {
          const std::size_t size = std::min(piece, bytes.size() - done);
          hashes[part].add(bytes.data() + done, size);
          file.forget(info);
        }
      }
    }
    if (joined_hash(hashes) != outcomes[i].hash) {
      fail(ErrorKind::resources, "{}: tensor '{}' on disk is not what was written; check the disk, remove the folder and "
           "run again", staged.string(), outcomes[i].name);
    }
  }
  std::shared_ptr<const TensorSource> written;
  if (files.size() == 1) {
    written = files.front();
  } else {
    files.clear();
    written = std::make_shared<ShardedSafetensors>(staged);
  }
  std::vector<std::string> names;
  for (const PlannedTensor& tensor : layout.plan.tensors) {
    if (tensor.action != PlanAction::copy) names.push_back(tensor.name);
  }
  VerifyOptions verify;
  const std::uint64_t limit = options.max_memory > 0 ? options.max_memory : layout.plan.peak_memory_bytes;
  verify.chunk_bytes = std::max<std::uint64_t>(1U << 20, (limit - std::min(limit, layout.base_bytes)) / 2);
  return verify_values(ValueReader(source.tensors, source.weights),
                       ValueReader(written, stored_weights(written, layout.config)), names, pool, progress, verify);
}

}  // namespace

QuantizeResult quantize_checkpoint(const Checkpoint& source, const fs::path& output_path,
                                   const QuantizeOptions& options, ThreadPool& pool, Progress& progress) {
  const auto start = Clock::now();
  const fs::path output = normal_output(output_path), staged = with_suffix(output, ".partial");
  refuse_own_input(source, output);
  const JobLayout layout = lay_out(source, options, pool.size());

  QuantizeResult result;
  result.output = output_path;
  result.plan = layout.plan;
  Json job;
  job["tool version"] = options.version;
  job["source"] = source_fingerprint(source);
  job["plan"] = plan_fingerprint(layout, options);
  Hash whole;
  whole.add(job.dump());
  const std::string fingerprint = whole.hex();
  job["source's modification time"] = source_times(source);

  const auto finish = [&](Json report) {
    result.report = std::move(report);
    result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    result.peak_memory_bytes = peak_resident_bytes();
  };
  std::error_code ignored;
  if (!is_empty_or_absent(output)) {
    Json report;
    if (!options.force && fs::is_directory(output, ignored) && is_complete(output, layout, fingerprint, report)) {
      fs::remove(output / Journal::kFileName, ignored);  // killed between the rename and this
      result.already_complete = true;
      for (const Json& item : report["tensors"]) result.tensors.push_back(outcome_from_json(item));
      finish(std::move(report));
      return result;
    }
    if (!options.force) {
      fail(ErrorKind::usage, "{} exists; choose another output or use --force to replace it", output.string());
    }
    if (!looks_like_output(output)) {
      fail(ErrorKind::usage, "{} is not a model folder; --force replaces only those", output.string());
    }
  }
  if (options.force && fs::exists(staged, ignored)) {
    if (!is_empty_or_absent(staged) && !looks_like_output(staged)) {
      fail(ErrorKind::usage, "{} is not an unfinished output; remove it first", staged.string());
    }
    remove_folder(staged);
  }
  if (!is_empty_or_absent(staged) && !fs::exists(staged / Journal::kFileName, ignored)) {
    bool foreign = false;
    for (const auto& entry : fs::directory_iterator(staged, ignored)) {
      foreign = foreign || !entry.path().filename().string().starts_with(Journal::kFileName);
    }
    if (foreign) {
      fail(ErrorKind::usage, "{} is in the way and holds no journal; remove it or use --force", staged.string());
    }
  }
  make_folder(staged);

  std::uint64_t have = 0;  // what an earlier run already wrote
  for (const HfShard& file : layout.files) {
    struct stat info {};
    if (::stat((staged / file.name).c_str(), &info) == 0) have += static_cast<std::uint64_t>(info.st_blocks) * 512;
  }
  const std::uint64_t needed = layout.plan.disk_bytes - std::min(have, layout.plan.disk_bytes);
  if (const std::uint64_t free = free_disk_bytes(staged); free < needed) {
    if (have == 0) fs::remove(staged, ignored);
    fail(ErrorKind::resources, "{}: the output needs {} bytes, but only {} are free", output.string(), needed, free);
  }

  Journal journal(staged, job);
  Job work(source, options, layout, pool, progress);
  try {
    result.tensors = work.run(staged, journal);
  } catch (const Error& error) {
    // The same input and recipe would fail in the same way: nothing to resume.
    if (error.kind() == ErrorKind::bad_input || error.kind() == ErrorKind::unsupported) fs::remove_all(staged, ignored);
    throw;
  }
  result.resumed_tensors = work.resumed();
  for (const TensorOutcome& outcome : result.tensors) {
    if (outcome.non_finite > 0) {
      progress.note(fmt::format("{}: {} values are not finite and stay so", outcome.name, outcome.non_finite));
    }
  }
  if (!layout.index_json.empty()) write_text_file(staged / "model.safetensors.index.json", layout.index_json);
  if (!layout.config.is_null()) write_text_file(staged / "config.json", layout.config.dump(2) + "\n");
  for (const auto& [name, text] : source.sidecars) {
    const fs::path path = staged / fs::path(name).relative_path().lexically_normal();
    if (!is_inside(path.parent_path(), staged)) make_folder(path.parent_path());
    write_text_file(path, text);
  }
  if (options.verify) {
    result.verification = verify_staged(source, staged, layout, result.tensors, options, pool, progress);
  }
  Json quality;
  if (options.quality) {
    try {
      quality = options.quality(staged);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::quality_gate) throw;
      const fs::path rejected = with_suffix(output, ".rejected");
      if (looks_like_output(rejected)) remove_folder(rejected);
      fs::remove(staged / Journal::kFileName, ignored);
      rename_durably(staged, rejected);
      fail(ErrorKind::quality_gate, "{} (the output is left at {})", error.what(), rejected.string());
    }
  }
  Json report = make_report(source, layout, options, result.tensors, result.verification, fingerprint, quality);
  write_text_file(staged / "report.json", report.dump(2) + "\n");
  publish(staged, output);
  fs::remove(output / Journal::kFileName, ignored);
  finish(std::move(report));
  return result;
}

}  // namespace halftone
