#include "quantize/smoothing.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/random.h"
#include "kernels/codec/codec.h"
#include "kernels/matmul/matmul.h"

namespace halftone {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kSmallestWeight = 1e-5;  // a column of zeros must not make s infinite
constexpr double kSmallestMean = 1e-4;

std::size_t to_size(std::int64_t value) {
  return static_cast<std::size_t>(value);
}

void require_finite(std::span<const float> values, const std::string& what) {
  TensorStats stats;
  accumulate_stats(stats, values, 0);
  if (stats.non_finite > 0) {
    fail(ErrorKind::usage, "smoothing: {}: value {} is not finite; leave such rows out", what, stats.first_non_finite);
  }
}

void require_channels(std::span<const float> values, std::int64_t cols, const char* what) {
  if (values.size() != to_size(cols)) {
    fail(ErrorKind::usage, "smoothing: {} has {} values, not one for each of {} channels", what, values.size(), cols);
  }
  require_finite(values, what);
  if (std::any_of(values.begin(), values.end(), [](float value) { return value < 0.0F; })) {
    fail(ErrorKind::usage, "smoothing: {} has a negative value", what);
  }
}

void check_problem(const SmoothingProblem& p) {
  std::int64_t values = 0;
  if (p.count < 1 || p.cols < 1 || __builtin_mul_overflow(p.count, p.cols, &values) ||
      p.samples.size() != to_size(values)) {
    fail(ErrorKind::usage, "smoothing: {} sample values are not {} rows of {} channels (at least one of each)",
         p.samples.size(), p.count, p.cols);
  }
  require_finite(p.samples, "samples");
  require_channels(p.amax, p.cols, "amax");
  if (p.consumers.empty()) fail(ErrorKind::usage, "smoothing: no linear reads these activations");
  for (std::size_t i = 0; i < p.consumers.size(); ++i) {
    const SmoothingConsumer& c = p.consumers[i];
    if (c.rows < 1 || __builtin_mul_overflow(c.rows, p.cols, &values) || c.weights.size() != to_size(values)) {
      fail(ErrorKind::usage, "smoothing: linear {} has {} weights, not {} rows of {}", i, c.weights.size(), c.rows,
           p.cols);
    }
    require_finite(c.weights, fmt::format("weights of linear {}", i));
    if (c.weight_scheme.granularity == Granularity::token) {
      fail(ErrorKind::usage, "smoothing: linear {}: {} is no scheme for weights", i, to_string(c.weight_scheme));
    }
    if (const auto reason = scheme_refusal(c.weight_scheme, c.rows, p.cols)) {
      fail(ErrorKind::unsupported, "smoothing: linear {}: {}", i, *reason);
    }
    if (!c.activations) continue;
    const Granularity granularity = c.activations->granularity;
    if (c.activations->ggml || granularity == Granularity::block || granularity == Granularity::channel) {
      fail(ErrorKind::usage, "smoothing: linear {}: {} is no scheme for activations (use a token, group or tensor one)",
           i, to_string(*c.activations));
    }
    if (const auto reason = scheme_refusal(*c.activations, p.count, p.cols)) {
      fail(ErrorKind::unsupported, "smoothing: linear {}: activations: {}", i, *reason);
    }
  }
}

void check_scales(std::span<const float> scales, std::int64_t cols) {
  require_channels(scales, cols, "scales");
  if (std::any_of(scales.begin(), scales.end(), [](float value) { return value == 0.0F; })) {
    fail(ErrorKind::usage, "smoothing: a scale is zero");
  }
}

float bounded(double scale) {
  return static_cast<float>(
      std::clamp(scale, static_cast<double>(kSmallestSmoothingScale), static_cast<double>(kLargestSmoothingScale)));
}

PackedMatrix pack_dense(std::span<const float> values, std::int64_t rows, std::int64_t cols, ThreadPool& pool) {
  QuantizedTensor dense;
  dense.rows = rows;
  dense.cols = cols;
  dense.codes = std::as_bytes(values);
  return pack_matrix(dense, std::nullopt, pool);
}

// The squared error of scales, for many scales: what does not depend on them is worked out once.
class SmoothingJudge {
 public:
  // At most about `most_rows` rows of W, or all if 0.
  SmoothingJudge(const SmoothingProblem& problem, std::int64_t most_rows, ThreadPool& pool)
      : problem_(problem), pool_(pool) {
    std::int64_t total = 0;
    for (const SmoothingConsumer& consumer : problem.consumers) total += consumer.rows;
    const double kept =
        most_rows > 0 && most_rows < total ? static_cast<double>(most_rows) / static_cast<double>(total) : 1.0;
    chunk_ = std::min<std::int64_t>(problem.count, 128);
    for (const SmoothingConsumer& consumer : problem.consumers) {
      add(consumer, kept);
      // Such a scale is shared by all rows of x.
      if (consumer.activations && consumer.activations->granularity == Granularity::tensor) chunk_ = problem.count;
    }
    Activations x;
    x.assign(problem.samples, problem.count, problem.cols, std::nullopt, pool);
    std::int64_t widest = 0;
    for (Linear& linear : linears_) {
      linear.wanted.resize(to_size(problem.count * linear.rows));
      const PackedMatrix packed = pack_dense(linear.weights, linear.rows, problem.cols, pool);
      matmul(packed, x, nullptr, linear.wanted.data(), linear.rows, pool);
      linear.got.resize(to_size(chunk_ * linear.rows));
      widest = std::max(widest, linear.rows * problem.cols);
    }
    scaled_weights_.resize(to_size(widest));
    scaled_samples_.resize(to_size(chunk_ * problem.cols));
  }

