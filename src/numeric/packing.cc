#include "numeric/packing.h"

#include "base/error.h"

namespace halftone {

void pack_bits(std::span<const std::uint8_t> codes, int bits, std::span<std::byte> packed) {
  HT_CHECK(bits >= 1 && bits <= 8 && packed.size() == (codes.size() * static_cast<std::size_t>(bits) + 7) / 8);
  const std::uint32_t mask = (1U << bits) - 1;
  std::uint32_t held = 0;
  int count = 0;
  std::size_t at = 0;
  for (const std::uint8_t code : codes) {
    held |= (code & mask) << count;
    for (count += bits; count >= 8; count -= 8) {
      packed[at++] = static_cast<std::byte>(held);
      held >>= 8;
    }
  }
  if (count > 0) packed[at] = static_cast<std::byte>(held);
}

void unpack_bits(std::span<const std::byte> packed, int bits, std::span<std::uint8_t> codes) {
  HT_CHECK(bits >= 1 && bits <= 8 && packed.size() == (codes.size() * static_cast<std::size_t>(bits) + 7) / 8);
  const std::uint32_t mask = (1U << bits) - 1;
  std::uint32_t held = 0;
  int count = 0;
  std::size_t at = 0;
  for (std::uint8_t& code : codes) {
    if (count < bits) {
      held |= static_cast<std::uint32_t>(packed[at++]) << count;
      count += 8;
    }
    code = static_cast<std::uint8_t>(held & mask);
    held >>= bits;
    count -= bits;
  }
}

void pack_padded32(std::span<const std::uint8_t> codes, int bits, std::span<std::uint32_t> words) {
  HT_CHECK(bits >= 1 && bits <= 8);
  const std::size_t each = 32 / static_cast<std::size_t>(bits);
  HT_CHECK(words.size() == (codes.size() + each - 1) / each);
  for (std::uint32_t& word : words) word = 0;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    words[i / each] |= (codes[i] & ((1U << bits) - 1)) << (i % each * static_cast<std::size_t>(bits));
  }
}

void unpack_padded32(std::span<const std::uint32_t> words, int bits, std::span<std::uint8_t> codes) {
  HT_CHECK(bits >= 1 && bits <= 8);
  const std::size_t each = 32 / static_cast<std::size_t>(bits);
  HT_CHECK(words.size() == (codes.size() + each - 1) / each);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    codes[i] =
        static_cast<std::uint8_t>(words[i / each] >> (i % each * static_cast<std::size_t>(bits)) & ((1U << bits) - 1));
  }
}

}  // namespace halftone
