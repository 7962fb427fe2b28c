// SHA-256 (FIPS 180-4), for fingerprints of downloads and golden digests.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace halftone {

class Sha256 {
 public:
  void update(std::span<const std::byte> bytes);
  std::array<std::uint8_t, 32> finish();  // call once, at the end

 private:
  void block(const std::byte* data);

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> held_{};
  std::size_t held_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;
};

std::string sha256_hex(std::span<const std::byte> bytes);  // 64 lower-case hexadecimal digits

}  // namespace halftone
