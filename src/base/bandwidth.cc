#include "base/bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "base/huge_memory.h"

namespace halftone {
namespace {

constexpr std::size_t kBytes = std::size_t{256} << 20;
constexpr int kPasses = 8;

std::uint64_t read_all(const std::uint64_t* data, std::size_t words) {
#if defined(__x86_64__)
  const auto* at = reinterpret_cast<const __m128i*>(data);
  __m128i a = _mm_setzero_si128(), b = a, c = a, d = a;
  for (std::size_t i = 0; i + 4 <= words / 2; i += 4) {
    a = _mm_or_si128(a, _mm_load_si128(at + i));
    b = _mm_or_si128(b, _mm_load_si128(at + i + 1));
    c = _mm_or_si128(c, _mm_load_si128(at + i + 2));
    d = _mm_or_si128(d, _mm_load_si128(at + i + 3));
  }
  a = _mm_or_si128(_mm_or_si128(a, b), _mm_or_si128(c, d));
  return static_cast<std::uint64_t>(_mm_cvtsi128_si64(a));
#else
  std::uint64_t a = 0, b = 0;
  for (std::size_t i = 0; i + 2 <= words; i += 2) {
    a |= data[i];
    b |= data[i + 1];
  }
  return a | b;
#endif
}

}  // namespace

double measure_read_bandwidth(ThreadPool& pool) {
  const std::size_t words = kBytes / 8, threads = static_cast<std::size_t>(pool.size());
  const std::shared_ptr<std::byte[]> buffer = allocate_huge(kBytes);  // as the weights lie
  auto* lines = reinterpret_cast<std::uint64_t*>(buffer.get());
  for (std::size_t i = 0; i < words; i += 8) lines[i] = i;
  const std::uint64_t* data = lines;
  std::atomic<std::uint64_t> sink{0};
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    pool.run(static_cast<std::int64_t>(threads), [&](std::int64_t task, int) {
      const std::size_t share = words / threads / 8 * 8;
      sink |= read_all(data + static_cast<std::size_t>(task) * share, share);
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, static_cast<double>(words / threads / 8 * 8 * threads * 8) / seconds);
  }
  return best;
}

}  // namespace halftone
