#include "cli/bench_ops.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "base/bandwidth.h"
#include "base/error.h"
#include "base/random.h"
#include "cli/timing.h"
#include "kernels/codec/codec.h"
#include "kernels/matmul/matmul.h"

namespace halftone::cli {
namespace {

// More than any last-level cache at hand holds: a product with one row must come from memory.
constexpr std::size_t kWorkingSet = std::size_t{192} << 20;

double median_seconds(std::int64_t repeats, const std::function<void()>& body) {
  std::vector<double> seconds;
  for (std::int64_t i = 0; i < repeats; ++i) seconds.push_back(seconds_of(body));
  return median(std::move(seconds));
}

}  // namespace

void bench_ops(const OpsBench& bench, const Common& common) {
  ThreadPool& pool = default_pool();
  const auto progress = make_progress(common);
  const std::int64_t n = bench.outputs, k = bench.inputs, repeats = std::max<std::int64_t>(bench.repeats, 3);
  std::vector<float> values(static_cast<std::size_t>(n * k)), x(static_cast<std::size_t>(bench.many * k)),
      y(static_cast<std::size_t>(bench.many * n));
  CounterRng rng(1);
  for (float& v : values) v = bf16_to_float(float_to_bf16(0.02F * rng.next_normal()));
  for (float& v : x) v = rng.next_normal();
  TensorStats stats;
  scan(stats, values, 0, pool);

  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  std::string table =
      fmt::format("{} x {} weights, {} threads\n{:<24}{:<20}{:>10}{:>10}{:>8}{:>12}{:>8}\n", n, k, pool.size(),
                  "weights/activations", "kernel", "bits", "GB/s", "share", "GFLOP/s", "share");
  std::vector<std::string> names;
  for (std::size_t at = 0; at <= bench.schemes.size();) {
    const std::size_t comma = std::min(bench.schemes.find(',', at), bench.schemes.size());
    if (comma > at) names.push_back(bench.schemes.substr(at, comma - at));
    at = comma + 1;
  }
  progress->begin("bench", names.size(), "schemes");
  for (const std::string& name : names) {
    throw_if_interrupted();
    const std::size_t slash = name.find('/');
    const Scheme scheme = parse_scheme(name.substr(0, slash));
    std::optional<Scheme> activations;
    if (slash != std::string::npos) activations = parse_scheme(name.substr(slash + 1));
    const QuantizedTensor coded = quantize(scheme, values, n, k, stats, pool);
    std::vector<PackedMatrix> copies;
    copies.push_back(pack_matrix(coded, activations, pool));
    while (copies.size() * copies[0].bytes() < kWorkingSet) copies.push_back(pack_matrix(coded, activations, pool));
    // The limits are measured beside each scheme: other work on the machine then meets both.
    const double bandwidth = measure_read_bandwidth(pool), peak = measure_fp32_peak(pool);
    Activations one, many;
    one.assign(std::span(x).first(static_cast<std::size_t>(k)), 1, k, activations, pool);
    many.assign(x, bench.many, k, activations, pool);
    const double single = median_seconds(repeats, [&] {
      for (const PackedMatrix& w : copies) matmul(w, one, nullptr, y.data(), n, pool);
    });
    const double batch = median_seconds(repeats, [&] { matmul(copies[0], many, nullptr, y.data(), n, pool); });
    const double read = static_cast<double>(copies.size() * copies[0].bytes()) / single;
    const double flops =
        2.0 * static_cast<double>(n) * static_cast<double>(k) * static_cast<double>(bench.many) / batch;
    const double bits = 8.0 * static_cast<double>(copies[0].bytes()) / static_cast<double>(n * k);
    rows.push_back({{"scheme", name},
                    {"kernel", copies[0].kernel_name()},
                    {"bits_per_weight", bits},
                    {"read_gb_s", read / 1e9},
                    {"read_bandwidth_gb_s", bandwidth / 1e9},
                    {"bandwidth_fraction", read / bandwidth},
                    {"rows", bench.many},
                    {"gflop_s", flops / 1e9},
                    {"fp32_peak_gflop_s", peak / 1e9},
                    {"peak_fraction", flops / peak}});
    table += fmt::format("{:<24}{:<20}{:>10.2f}{:>10.1f}{:>7.0f}%{:>12.1f}{:>7.0f}%\n", name, copies[0].kernel_name(),
                         bits, read / 1e9, 100 * read / bandwidth, flops / 1e9, 100 * flops / peak);
    progress->advance(1, "");
  }
  progress->end();
  if (common.json)
    return print_json(
        {{"outputs", n}, {"inputs", k}, {"threads", pool.size()}, {"isa", isa_name(active_isa().isa)}, {"ops", rows}});
  print(table + fmt::format("GB/s: one row of x, against read bandwidth; GFLOP/s: {} rows, against FP32 multiply-add "
                            "peak; medians of {}\n",
                            bench.many, repeats));
}

}  // namespace halftone::cli
