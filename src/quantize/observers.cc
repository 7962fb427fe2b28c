#include "quantize/observers.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/threads.h"
#include "kernels/codec/codec.h"

namespace halftone {
namespace {

Range range_of(std::span<const float> values) {
  Range range;
  for (const float value : values) {
    range.low = std::min(range.low, value);
    range.high = std::max(range.high, value);
  }
  return range;
}

class AbsMax final : public ScaleObserver {
 public:
  std::string name() const override { return "absmax"; }
  bool is_absmax() const override { return true; }
  ScaleZero choose(const Scheme& scheme, std::span<const float> values, float global) const override {
    return choose_scale(scheme, values, global);
  }
};

class SmallestError final : public ScaleObserver {
 public:
  std::string name() const override { return "mse"; }
  ScaleZero choose(const Scheme& scheme, std::span<const float> values, float global) const override {
    const Range range = range_of(values);
    ScaleZero best = choose_scale(scheme, range, global);
    if (range.low == 0.0F && range.high == 0.0F) return best;
    double smallest = error_of(scheme, values, best, global, std::numeric_limits<double>::infinity());
    ScaleZero last = best;
    for (int percent = 98; percent >= 40; percent -= 2) {
      const float ratio = static_cast<float>(percent) / 100.0F;
      const ScaleZero candidate = choose_scale(scheme, Range{range.low * ratio, range.high * ratio}, global);
      if (candidate.scale == last.scale && candidate.zero == last.zero) continue;  // coarse scale formats
      last = candidate;
      const double error = error_of(scheme, values, candidate, global, smallest);
      if (error < smallest) {
        smallest = error;
        best = candidate;
      }
    }
    return best;
  }

 private:
  // Stops early once it is not below `bound`.
  static double error_of(const Scheme& scheme, std::span<const float> values, ScaleZero sz, float global,
                         double bound) {
    double sum = 0;
    for (const float value : values) {
      const float back = dequantize_value(scheme, quantize_value(scheme, value, sz, global), sz, global);
      const double difference = static_cast<double>(value) - static_cast<double>(back);
      sum += difference * difference;
      if (sum >= bound) break;
    }
    return sum;
  }
};

class Percentile final : public ScaleObserver {
 public:
  explicit Percentile(double percent) : percent_(percent) {}
  std::string name() const override { return fmt::format("percentile:{}", percent_); }
  ScaleZero choose(const Scheme& scheme, std::span<const float> values, float global) const override {
    std::vector<float> magnitudes(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) magnitudes[i] = std::fabs(values[i]);
    const double rank = std::ceil(percent_ / 100.0 * static_cast<double>(values.size())) - 1.0;
    const auto index = std::min(values.size() - 1, static_cast<std::size_t>(std::max(rank, 0.0)));
    std::nth_element(magnitudes.begin(), magnitudes.begin() + static_cast<std::ptrdiff_t>(index), magnitudes.end());
    // A cell that is mostly zeros must not lose all of its values.
    const float limit = magnitudes[index] > 0.0F ? magnitudes[index] : std::numeric_limits<float>::max();
    const Range range = range_of(values);
    return choose_scale(scheme, Range{std::max(range.low, -limit), std::min(range.high, limit)}, global);
  }

 private:
  double percent_;
};

void store_code(std::span<std::byte> codes, std::size_t index, int width, std::uint32_t code) {
  std::memcpy(codes.data() + index * static_cast<std::size_t>(width), &code, static_cast<std::size_t>(width));
}

}  // namespace

std::vector<std::string> observer_names() { return {"absmax", "mse", "percentile"}; }

std::unique_ptr<ScaleObserver> make_observer(std::string_view name) {
  if (name == "absmax") return std::make_unique<AbsMax>();
  if (name == "mse") return std::make_unique<SmallestError>();
  if (name == "percentile") return std::make_unique<Percentile>(99.9);
  if (name.starts_with("percentile:")) {
    const std::string_view number = name.substr(11);
    double percent = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), percent);
    if (error == std::errc() && end == number.data() + number.size() && percent > 0.0 && percent <= 100.0) {
      return std::make_unique<Percentile>(percent);
    }
    fail(ErrorKind::usage, "observer '{}': the percentile must be a number above 0 and up to 100", name);
  }
  fail(ErrorKind::usage, "unknown observer '{}' (there are: {})", name, fmt::join(observer_names(), ", "));
}

QuantizedTensor quantize_with(const ScaleObserver& observer, const Scheme& scheme, std::span<const float> values,
                              std::int64_t rows, std::int64_t cols, const TensorStats& whole) {
  HT_CHECK(static_cast<std::int64_t>(values.size()) == rows * cols);
  if (observer.is_absmax() || scheme.ggml || scheme.is_dense() || scheme.granularity == Granularity::tensor) {
    ThreadPool serial(1);  // callers split the work; the codec's tables are what is wanted here
    return quantize(scheme, values, rows, cols, whole, serial);
  }
  QuantizedTensor out;
  out.scheme = scheme;
  out.rows = rows;
  out.cols = cols;
  out.global_scale = scheme.two_level ? choose_global_scale(scheme, whole.amax) : 1.0F;
  const SchemeShape cells = scale_shape(scheme, rows, cols);
  const std::int64_t cell_rows = scheme.granularity == Granularity::block ? scheme.block_rows : 1;
  const std::int64_t cell_cols = scheme.granularity == Granularity::block   ? scheme.block_cols
                                 : scheme.granularity == Granularity::group ? scheme.group
                                                                            : cols;
  out.scales.reserve(static_cast<std::size_t>(cells.scale_rows * cells.scale_cols));
  const std::span<std::byte> codes = allocate_codes(out);
  std::vector<float> cell;
  for (std::int64_t i = 0; i < cells.scale_rows; ++i) {
    for (std::int64_t j = 0; j < cells.scale_cols; ++j) {
      const std::int64_t top = i * cell_rows, bottom = std::min(rows, top + cell_rows);
      const std::int64_t left = j * cell_cols, right = std::min(cols, left + cell_cols);
      cell.clear();
      for (std::int64_t r = top; r < bottom; ++r) {
        const auto row = values.subspan(static_cast<std::size_t>(r * cols + left), static_cast<std::size_t>(right - left));
        cell.insert(cell.end(), row.begin(), row.end());
      }
      const ScaleZero sz = observer.choose(scheme, cell, out.global_scale);
      out.scales.push_back(sz.scale);
      if (!scheme.symmetric) out.zeros.push_back(sz.zero);
      std::size_t next = 0;
      for (std::int64_t r = top; r < bottom; ++r) {
        for (std::int64_t c = left; c < right; ++c) {
          std::uint32_t code = quantize_value(scheme, cell[next++], sz, out.global_scale);
          if (scheme.element.kind == FormatKind::integer && scheme.element.bits < 8) {
            const std::uint32_t half = 1U << (scheme.element.bits - 1);
            code = ((code & (2 * half - 1)) ^ half) - half;  // the sign fills the byte
          }
          store_code(codes, static_cast<std::size_t>(r * cols + c), out.code_bytes(), code);
        }
      }
    }
  }
  return out;
}

}  // namespace halftone
