// Before rounding, the channels of x can be made alike: x W^T = (x / s) (W s)^T for any s > 0, so s moves range from a
// channel of x that is hard to round into its column of W, or back. 1 / s is folded into what makes x (a norm's
// weight), so a finished model pays nothing. Here s is searched, from samples of x; nothing here knows of models.
//
// The judge is the same everywhere: the squared error of the products that the model will run, through the real grids
// of weights and activations, summed over all linears that read x. No search returns a larger one than no smoothing.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/threads.h"
#include "numeric/scheme.h"

namespace halftone {

// One linear that reads x. Those behind one norm (q, k, v; gate, up) share one s and are searched together.
struct SmoothingConsumer {
  std::span<const float> weights;  // [rows, cols]
  std::int64_t rows = 0;
  Scheme weight_scheme;
  std::optional<Scheme> activations;  // granularity none, tensor, token or group; nullopt: full precision
};

struct SmoothingProblem {
  std::span<const float> samples;  // [count, cols], rows of x that the error is measured on
  std::int64_t count = 0, cols = 0;
  std::vector<float> amax;      // [cols], largest |x| of a channel in all calibration data; 0: never active
  std::vector<float> mean_abs;  // [cols], mean |x| of a channel; only awq_search reads it
  std::vector<SmoothingConsumer> consumers;
};

struct SmoothingResult {
  std::vector<float> scales;  // [cols]: x is divided by them, columns of W are multiplied; within kSmoothing*Scale
  double loss = 0, identity_loss = 0;  // smoothing_loss of `scales` and of ones
  std::string how;                     // "identity", "smoothquant alpha=0.5", "pss k=2 (0.65, x1.5)", "awq ratio=0.35"
};

inline constexpr float kSmallestSmoothingScale = 1e-5F, kLargestSmoothingScale = 1e5F;

// The sum over consumers of || x W^T - Q(x / s) Q(W s)^T ||^2, in the kernels' FP32 products and FP64 sums; infinite
// where W s leaves the range of its format. The same for any number of threads. `scales`: [cols], positive, finite.
// This and the searches: Error(usage) where sizes disagree, a number is not finite or a scheme is none for its place;
// Error(unsupported) where a scheme cannot code rows of `cols` values.
double smoothing_loss(const SmoothingProblem& problem, std::span<const float> scales, ThreadPool& pool);

// SmoothQuant (Xiao et al. 2022, eq. 4): s = amax^alpha / wmax^(1 - alpha) with wmax the largest |w| of the column over
// all consumers, at least 1e-5. Channels that are never active get 1. Alpha in [0, 1]. Nothing is searched: the loss
// can be larger than identity_loss.
SmoothingResult smooth_quant(const SmoothingProblem& problem, double alpha, ThreadPool& pool);

struct PiecewiseOptions {
  int pieces = 3;             // K, PaddleNLP's smooth_k_piece
  bool search_pieces = true;  // k = 1 .. K, else K alone
  double alpha_min = 0.2, alpha_max = 0.8, alpha_step = 0.05;
  double scale_min = 1.0, scale_max = 5.0, scale_step = 0.5;
  int sweeps = 4;  // at most so many visits of each piece
  // Candidates are compared on at most about so many rows of W, spread evenly over all consumers (0: on all). What is
  // returned is chosen on all rows.
  std::int64_t compared_rows = 1024;
  std::uint64_t seed = 0;  // of k-means++
};

// PaddleSlim's piecewise search (PiecewiseSearchSmooth, "PSS") as it is described, extended to several consumers: the
// active channels are cut into k pieces by 1-D k-means of log amax; piece by piece, the largest channels first and all
// others held, SmoothQuant's formula is tried with every alpha of its range, then every constant of its range, and the
// best one stays; this is repeated until no piece gains. Every k starts from the better of no smoothing and SmoothQuant
// with alpha 0.5, never from what another k found. Both ends of a range are tried, nothing beyond. Of these two starts
// and the outcome of each k the one with the smallest loss is returned, so it is never worse than either start.
SmoothingResult piecewise_search(const SmoothingProblem& problem, const PiecewiseOptions& options, ThreadPool& pool);

// The scales of AWQ (Lin et al. 2023): s = mean_abs^r, at least 1e-4, divided by sqrt(largest s * smallest s) of the
// active channels; r = 0, 1/grid, .., 1 (r = 0 is no smoothing). Made for weights alone, but judged like all others.
SmoothingResult awq_search(const SmoothingProblem& problem, int grid, ThreadPool& pool);

// The shift of Outlier Suppression+ (Wei et al. 2023): the middle z = (low + high) / 2 of each channel, for
// x W^T + b = (x - z) W^T + (b + z W^T). `low` and `high` are [cols] of all calibration data.
std::vector<float> shift_of(std::span<const float> low, std::span<const float> high);

namespace smoothing_detail {  // for the tests

// low, low + step, ... and high: every value within [low, high], both ends among them.
std::vector<double> search_grid(double low, double high, double step);

// 1-D k-means (k-means++ starts, best of several): the piece of each value, 0 the one of the largest values; fewer than
// k pieces where there are fewer distinct values. Not empty; k >= 1.
std::vector<int> cut_into_pieces(std::span<const double> values, int k, std::uint64_t seed);

}  // namespace smoothing_detail

}  // namespace halftone
