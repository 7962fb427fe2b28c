// What the benchmarks measure with.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace halftone::cli {

// The upper median; `values` must not be empty.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

template <class F>
double seconds_of(F&& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace halftone::cli