  // Exact where it is below `bound`; else some value that is not below it: sums of squares only grow, so the rest need
  // not be worked out.
  double loss(std::span<const float> scales, double bound = kInfinity) {
    std::vector<PackedMatrix> packed;
    for (const Linear& linear : linears_) {
      std::optional<PackedMatrix> matrix = pack_scaled(linear, scales);
      if (!matrix) return kInfinity;
      packed.push_back(std::move(*matrix));
    }
    double sum = 0;
    for (std::int64_t first = 0; first < problem_.count && sum < bound; first += chunk_) {
      const std::int64_t count = std::min(chunk_, problem_.count - first);
      multiply(packed, scales, first, count);
      for (const Linear& linear : linears_) sum += squared_error(linear, first, count);
    }
    return std::isnan(sum) ? kInfinity : sum;
  }

 private:
  struct Linear {
    const SmoothingConsumer* consumer = nullptr;
    std::int64_t rows = 0;
    std::span<const float> weights;  // [rows, cols]
    std::vector<float> own_weights;  // where not all rows are taken
    std::vector<float> wanted;       // [count, rows]
    std::vector<float> got;          // [chunk, rows]
  };

  void add(const SmoothingConsumer& consumer, double kept) {
    Linear linear;
    linear.consumer = &consumer;
    linear.rows = consumer.rows;
    linear.weights = consumer.weights;
    const Scheme& scheme = consumer.weight_scheme;
    if (kept < 1.0 && !needs_whole_tensor_stats(scheme)) {
      // Whole tiles, so that every scale is that of the whole matrix.
      const std::int64_t tile = row_multiple(scheme), tiles = (consumer.rows + tile - 1) / tile;
      const auto wanted = static_cast<std::int64_t>(std::ceil(kept * static_cast<double>(tiles)));
      linear.rows = 0;
      for (std::int64_t i = 0; i < wanted; ++i) {
        const std::int64_t top = i * tiles / wanted * tile, bottom = std::min(consumer.rows, top + tile);
        const auto rows =
            consumer.weights.subspan(to_size(top * problem_.cols), to_size((bottom - top) * problem_.cols));
        linear.own_weights.insert(linear.own_weights.end(), rows.begin(), rows.end());
        linear.rows += bottom - top;
      }
      linear.weights = linear.own_weights;  // the vector's memory moves with it
    }
    linears_.push_back(std::move(linear));
  }

