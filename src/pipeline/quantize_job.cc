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
#include "pipeline/calibration_walk.h"
#include "pipeline/hash.h"
#include "pipeline/item_writer.h"
#include "pipeline/job_layout.h"
#include "pipeline/journal.h"
#include "pipeline/report.h"
#include "pipeline/smooth.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

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
  if (!layout.methods.empty()) hash.add(options.calibration_identity);
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

// The tensors of an unfinished output that are complete.
class WrittenTensors final : public TensorSource {
 public:
  WrittenTensors(std::shared_ptr<const TensorSource> files, std::vector<TensorInfo> complete)
      : files_(std::move(files)), complete_(std::move(complete)) {}
  const std::vector<TensorInfo>& tensors() const override { return complete_; }
  std::span<const std::byte> rows(const TensorInfo& info, std::int64_t first, std::int64_t count,
                                  std::vector<std::byte>& scratch) const override {
    return files_->rows(info, first, count, scratch);
  }
  void forget(const TensorInfo& info) const override { files_->forget(info); }

 private:
  std::shared_ptr<const TensorSource> files_;
  std::vector<TensorInfo> complete_;
};

const std::string kCalibrationRecord = "(calibration)";  // beside the tensors in the journal

// Works through the items of a job; what the journal says is done is not done again.
class Run final : public CalibrationJob {
 public:
  // `source` may be a smoothed one; `data`: the calibration data, nullptr if nothing is calibrated.
  Run(const Checkpoint& source, const QuantizeOptions& options, const JobLayout& layout, const fs::path& staged,
      const CalibrationData* data, Json smoothing, Journal& journal, ThreadPool& pool, Progress& progress)
      : source_(source),
        options_(options),
        layout_(layout),
        staged_(staged),
        data_(data),
        smoothing_(std::move(smoothing)),
        journal_(journal),
        pool_(pool),
        progress_(progress),
        writer_(source, options, layout, pool),
        outcomes_(layout.items.size()) {
    writer_.open(staged, journal);
    for (std::size_t i = 0; i < layout.items.size(); ++i) {
      const std::string& name = planned(i).name;
      item_of_[module_of(name)] = i;
      const auto done = journal.finished().find(name);
      if (done == journal.finished().end()) continue;
      outcomes_[i] = outcome_from_json(done->second);
      ++resumed_;
    }
  }

  std::int64_t resumed() const { return resumed_; }

  std::vector<TensorOutcome> run() {
    try {
      if (!layout_.methods.empty()) calibrate();
      round();
    } catch (const Error&) {
      // What is complete need not be done again.
      try {
        flush();
      } catch (const Error&) {  // the first error says more
      }
      throw;
    }
    flush();
    writer_.close();
    std::vector<TensorOutcome> all;
    for (std::optional<TensorOutcome>& outcome : outcomes_) all.push_back(*std::move(outcome));
    return all;
  }

  bool needs_inputs(const std::string& module) const override {
    const auto found = item_of_.find(module);
    return found != item_of_.end() && layout_.items[found->second].calibrated && !outcomes_[found->second];
  }

  std::optional<Scheme> activations(const std::string& module) const override {
    const auto found = item_of_.find(module);
    return found == item_of_.end() ? std::nullopt : planned(found->second).activations;
  }

  void write(const std::vector<std::string>& modules, const ProblemInputs* inputs) override {
    for (const std::string& module : modules) {
      const auto found = item_of_.find(module);
      HT_CHECK(found != item_of_.end());  // the model was bound to it
      if (outcomes_[found->second]) continue;
      const JobItem& item = layout_.items[found->second];
      if (item.calibrated) {
        HT_CHECK(inputs != nullptr);
        solve(found->second, *inputs);
      } else {
        finish(found->second, writer_.write(item));
      }
    }
    flush();
  }

  std::shared_ptr<const WeightSource> written(const std::vector<std::string>& modules) const override {
    std::vector<TensorInfo> complete;
    for (const std::string& module : modules) {
      const std::size_t i = item_of_.at(module);
      HT_CHECK(outcomes_[i].has_value());
      for (const OutputTensor& output : layout_.items[i].outputs) complete.push_back(output.info);
    }
    return stored_weights(std::make_shared<WrittenTensors>(staged_files_, std::move(complete)), layout_.config);
  }

 private:
  const PlannedTensor& planned(std::size_t i) const { return layout_.plan.tensors[layout_.items[i].planned]; }

  void calibrate() {
    bool all_done = true;
    for (std::size_t i = 0; i < layout_.items.size(); ++i) {
      all_done = all_done && (!layout_.items[i].calibrated || outcomes_[i].has_value());
    }
    if (all_done) return;
    const CalibrationData& data = *data_;
    Json record{{"name", kCalibrationRecord}, {"calibration", to_json(data)}};
    if (!smoothing_.is_null()) record["calibration"]["smoothing"] = smoothing_;
    if (!journal_.finished().contains(kCalibrationRecord)) journal_.append({std::move(record)});
    // The files have their full sizes and headers from the start; what is read from them has been written before.
    if (layout_.files.size() == 1) {
      staged_files_ = std::make_shared<SafetensorsFile>(staged_ / layout_.files.front().name);
    } else {
      write_text_file(staged_ / "model.safetensors.index.json", layout_.index_json);
      staged_files_ = std::make_shared<ShardedSafetensors>(staged_);
    }
    walk_calibration(*source_.model, *source_.weights, data.sequences, WalkOptions{}, *this, pool_, progress_);
  }

