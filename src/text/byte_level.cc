#include "text/byte_level.h"

#include <array>
#include <cstddef>

#include "text/unicode.h"

namespace halftone {
namespace {

constexpr bool stands_for_itself(unsigned byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

struct Alphabet {
  std::array<char32_t, 256> character{};
  std::array<std::int16_t, 0x100 + 68> byte{};
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  for (std::int16_t& b : alphabet.byte) b = -1;
  char32_t next = 0x100;
  for (unsigned b = 0; b < 256; ++b) {
    const char32_t c = stands_for_itself(b) ? static_cast<char32_t>(b) : next++;
    alphabet.character[b] = c;
    alphabet.byte[c] = static_cast<std::int16_t>(b);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();
constexpr std::string_view kHexDigits = "0123456789ABCDEF";

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

char32_t byte_level_character(std::uint8_t byte) {
  return kAlphabet.character[byte];
}

std::optional<std::uint8_t> byte_of_character(char32_t character) {
  if (character >= kAlphabet.byte.size() || kAlphabet.byte[character] < 0) return std::nullopt;
  return static_cast<std::uint8_t>(kAlphabet.byte[character]);
}

std::string to_byte_level(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char c : bytes) append_utf8(out, byte_level_character(static_cast<std::uint8_t>(c)));
  return out;
}

std::optional<std::string> from_byte_level(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = read_utf8(text, at);
    if (!step.valid) return std::nullopt;
    const std::optional<std::uint8_t> byte = byte_of_character(step.value);
    if (!byte) return std::nullopt;
    out.push_back(static_cast<char>(*byte));
    at += step.size;
  }
  return out;
}

std::optional<std::uint8_t> parse_byte_token(std::string_view text) {
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return std::nullopt;
  const int high = hex_value(text[3]), low = hex_value(text[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<std::uint8_t>(high * 16 + low);
}

std::string byte_token(std::uint8_t byte) {
  std::string out = "<0x";
  out.push_back(kHexDigits[byte >> 4]);
  out.push_back(kHexDigits[byte & 15]);
  out.push_back('>');
  return out;
}

}  // namespace halftone
