// What both readers need to say: names that may hold any byte, and files that are not what their name says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace halftone {

// A name from a file made fit for one line of a message: control and non-UTF-8 bytes as \xNN, at most 120 characters.
std::string printable(std::string_view name);

// The first byte at which `text` stops being UTF-8 (Unicode 15, section 3.9, table 3-7); nullopt if all of it is.
std::optional<std::size_t> first_invalid_utf8(std::string_view text);

// a * b and a + b, or nullopt if the result does not fit 64 bits.
std::optional<std::uint64_t> checked_multiply(std::uint64_t a, std::uint64_t b);
std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b);

// Error(bad_input) if the content is empty, a Git LFS pointer (its size is named), a web page, or a checkpoint of
// another kind than `expected` ("safetensors", "GGUF"); otherwise nothing.
void refuse_lookalike(const std::filesystem::path& path, std::span<const std::byte> content, std::string_view expected);

}  // namespace halftone