  void solve(std::size_t i, const ProblemInputs& inputs) {
    const PlannedTensor& tensor = planned(i);
    MatrixProblem problem(module_of(tensor.name), *tensor.scheme, writer_.values(layout_.items[i]), tensor.rows, inputs);
    for (const auto& method : layout_.methods) {
      throw_if_interrupted();
      method->apply(problem, pool_);
    }
    TensorOutcome outcome = writer_.write(layout_.items[i], &problem.solution());
    outcome.methods = fmt::format("{}", fmt::join(options_.recipe.methods, ", "));
    outcome.output_error = problem.loss(pool_);
    outcome.damping = inputs.factor.damping;
    if (inputs.factor.tries > 1) {
      progress_.note(fmt::format("{}: the damping had to be raised to {:g} of the mean", tensor.name, inputs.factor.damping));
    }
    finish(i, std::move(outcome));
  }

  void round() {
    std::uint64_t total = 0;
    for (const JobItem& item : layout_.items) total += item.bytes();
    progress_.begin("quantize", total, "bytes");
    for (std::size_t i = 0; i < layout_.items.size(); ++i) {
      throw_if_interrupted();
      const JobItem& item = layout_.items[i];
      if (!outcomes_[i]) {
        finish(i, writer_.write(item));
        if (pending_bytes_ >= (std::uint64_t{64} << 20) || Clock::now() - last_sync_ > std::chrono::seconds(1)) flush();
      }
      progress_.advance(item.bytes(), planned(i).name);
    }
    progress_.end();
  }

  void finish(std::size_t i, TensorOutcome outcome) {
    pending_.push_back(to_json(outcome));
    pending_bytes_ += layout_.items[i].bytes();
    outcomes_[i] = std::move(outcome);
  }

  void flush() {
    writer_.sync();
    journal_.append(pending_);
    pending_.clear();
    pending_bytes_ = 0;
    last_sync_ = Clock::now();
  }

  const Checkpoint& source_;
  const QuantizeOptions& options_;
  const JobLayout& layout_;
  const fs::path& staged_;
  const CalibrationData* data_;
  Json smoothing_;
  Journal& journal_;
  ThreadPool& pool_;
  Progress& progress_;
  ItemWriter writer_;
  std::map<std::string, std::size_t> item_of_;  // by module
  std::vector<std::optional<TensorOutcome>> outcomes_;
  std::shared_ptr<const TensorSource> staged_files_;
  std::int64_t resumed_ = 0;
  std::vector<Json> pending_;
  std::uint64_t pending_bytes_ = 0;
  Clock::time_point last_sync_ = Clock::now();
};

FormatsOf formats_of(const JobLayout& layout) {
  std::map<std::string, MatrixFormats> formats;
  for (const JobItem& item : layout.items) {
    const PlannedTensor& tensor = layout.plan.tensors[item.planned];
    if (item.calibrated) formats[module_of(tensor.name)] = {*tensor.scheme, tensor.activations};
  }
  return [formats](const std::string& module) -> std::optional<MatrixFormats> {
    const auto found = formats.find(module);
    if (found == formats.end()) return std::nullopt;
    return found->second;
  };
}

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
  std::int64_t resumed = 0;
  Checkpoint smoothed;
  const Checkpoint* shown = &source;  // what is quantized and what the output is compared with
  try {
    CalibrationData data;
    Json smoothing;
    if (!layout.methods.empty()) {
      HT_CHECK(options.calibration != nullptr);
      data = options.calibration(progress);
      for (const std::string& note : data.notes) progress.note(note);
      if (const std::string method = smoothing_method(options.recipe.methods); !method.empty()) {
        SmoothedCheckpoint result_of = smooth_checkpoint(source, method, data.sequences, formats_of(layout), pool, progress);
        smoothed = std::move(result_of.checkpoint);
        smoothing = std::move(result_of.report);
        shown = &smoothed;
      }
    }
    Run work(*shown, options, layout, staged, layout.methods.empty() ? nullptr : &data, std::move(smoothing), journal, pool,
             progress);
    resumed = work.resumed();
    result.tensors = work.run();
  } catch (const Error& error) {
    // The same input and recipe would fail in the same way: nothing to resume.
    if (error.kind() == ErrorKind::bad_input || error.kind() == ErrorKind::unsupported) fs::remove_all(staged, ignored);
    throw;
  }
  result.resumed_tensors = resumed;
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
    result.verification = verify_staged(*shown, staged, layout, result.tensors, options, pool, progress);
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
  const auto record = journal.finished().find(kCalibrationRecord);
  const Json calibration = record == journal.finished().end() ? Json() : record->second.value("calibration", Json());
  Json report =
      make_report(source, layout, options, result.tensors, result.verification, fingerprint, calibration, quality);
  write_text_file(staged / "report.json", report.dump(2) + "\n");
  publish(staged, output);
  fs::remove(output / Journal::kFileName, ignored);
  finish(std::move(report));
  return result;
}

}  // namespace halftone
