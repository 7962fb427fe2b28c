// Bit layouts of code streams in files. Least significant bits first; see shared/formats.md 3.3.3 and 3.5.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace halftone {

// Dense stream: code i occupies bits [i*bits, (i+1)*bits) of the byte string; packed.size() == ceil(n*bits/8).
// For bits 2, 4, 8 (and per 32 codes for all others) this is also the dense layout of compressed-tensors >= 0.18.
void pack_bits(std::span<const std::uint8_t> codes, int bits, std::span<std::byte> packed);
void unpack_bits(std::span<const std::byte> packed, int bits, std::span<std::uint8_t> codes);

// Padded layout (compressed-tensors <= 0.17.1): floor(32/bits) codes a 32-bit word, the top bits unused.
void pack_padded32(std::span<const std::uint8_t> codes, int bits, std::span<std::uint32_t> words);
void unpack_padded32(std::span<const std::uint32_t> words, int bits, std::span<std::uint8_t> codes);

// AWQ's order of eight 4-bit columns in a word: nibble k holds column awq_order[k].
inline constexpr int awq_order[8] = {0, 2, 4, 6, 1, 3, 5, 7};

}  // namespace halftone