  // Q(W s); nullopt where W s does not fit.
  std::optional<PackedMatrix> pack_scaled(const Linear& linear, std::span<const float> scales) {
    const std::int64_t cols = problem_.cols;
    const std::span<float> scaled = std::span(scaled_weights_).first(to_size(linear.rows * cols));
    pool_.run_ranges(linear.rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t r = begin; r < end; ++r) {
        const float* from = linear.weights.data() + r * cols;
        float* to = scaled.data() + r * cols;
        for (std::int64_t c = 0; c < cols; ++c) to[c] = from[c] * scales[to_size(c)];
      }
    });
    const Scheme& scheme = linear.consumer->weight_scheme;
    TensorStats stats;
    scan(stats, scaled, 0, pool_);
    const bool fits = !scheme.is_dense() || static_cast<double>(stats.amax) <= max_finite(scheme.element);
    if (stats.non_finite > 0 || !fits) return std::nullopt;
    return pack_matrix(quantize(scheme, scaled, linear.rows, cols, stats, pool_), linear.consumer->activations, pool_);
  }

  // Q(x / s) Q(W s)^T of some rows of x, for all linears; those that code x alike share it.
  void multiply(std::span<const PackedMatrix> packed, std::span<const float> scales, std::int64_t first,
                std::int64_t count) {
    const std::int64_t cols = problem_.cols;
    const std::span<float> scaled = std::span(scaled_samples_).first(to_size(count * cols));
    pool_.run_ranges(count, 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t r = begin; r < end; ++r) {
        const float* from = problem_.samples.data() + (first + r) * cols;
        float* to = scaled.data() + r * cols;
        for (std::int64_t c = 0; c < cols; ++c) to[c] = from[c] / scales[to_size(c)];
      }
    });
    std::vector<bool> done(packed.size());
    for (std::size_t i = 0; i < packed.size(); ++i) {
      if (done[i]) continue;
      std::vector<Product> products;
      for (std::size_t j = i; j < packed.size(); ++j) {
        if (packed[j].activations() != packed[i].activations()) continue;
        done[j] = true;
        products.push_back({&packed[j], nullptr, linears_[j].got.data(), linears_[j].rows});
      }
      activations_.assign(scaled, count, cols, packed[i].activations(), pool_);
      matmul(products, activations_, pool_);
    }
  }

  double squared_error(const Linear& linear, std::int64_t first, std::int64_t count) {
    row_errors_.resize(to_size(count));
    pool_.run_ranges(count, 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t r = begin; r < end; ++r) {
        const float* wanted = linear.wanted.data() + (first + r) * linear.rows;
        const float* got = linear.got.data() + r * linear.rows;
        double lanes[4] = {0, 0, 0, 0};  // one sum would wait for each addition
        for (std::int64_t c = 0; c < linear.rows; ++c) {
          const double difference = static_cast<double>(wanted[c]) - static_cast<double>(got[c]);
          lanes[c & 3] += difference * difference;
        }
        row_errors_[to_size(r)] = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
      }
    });
    return std::accumulate(row_errors_.begin(), row_errors_.end(), 0.0);
  }

  const SmoothingProblem& problem_;
  ThreadPool& pool_;
  std::int64_t chunk_ = 1;
  std::vector<Linear> linears_;
  std::vector<float> scaled_weights_, scaled_samples_;
  Activations activations_;
  std::vector<double> row_errors_;
};

std::vector<float> no_smoothing(const SmoothingProblem& problem) {
  return std::vector<float>(to_size(problem.cols), 1.0F);
}

// The largest |w| of each column over all consumers.
std::vector<float> column_amax(const SmoothingProblem& problem) {
  std::vector<float> amax(to_size(problem.cols), 0.0F);
  for (const SmoothingConsumer& consumer : problem.consumers) {
    for (std::int64_t r = 0; r < consumer.rows; ++r) {
      const float* row = consumer.weights.data() + r * problem.cols;
      for (std::size_t c = 0; c < amax.size(); ++c) amax[c] = std::max(amax[c], std::fabs(row[c]));
    }
  }
  return amax;
}

float smooth_quant_scale(float amax, float wmax, double alpha) {
  if (amax == 0.0F) return 1.0F;
  const double w = std::max(static_cast<double>(wmax), kSmallestWeight);
  return bounded(std::pow(static_cast<double>(amax), alpha) / std::pow(w, 1.0 - alpha));
}

std::vector<float> smooth_quant_scales(const SmoothingProblem& problem, std::span<const float> wmax, double alpha) {
  std::vector<float> scales(to_size(problem.cols));
  for (std::size_t c = 0; c < scales.size(); ++c) scales[c] = smooth_quant_scale(problem.amax[c], wmax[c], alpha);
  return scales;
}

// The best of several scales, the earliest of equals.
struct Best {
  std::vector<float> scales;
  double loss = kInfinity;
  std::string how;

  bool offer(SmoothingJudge& judge, std::vector<float> candidate, std::string name) {
    const double candidate_loss = judge.loss(candidate, loss);
    if (!(candidate_loss < loss)) return false;
    scales = std::move(candidate);
    loss = candidate_loss;
    how = std::move(name);
    return true;
  }
};

