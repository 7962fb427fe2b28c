// Counter-based random numbers (Philox4x32-10; Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
// The n-th number of a stream depends on (seed, stream, n) alone: the same for any thread count and order of use.
#pragma once

#include <array>
#include <cstdint>

namespace halftone {

// One block of four 32-bit words for a 128-bit counter and a 64-bit key.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

class CounterRng {
 public:
  explicit CounterRng(std::uint64_t seed, std::uint64_t stream = 0) : seed_(seed), stream_(stream) {}

  std::uint32_t bits_at(std::uint64_t index) const;  // the index-th word of the stream
  std::uint32_t next_bits() { return bits_at(index_++); }
  float next_uniform();   // [0, 1), 24 bits
  double next_uniform64();  // [0, 1), 53 bits; two words
  float next_normal();    // mean 0, variance 1 (Box-Muller); two words

 private:
  std::uint64_t seed_, stream_, index_ = 0;
};

}  // namespace halftone
