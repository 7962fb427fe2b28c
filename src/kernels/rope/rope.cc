#include "kernels/rope/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace halftone {
namespace {

// 0.1 m ln(factor) + 1, and 1 for factors that do not stretch.
double yarn_magnitude(double factor, double m) {
  return factor <= 1.0 ? 1.0 : 0.1 * m * std::log(factor) + 1.0;
}

double yarn_attention_factor(const RopeSpec& spec) {
  if (spec.attention_factor) return *spec.attention_factor;
  if (spec.mscale && spec.mscale_all_dim && *spec.mscale != 0.0 && *spec.mscale_all_dim != 0.0) {
    return yarn_magnitude(spec.factor, *spec.mscale) / yarn_magnitude(spec.factor, *spec.mscale_all_dim);
  }
  return yarn_magnitude(spec.factor, 1.0);
}

void apply_linear(const RopeSpec& spec, std::vector<double>& f) {
  for (double& v : f) v /= spec.factor;
}

// Long wavelengths are stretched, short ones kept, those between blended.
void apply_llama3(const RopeSpec& spec, std::vector<double>& f) {
  const auto context = static_cast<double>(spec.original_context);
  const double longest = context / spec.low_freq_factor, shortest = context / spec.high_freq_factor;
  for (double& v : f) {
    const double wavelength = 2.0 * std::numbers::pi / v;
    if (wavelength > longest) {
      v /= spec.factor;
    } else if (wavelength >= shortest) {
      const double smooth =
          (context / wavelength - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor);
      v *= (1.0 - smooth) / spec.factor + smooth;
    }
  }
}

// Peng et al. 2023: dimensions that turn fewer than beta_slow times within the original context are stretched, those
// that turn more than beta_fast times kept, with a ramp over the dimensions between.
void apply_yarn(const RopeSpec& spec, std::vector<double>& f) {
  const auto dim = static_cast<double>(spec.dim);
  const auto context = static_cast<double>(spec.original_context);
  const auto bound = [&](double turns) {
    return dim * std::log(context / (turns * 2.0 * std::numbers::pi)) / (2.0 * std::log(spec.theta));
  };
  double low = bound(spec.beta_fast), high = bound(spec.beta_slow);
  if (spec.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < f.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    f[i] = f[i] / spec.factor * ramp + f[i] * (1.0 - ramp);
  }
}

}  // namespace

RopeFrequencies rope_frequencies(const RopeSpec& spec) {
  HT_CHECK(spec.dim > 0 && spec.dim % 2 == 0);
  const auto pairs = static_cast<std::size_t>(spec.dim / 2);
  const bool scaled = spec.type != RopeSpec::Type::default_;
  if (!(spec.theta > 0.0) || !std::isfinite(spec.theta)) {
    fail(ErrorKind::bad_input, "rope theta is {}, but must be a positive number", spec.theta);
  }
  if (scaled && (!(spec.factor > 0.0) || !std::isfinite(spec.factor))) {
    fail(ErrorKind::bad_input, "the rope scaling factor is {}, but must be a positive number", spec.factor);
  }
  if ((spec.type == RopeSpec::Type::llama3 || spec.type == RopeSpec::Type::yarn) && spec.original_context <= 0) {
    fail(ErrorKind::bad_input, "original_max_position_embeddings of the rope scaling is {}, but must be positive",
         spec.original_context);
  }
  if (spec.type == RopeSpec::Type::llama3 &&
      !(spec.low_freq_factor > 0.0 && spec.high_freq_factor > spec.low_freq_factor)) {
    fail(ErrorKind::bad_input, "rope scaling llama3 needs 0 < low_freq_factor < high_freq_factor, not {} and {}",
         spec.low_freq_factor, spec.high_freq_factor);
  }
  if (spec.type == RopeSpec::Type::yarn && !(spec.beta_fast > 0.0 && spec.beta_slow > 0.0 && spec.theta > 1.0)) {
    fail(ErrorKind::bad_input, "rope scaling yarn needs beta_fast and beta_slow above 0 and theta above 1");
  }
  if (!spec.divisors.empty() && spec.divisors.size() != pairs) {
    fail(ErrorKind::bad_input, "the rope frequency divisors are {}, but the model rotates {} pairs",
         spec.divisors.size(), pairs);
  }

  std::vector<double> f(pairs);
  for (std::size_t i = 0; i < pairs; ++i) {
    f[i] = std::pow(spec.theta, -2.0 * static_cast<double>(i) / static_cast<double>(spec.dim));
  }
  RopeFrequencies result;
  switch (spec.type) {
    case RopeSpec::Type::default_:
      break;
    case RopeSpec::Type::linear:
      apply_linear(spec, f);
      break;
    case RopeSpec::Type::llama3:
      apply_llama3(spec, f);
      break;
    case RopeSpec::Type::yarn:
      apply_yarn(spec, f);
      result.attention_factor = static_cast<float>(yarn_attention_factor(spec));
      break;
  }
  result.inverse.resize(pairs);
  for (std::size_t i = 0; i < pairs; ++i) {
    if (!spec.divisors.empty()) f[i] /= static_cast<double>(spec.divisors[i]);
    result.inverse[i] = static_cast<float>(f[i]);
  }
  return result;
}

void rope(float* x, std::int64_t rows, std::int64_t heads, std::int64_t head_dim, std::int64_t first_position,
          const RopeFrequencies& frequencies, bool interleaved, ThreadPool& pool) {
  const auto pairs = static_cast<std::int64_t>(frequencies.inverse.size());
  HT_CHECK(2 * pairs <= head_dim);
  // Products and sums are rounded separately (no fused operations), so plain code is bit-identical everywhere.
  const auto rotate = [](float& a, float& b, float c, float s) {
    const float first = a * c - b * s;
    b = b * c + a * s;
    a = first;
  };
  pool.run_ranges(rows, 4, [&](std::int64_t begin, std::int64_t end, int) {
    std::vector<float> cosine(static_cast<std::size_t>(pairs)), sine(static_cast<std::size_t>(pairs));
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::size_t i = 0; i < static_cast<std::size_t>(pairs); ++i) {
        const float angle = static_cast<float>(first_position + r) * frequencies.inverse[i];
        cosine[i] = std::cos(angle) * frequencies.attention_factor;
        sine[i] = std::sin(angle) * frequencies.attention_factor;
      }
      const float* c = cosine.data();
      const float* s = sine.data();
      for (std::int64_t h = 0; h < heads; ++h) {
        float* v = x + (r * heads + h) * head_dim;
        if (interleaved) {
          for (std::int64_t i = 0; i < pairs; ++i) rotate(v[2 * i], v[2 * i + 1], c[i], s[i]);
        } else {
          for (std::int64_t i = 0; i < pairs; ++i) rotate(v[i], v[i + pairs], c[i], s[i]);
        }
      }
    }
  });
}

}  // namespace halftone