Best start_without(SmoothingJudge& judge, const SmoothingProblem& problem) {
  Best best;
  best.scales = no_smoothing(problem);
  best.loss = judge.loss(best.scales);
  best.how = "identity";
  return best;
}

// The channels of each piece, those with the largest amax first.
std::vector<std::vector<std::size_t>> pieces_by_amax(const SmoothingProblem& problem, int k, std::uint64_t seed) {
  std::vector<std::size_t> active;
  std::vector<double> logs;
  for (std::size_t c = 0; c < problem.amax.size(); ++c) {
    if (problem.amax[c] == 0.0F) continue;
    active.push_back(c);
    logs.push_back(std::log(static_cast<double>(problem.amax[c])));
  }
  if (active.empty()) return {};
  const std::vector<int> piece_of = smoothing_detail::cut_into_pieces(logs, k, seed);
  std::vector<std::vector<std::size_t>> pieces(to_size(*std::max_element(piece_of.begin(), piece_of.end()) + 1));
  for (std::size_t i = 0; i < active.size(); ++i) pieces[static_cast<std::size_t>(piece_of[i])].push_back(active[i]);
  return pieces;
}

struct PieceSearch {
  const SmoothingProblem& problem;
  std::span<const float> wmax;
  std::vector<double> alphas, constants;

  // Tries everything for one piece; whether anything was better than what it has.
  bool visit(SmoothingJudge& judge, Best& best, std::span<const std::size_t> piece, std::string& choice) const {
    bool gained = false;
    for (const double alpha : alphas) {
      std::vector<float> trial = best.scales;
      for (const std::size_t c : piece) trial[c] = smooth_quant_scale(problem.amax[c], wmax[c], alpha);
      if (!best.offer(judge, std::move(trial), "")) continue;
      choice = fmt::format("{:.4g}", alpha);
      gained = true;
    }
    for (const double constant : constants) {
      std::vector<float> trial = best.scales;
      for (const std::size_t c : piece) trial[c] = bounded(constant);
      if (!best.offer(judge, std::move(trial), "")) continue;
      choice = fmt::format("x{:.4g}", constant);
      gained = true;
    }
    return gained;
  }

  Best run(SmoothingJudge& judge, const Best& start, const std::vector<std::vector<std::size_t>>& pieces,
           int sweeps) const {
    Best best = start;
    std::vector<std::string> choices(pieces.size(), start.how == "identity" ? "x1" : "0.5");
    // A piece need not be visited again while the others are as they were.
    std::size_t settled = 0;
    for (std::size_t visit_number = 0; settled < pieces.size(); ++visit_number) {
      if (visit_number == pieces.size() * static_cast<std::size_t>(sweeps)) break;
      const std::size_t at = visit_number % pieces.size();
      settled = visit(judge, best, pieces[at], choices[at]) ? 1 : settled + 1;
    }
    best.how = fmt::format("pss k={} ({})", pieces.size(), fmt::join(choices, ", "));
    return best;
  }
};

SmoothingResult result_of(Best best, double identity_loss) {
  SmoothingResult result;
  result.scales = std::move(best.scales);
  result.loss = best.loss;
  result.identity_loss = identity_loss;
  result.how = std::move(best.how);
  return result;
}

void check_alpha(double alpha, const char* what) {
  if (alpha >= 0.0 && alpha <= 1.0) return;
  fail(ErrorKind::usage, "smoothing: {} must be from 0 to 1, not {}", what, alpha);
}

void check_options(const PiecewiseOptions& o) {
  check_alpha(o.alpha_min, "alpha_min");
  check_alpha(o.alpha_max, "alpha_max");
  if (o.alpha_min > o.alpha_max) {
    fail(ErrorKind::usage, "smoothing: alpha_min {} is above alpha_max {}", o.alpha_min, o.alpha_max);
  }
  if (!(o.scale_min >= static_cast<double>(kSmallestSmoothingScale) && o.scale_min <= o.scale_max &&
        o.scale_max <= static_cast<double>(kLargestSmoothingScale))) {
    fail(ErrorKind::usage, "smoothing: scale_min {} and scale_max {} must be a range within [{}, {}]", o.scale_min,
         o.scale_max, kSmallestSmoothingScale, kLargestSmoothingScale);
  }
  // A step that is far too small is a search without end.
  if (!((o.alpha_max - o.alpha_min) / o.alpha_step <= 10000.0 && o.alpha_step > 0.0 &&
        (o.scale_max - o.scale_min) / o.scale_step <= 10000.0 && o.scale_step > 0.0)) {
    fail(ErrorKind::usage, "smoothing: alpha_step {} and scale_step {} must be positive, at most 10000 steps a range",
         o.alpha_step, o.scale_step);
  }
  if (o.pieces < 1 || o.pieces > 64) fail(ErrorKind::usage, "smoothing: 1 to 64 pieces, not {}", o.pieces);
  if (o.sweeps < 1) fail(ErrorKind::usage, "smoothing: at least one sweep, not {}", o.sweeps);
  if (o.compared_rows < 0) fail(ErrorKind::usage, "smoothing: compared_rows is {}; 0 means all", o.compared_rows);
}

}  // namespace

