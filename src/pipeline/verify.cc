#include "pipeline/verify.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/integer.h"
#include "kernels/codec/codec.h"
#include "pipeline/stored.h"
#include "quantize/roles.h"

namespace halftone {
namespace {

std::string scheme_text(const ValueReader::Item& item) {
  if (!item.matrix) return std::string(dtype_name(item.plain->dtype));
  const Scheme& scheme = item.matrix->scheme;
  return scheme.ggml ? std::string(ggml_info(*scheme.ggml).name) : to_string(scheme);
}

bool same_plain(const ValueReader::Item& a, const ValueReader::Item& b) {
  if (a.plain == nullptr || b.plain == nullptr) return false;
  return a.plain->dtype == b.plain->dtype && a.plain->ggml == b.plain->ggml;
}

// Errors of one matrix; chunks are cut to the working memory, rows are summed in order.
ErrorSums compare(const ValueReader& source, const ValueReader::Item& a, const ValueReader& output,
                  const ValueReader::Item& b, const std::string& name, ThreadPool& pool, std::uint64_t chunk_bytes) {
  const std::int64_t multiple = std::lcm(source.row_multiple(a), output.row_multiple(b));
  const std::int64_t target = std::max<std::int64_t>(1, (std::int64_t{1} << 16) / std::max<std::int64_t>(1, a.cols));
  const std::int64_t task_rows = round_up(target, multiple);
  const double task_bytes = static_cast<double>(task_rows) * static_cast<double>(a.cols) * 24.0;
  const auto fit = static_cast<std::int64_t>(static_cast<double>(chunk_bytes) / std::max(task_bytes, 1.0));
  const std::int64_t tasks_a_chunk = std::clamp<std::int64_t>(fit, 1, 4 * std::int64_t{pool.size()});
  const std::int64_t chunk_rows = task_rows * tasks_a_chunk;

  ErrorSums sums;
  std::vector<RowError> rows;
  for (std::int64_t first = 0; first < a.rows; first += chunk_rows) {
    throw_if_interrupted();
    const std::int64_t count = std::min(chunk_rows, a.rows - first);
    rows.assign(static_cast<std::size_t>(count), RowError{});
    pool.run(ceil_div(count, task_rows), [&](std::int64_t task, int) {
      const std::int64_t begin = task * task_rows, n = std::min(task_rows, count - begin);
      std::vector<float> x(static_cast<std::size_t>(n * a.cols)), y(x.size());
      source.read(a, first + begin, n, x);
      output.read(b, first + begin, n, y);
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (!std::isfinite(y[i]) && std::isfinite(x[i])) {
          fail(ErrorKind::bad_input, "tensor '{}': value {} of the output is not finite, but the source's is", name,
               (first + begin) * a.cols + static_cast<std::int64_t>(i));
        }
      }
      const auto cols = static_cast<std::size_t>(a.cols);
      for (std::int64_t r = 0; r < n; ++r) {
        const std::size_t at = static_cast<std::size_t>(r) * cols;
        rows[static_cast<std::size_t>(begin + r)] =
            row_error(std::span(x).subspan(at, cols), std::span(y).subspan(at, cols));
      }
    });
    for (const RowError& row : rows) sums.add(row);
    source.forget(a);
    output.forget(b);
  }
  return sums;
}

}  // namespace

RowError row_error(std::span<const float> source, std::span<const float> output) {
  RowError row;
  for (std::size_t i = 0; i < source.size(); ++i) {
    const double x = static_cast<double>(source[i]), y = static_cast<double>(output[i]);
    if (!std::isfinite(x)) continue;  // copied infinities and NaNs have no distance
    const double difference = x - y;
    row.signal += x * x;
    row.noise += difference * difference;
    row.max_error = std::max(row.max_error, std::fabs(difference));
  }
  return row;
}

void ErrorSums::add(const RowError& row) {
  signal += row.signal;
  noise += row.noise;
  max_error = std::max(max_error, row.max_error);
}

double ErrorSums::sqnr_db() const {
  if (noise == 0.0) return std::numeric_limits<double>::infinity();
  if (signal == 0.0) return -std::numeric_limits<double>::infinity();
  return 10.0 * std::log10(signal / noise);
}

