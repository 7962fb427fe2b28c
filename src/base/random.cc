#include "base/random.h"

#include <cmath>
#include <numbers>

namespace halftone {
namespace {

// Constants of Philox4x32 (Salmon et al. 2011, section 4.2).
constexpr std::uint32_t kMultiplier0 = 0xD2511F53U, kMultiplier1 = 0xCD9E8D57U;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9U, kWeyl1 = 0xBB67AE85U;

}  // namespace

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{kMultiplier0} * counter[0];
    const std::uint64_t product1 = std::uint64_t{kMultiplier1} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

std::uint32_t CounterRng::bits_at(std::uint64_t index) const {
  const std::uint64_t block = index / 4;
  const auto words = philox4x32({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                                 static_cast<std::uint32_t>(stream_), static_cast<std::uint32_t>(stream_ >> 32)},
                                {static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32)});
  return words[index % 4];
}

float CounterRng::next_uniform() { return static_cast<float>(next_bits() >> 8) * 0x1p-24F; }

double CounterRng::next_uniform64() {
  const std::uint64_t high = next_bits(), low = next_bits();
  return static_cast<double>((high << 32 | low) >> 11) * 0x1p-53;
}

float CounterRng::next_normal() {
  const double radius = std::sqrt(-2.0 * std::log((static_cast<double>(next_bits()) + 0.5) * 0x1p-32));
  const double angle = 2.0 * std::numbers::pi * (static_cast<double>(next_bits()) * 0x1p-32);
  return static_cast<float>(radius * std::cos(angle));
}

}  // namespace halftone