namespace smoothing_detail {

std::vector<double> search_grid(double low, double high, double step) {
  std::vector<double> grid;
  // The last step may miss `high` by a rounding of the division: then it is `high`, not a value beside it.
  for (int i = 0;; ++i) {
    const double value = low + i * step;
    if (!(value < high - 1e-6 * step)) break;
    grid.push_back(value);
  }
  grid.push_back(high);
  return grid;
}

std::vector<int> cut_into_pieces(std::span<const double> values, int k, std::uint64_t seed) {
  HT_CHECK(!values.empty() && k >= 1);
  constexpr int kStarts = 10, kRounds = 100;
  const auto squared_distance = [](double a, double b) { return (a - b) * (a - b); };
  const auto nearest = [&](double value, const std::vector<double>& centers) {
    std::size_t best = 0;
    for (std::size_t j = 1; j < centers.size(); ++j) {
      if (squared_distance(value, centers[j]) < squared_distance(value, centers[best])) best = j;
    }
    return best;
  };

  std::vector<double> best_centers;
  double smallest = kInfinity;
  for (int start = 0; start < kStarts; ++start) {
    CounterRng rng(seed, static_cast<std::uint64_t>(start));
    // k-means++ (Arthur and Vassilvitskii 2007): each new center is a value drawn by its squared distance to the
    // nearest center so far.
    std::vector<double> centers;
    std::vector<double> distances(values.size(), 1.0);
    while (centers.size() < static_cast<std::size_t>(k)) {
      const double total = std::accumulate(distances.begin(), distances.end(), 0.0);
      if (total == 0.0) break;  // every value is a center
      double left = rng.next_uniform64() * total;
      std::size_t drawn = values.size();
      for (std::size_t i = 0; i < values.size() && left >= 0.0; ++i) {
        if (distances[i] == 0.0) continue;
        drawn = i;
        left -= distances[i];
      }
      centers.push_back(values[drawn]);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double distance = squared_distance(values[i], centers.back());
        distances[i] = centers.size() == 1 ? distance : std::min(distances[i], distance);
      }
    }
    for (int round = 0; round < kRounds; ++round) {
      std::vector<double> sums(centers.size(), 0.0), counts(centers.size(), 0.0);
      for (const double value : values) {
        const std::size_t j = nearest(value, centers);
        sums[j] += value;
        counts[j] += 1.0;
      }
      std::vector<double> moved;
      for (std::size_t j = 0; j < centers.size(); ++j) {
        if (counts[j] > 0.0) moved.push_back(sums[j] / counts[j]);
      }
      if (std::exchange(centers, moved) == moved) break;
    }
    double spread = 0;
    for (const double value : values) spread += squared_distance(value, centers[nearest(value, centers)]);
    if (spread < smallest) {
      smallest = spread;
      best_centers = std::move(centers);
    }
  }

  std::sort(best_centers.begin(), best_centers.end(), std::greater<>());
  // A center that lost its last value in the last round, or to a tie, leaves no gap in the numbering.
  std::vector<int> pieces, number(best_centers.size(), -1);
  std::vector<std::size_t> centers_of;
  for (const double value : values) centers_of.push_back(nearest(value, best_centers));
  for (const std::size_t j : centers_of) number[j] = 0;
  int next = 0;
  for (int& n : number) {
    if (n == 0) n = next++;
  }
  for (const std::size_t j : centers_of) pieces.push_back(number[j]);
  return pieces;
}

}  // namespace smoothing_detail

double smoothing_loss(const SmoothingProblem& problem, std::span<const float> scales, ThreadPool& pool) {
  check_problem(problem);
  check_scales(scales, problem.cols);
  return SmoothingJudge(problem, 0, pool).loss(scales);
}

