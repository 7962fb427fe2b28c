// The byte-level alphabet of GPT-2: every byte has a printable character, so that a vocabulary of text holds raw bytes.
// Bytes 33-126, 161-172 and 174-255 stand for themselves (as Latin-1); the other 68 are U+0100... in order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace halftone {

char32_t byte_level_character(std::uint8_t byte);
std::optional<std::uint8_t> byte_of_character(char32_t character);

std::string to_byte_level(std::string_view bytes);
// nullopt if any character is outside the alphabet (then the text is no byte-level token).
std::optional<std::string> from_byte_level(std::string_view text);

// "<0x0A>" -> 0x0A: the tokens that stand for one byte in SentencePiece-style vocabularies.
std::optional<std::uint8_t> parse_byte_token(std::string_view text);
std::string byte_token(std::uint8_t byte);

}  // namespace halftone
