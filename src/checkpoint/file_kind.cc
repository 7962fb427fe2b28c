#include "checkpoint/file_kind.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"

namespace halftone {
namespace {

// Length of the UTF-8 sequence that starts at text[0], 0 if it is not one.
std::size_t sequence_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xC2 && first <= 0xDF   ? 2
                             : first >= 0xE0 && first <= 0xEF ? 3
                             : first >= 0xF0 && first <= 0xF4 ? 4
                                                              : 0;
  if (length == 0 || text.size() < length) return 0;
  // The second byte's range excludes overlong forms, surrogates and values above U+10FFFF.
  const unsigned low = first == 0xE0 ? 0xA0U : first == 0xF0 ? 0x90U : 0x80U;
  const unsigned high = first == 0xED ? 0x9FU : first == 0xF4 ? 0x8FU : 0xBFU;
  if (byte(1) < low || byte(1) > high) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80) return 0;
  }
  return length;
}

bool starts_with(std::string_view text, std::string_view lower_case_prefix) {
  if (text.size() < lower_case_prefix.size()) return false;
  return std::equal(lower_case_prefix.begin(), lower_case_prefix.end(), text.begin(),
                    [](char want, char have) { return std::tolower(static_cast<unsigned char>(have)) == want; });
}

// The number after "size " in a Git LFS pointer; "" if it is missing.
std::string_view pointer_size(std::string_view text) {
  const std::size_t at = text.find("\nsize ");
  if (at == std::string_view::npos) return {};
  std::string_view rest = text.substr(at + 6);
  return rest.substr(0, std::min(rest.find_first_not_of("0123456789"), rest.size()));
}

}  // namespace

std::string printable(std::string_view name) {
  constexpr std::size_t kLimit = 120;
  std::string out;
  while (!name.empty()) {
    if (out.size() >= kLimit) return out + "...";
    const std::size_t length = sequence_length(name);
    const auto first = static_cast<unsigned char>(name[0]);
    if (length == 0 || first < 0x20 || first == 0x7F) {
      out += fmt::format("\\x{:02x}", first);
      name.remove_prefix(1);
    } else {
      out += name.substr(0, length);
      name.remove_prefix(length);
    }
  }
  return out;
}

std::optional<std::size_t> first_invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t length = sequence_length(text.substr(at));
    if (length == 0) return at;
    at += length;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> checked_multiply(std::uint64_t a, std::uint64_t b) {
  std::uint64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
  std::uint64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

void refuse_lookalike(const std::filesystem::path& path, std::span<const std::byte> content,
                      std::string_view expected) {
  const std::string file = path.string();
  if (content.empty()) {
    fail(ErrorKind::bad_input, "{}: the file is empty, not a {} file: download it again", file, expected);
  }
  const std::string_view text(reinterpret_cast<const char*>(content.data()),
                              std::min<std::size_t>(content.size(), 512));
  if (starts_with(text, "version https://git-lfs") || starts_with(text, "version http://git-media")) {
    const std::string_view size = pointer_size(text);
    fail(ErrorKind::bad_input, "{}: this is a Git LFS pointer{}, not the weights: fetch them with 'git lfs pull'", file,
         size.empty() ? std::string() : fmt::format(" to a file of {} bytes", size));
  }
  if (starts_with(text, "<!doctype") || starts_with(text, "<html")) {
    fail(ErrorKind::bad_input, "{}: this is a web page, not a {} file: download it again", file, expected);
  }
  if (text.starts_with("GGUF") && expected != "GGUF") {
    fail(ErrorKind::bad_input, "{}: this is a GGUF file, not a {} file: rename it to .gguf", file, expected);
  }
  // A safetensors header may be 0x...0280 bytes long: its length then begins like a pickle.
  const bool has_json_header = content.size() > 8 && text[8] == '{';
  if (!has_json_header && (text.starts_with("PK\x03\x04") || text.starts_with("\x80\x02"))) {
    fail(ErrorKind::bad_input, "{}: this is a pickled PyTorch file, not a {} file: convert it to safetensors", file,
         expected);
  }
  if (expected == "GGUF" && content.size() > 9 && text[8] == '{' && !text.starts_with("GGUF")) {
    fail(ErrorKind::bad_input, "{}: this looks like a safetensors file, not a GGUF file: rename it to .safetensors",
         file);
  }
}

}  // namespace halftone