std::optional<ValueReader::Item> ValueReader::find(const std::string& name) const {
  Item item;
  if (const TensorInfo* plain = tensors_->find(name); plain != nullptr) {
    // A weight with scales beside it has the plain name too: the matrix comes first.
    std::optional<WeightInfo> matrix = weights_->find(module_of(name));
    const bool has_scales = matrix && (!matrix->scheme.is_dense() || matrix->scheme.element.bits < 16);
    if (!has_scales || plain->dtype == DType::ggml_block) {
      item.plain = plain;
      item.rows = plain->rows();
      item.cols = plain->cols();
      return item;
    }
  }
  item.matrix = weights_->find(module_of(name));
  if (!item.matrix) return std::nullopt;
  item.rows = item.matrix->rows;
  item.cols = item.matrix->cols;
  return item;
}

std::int64_t ValueReader::row_multiple(const Item& item) const {
  return item.matrix ? halftone::row_multiple(item.matrix->scheme) : 1;
}

void ValueReader::read(const Item& item, std::int64_t first, std::int64_t count, std::span<float> out) const {
  if (item.plain != nullptr) {
    read_rows_as_float(*tensors_, *item.plain, first, count, out);
    return;
  }
  ThreadPool serial(1);
  dequantize(weights_->rows(*item.matrix, first, count), out, serial);
}

void ValueReader::forget(const Item& item) const {
  if (item.plain != nullptr) {
    tensors_->forget(*item.plain);
  } else {
    weights_->forget(*item.matrix);
  }
}

VerifyResult verify_values(const ValueReader& source, const ValueReader& output, const std::vector<std::string>& names,
                           ThreadPool& pool, Progress& progress, const VerifyOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  VerifyResult result;
  progress.begin("verify", names.size(), "tensors");
  for (const std::string& name : names) {
    throw_if_interrupted();
    const std::optional<ValueReader::Item> a = source.find(name);
    if (!a) continue;  // no numbers: buffers of whole numbers are compared by their hash
    const std::optional<ValueReader::Item> b = output.find(name);
    if (!b) {
      if (std::find(options.missing.begin(), options.missing.end(), name) != options.missing.end()) continue;
      fail(ErrorKind::bad_input, "tensor '{}' of the source is missing in the output", name);
    }
    if (a->rows != b->rows || a->cols != b->cols) {
      fail(ErrorKind::bad_input, "tensor '{}': the output has shape [{}, {}], the source [{}, {}]", name, b->rows,
           b->cols, a->rows, a->cols);
    }
    ++result.tensors;
    result.values += a->rows * a->cols;
    const bool numeric = a->matrix || a->plain->dtype == DType::ggml_block || dtype_format(a->plain->dtype);
    if (numeric && a->rows > 0 && a->cols > 0) {
      if (a->rows > 1) ++result.matrices;
      const ErrorSums sums = compare(source, *a, output, *b, name, pool, options.chunk_bytes);
      if (!same_plain(*a, *b) || sums.noise > 0.0) {
        result.errors.push_back(TensorError{name, scheme_text(*b), sums.sqnr_db(), sums.max_error});
      }
    }
    progress.advance(1, name);
  }
  progress.end();
  std::stable_sort(result.errors.begin(), result.errors.end(),
                   [](const TensorError& x, const TensorError& y) { return x.sqnr_db < y.sqnr_db; });
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

VerifyResult verify_checkpoint(const Checkpoint& source, const std::filesystem::path& output, ThreadPool& pool,
                               Progress& progress, const VerifyOptions& options) {
  const Checkpoint written = open_checkpoint(output);
  std::vector<std::string> names;
  for (const StoredEntry& entry : stored_entries(*source.tensors, source.config)) names.push_back(entry.name);
  return verify_values(ValueReader(source.tensors, source.weights), ValueReader(written.tensors, written.weights), names,
                       pool, progress, options);
}

std::vector<std::string> VerifyResult::worst(std::size_t count) const {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < std::min(count, errors.size()); ++i) {
    out.push_back(fmt::format("{} {} {:.1f} dB", errors[i].name, errors[i].scheme, errors[i].sqnr_db));
  }
  return out;
}

nlohmann::ordered_json to_json(const VerifyResult& result) {
  nlohmann::ordered_json json;
  json["tensors"] = result.tensors;
  json["matrices"] = result.matrices;
  json["values"] = result.values;
  nlohmann::ordered_json errors = nlohmann::ordered_json::array();
  for (const TensorError& error : result.errors) {
    nlohmann::ordered_json item;
    item["name"] = error.name;
    item["scheme"] = error.scheme;
    item["sqnr_db"] = std::isfinite(error.sqnr_db) ? nlohmann::ordered_json(error.sqnr_db) : nullptr;
    item["max_error"] = error.max_error;
    errors.push_back(std::move(item));
  }
  json["worst_first"] = std::move(errors);
  return json;
}

}  // namespace halftone