SmoothingResult smooth_quant(const SmoothingProblem& problem, double alpha, ThreadPool& pool) {
  check_problem(problem);
  check_alpha(alpha, "alpha");
  SmoothingJudge judge(problem, 0, pool);
  const double identity_loss = judge.loss(no_smoothing(problem));
  Best plain;
  plain.scales = smooth_quant_scales(problem, column_amax(problem), alpha);
  plain.loss = judge.loss(plain.scales);
  plain.how = fmt::format("smoothquant alpha={:.4g}", alpha);
  return result_of(std::move(plain), identity_loss);
}

SmoothingResult piecewise_search(const SmoothingProblem& problem, const PiecewiseOptions& options, ThreadPool& pool) {
  check_problem(problem);
  check_options(options);
  const std::vector<float> wmax = column_amax(problem);
  const std::vector<float> plain = smooth_quant_scales(problem, wmax, 0.5);
  const std::string plain_name = "smoothquant alpha=0.5";

  std::vector<Best> outcomes;
  {
    SmoothingJudge judge(problem, options.compared_rows, pool);
    Best start = start_without(judge, problem);
    start.offer(judge, plain, plain_name);
    const PieceSearch search{problem, wmax,
                             smoothing_detail::search_grid(options.alpha_min, options.alpha_max, options.alpha_step),
                             smoothing_detail::search_grid(options.scale_min, options.scale_max, options.scale_step)};
    for (int k = options.search_pieces ? 1 : options.pieces; k <= options.pieces; ++k) {
      const std::vector<std::vector<std::size_t>> pieces = pieces_by_amax(problem, k, options.seed);
      // Fewer distinct channels than pieces: a smaller k has been this search.
      if (pieces.empty() || (options.search_pieces && pieces.size() < static_cast<std::size_t>(k))) break;
      outcomes.push_back(search.run(judge, start, pieces, options.sweeps));
    }
  }

  SmoothingJudge judge(problem, 0, pool);
  Best best = start_without(judge, problem);
  const double identity_loss = best.loss;
  best.offer(judge, plain, plain_name);
  for (Best& outcome : outcomes) best.offer(judge, std::move(outcome.scales), std::move(outcome.how));
  return result_of(std::move(best), identity_loss);
}

SmoothingResult awq_search(const SmoothingProblem& problem, int grid, ThreadPool& pool) {
  check_problem(problem);
  require_channels(problem.mean_abs, problem.cols, "mean_abs");
  if (grid < 1 || grid > 10000) fail(ErrorKind::usage, "smoothing: an AWQ grid has 1 to 10000 steps, not {}", grid);
  SmoothingJudge judge(problem, 0, pool);
  Best best = start_without(judge, problem);
  const double identity_loss = best.loss;
  for (int i = 1; i <= grid; ++i) {
    const double ratio = static_cast<double>(i) / grid;
    std::vector<double> raw(to_size(problem.cols), 0.0);
    double largest = 0, smallest = kInfinity;
    for (std::size_t c = 0; c < raw.size(); ++c) {
      if (problem.amax[c] == 0.0F || problem.mean_abs[c] == 0.0F) continue;
      raw[c] = std::max(std::pow(static_cast<double>(problem.mean_abs[c]), ratio), kSmallestMean);
      largest = std::max(largest, raw[c]);
      smallest = std::min(smallest, raw[c]);
    }
    if (largest == 0.0) break;
    std::vector<float> scales = no_smoothing(problem);
    for (std::size_t c = 0; c < raw.size(); ++c) {
      if (raw[c] > 0.0) scales[c] = bounded(raw[c] / std::sqrt(largest * smallest));
    }
    best.offer(judge, std::move(scales), fmt::format("awq ratio={:.4g}", ratio));
  }
  return result_of(std::move(best), identity_loss);
}

std::vector<float> shift_of(std::span<const float> low, std::span<const float> high) {
  if (low.size() != high.size()) {
    fail(ErrorKind::usage, "shift: {} smallest values and {} largest ones", low.size(), high.size());
  }
  std::vector<float> shift(low.size());
  for (std::size_t c = 0; c < shift.size(); ++c) {
    if (!std::isfinite(low[c]) || !std::isfinite(high[c]) || low[c] > high[c]) {
      fail(ErrorKind::usage, "shift: channel {} has no range: {} to {}", c, low[c], high[c]);
    }
    shift[c] = static_cast<float>((static_cast<double>(low[c]) + static_cast<double>(high[c])) / 2.0);
  }
  return shift;
}

}  // namespace halftone
