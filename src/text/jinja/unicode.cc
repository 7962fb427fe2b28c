#include "text/jinja/unicode.h"

#include <string.h>  // memmem
#include <utf8proc.h>

#include <algorithm>

namespace halftone::jinja {

CodePoint decode_at(std::string_view text, std::size_t at) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at;
  if (bytes[0] < 0x80) return {bytes[0], 1};
  utf8proc_int32_t value = -1;
  const auto rest = static_cast<utf8proc_ssize_t>(std::min<std::size_t>(text.size() - at, 4));
  const auto used = utf8proc_iterate(bytes, rest, &value);
  if (used <= 0 || value < 0) return {-1, 1};
  return {value, static_cast<std::size_t>(used)};
}

CodePoint decode_before(std::string_view text, std::size_t end) {
  for (std::size_t back = 1; back <= 4 && back <= end; ++back) {
    const auto byte = static_cast<unsigned char>(text[end - back]);
    if ((byte & 0xC0) == 0x80) continue;
    const CodePoint found = decode_at(text.substr(0, end), end - back);
    if (found.size == back) return found;
    break;
  }
  return {-1, 1};
}

void append_utf8(std::string& out, std::int32_t code_point) {
  utf8proc_uint8_t buffer[4];
  const auto size = utf8proc_encode_char(code_point, buffer);
  out.append(reinterpret_cast<const char*>(buffer), static_cast<std::size_t>(size));
}

std::int64_t count_code_points(std::string_view text) {
  std::int64_t count = 0;
  for (std::size_t at = 0; at < text.size(); at += decode_at(text, at).size) ++count;
  return count;
}

std::size_t find_bytes(std::string_view text, std::string_view needle, std::size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (needle.empty()) return from;
  const void* found = memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

bool is_space(std::int32_t c) {
  if (c < 0) return false;
  if ((c >= 9 && c <= 13) || (c >= 28 && c <= 32)) return true;
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_line_end(std::int32_t c) {
  return (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool is_printable(std::int32_t c) {
  if (c < 0) return false;
  if (c == ' ') return true;
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool is_upper(std::int32_t c) {
  return c >= 0 && utf8proc_category(c) == UTF8PROC_CATEGORY_LU;
}
bool is_lower(std::int32_t c) {
  return c >= 0 && utf8proc_category(c) == UTF8PROC_CATEGORY_LL;
}
bool is_digit(std::int32_t c) {
  return c >= 0 && utf8proc_category(c) == UTF8PROC_CATEGORY_ND;
}
bool is_cased(std::int32_t c) {
  return is_upper(c) || is_lower(c) || (c >= 0 && utf8proc_category(c) == UTF8PROC_CATEGORY_LT);
}

bool is_alpha(std::int32_t c) {
  if (c < 0) return false;
  const auto category = utf8proc_category(c);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

void append_case(std::string& out, std::int32_t c, Case to) {
  // The characters whose upper case is longer than one character (Unicode SpecialCasing.txt) that occur in ordinary
  // text.
  struct Special {
    std::int32_t lower;
    const char* upper;
    const char* title;
  };
  static constexpr Special kSpecial[] = {{0xDF, "SS", "Ss"},     {0x149, "\u02BCN", "\u02BCN"}, {0xFB00, "FF", "Ff"},
                                         {0xFB01, "FI", "Fi"},   {0xFB02, "FL", "Fl"},          {0xFB03, "FFI", "Ffi"},
                                         {0xFB04, "FFL", "Ffl"}, {0xFB05, "ST", "St"},          {0xFB06, "ST", "St"}};
  if (to == Case::lower) {
    if (c == 0x130) {
      out += "i\u0307";
      return;
    }
    return append_utf8(out, utf8proc_tolower(c));
  }
  for (const Special& special : kSpecial) {
    if (special.lower == c) {
      out += to == Case::upper ? special.upper : special.title;
      return;
    }
  }
  append_utf8(out, to == Case::upper ? utf8proc_toupper(c) : utf8proc_totitle(c));
}

namespace {

// A capital sigma at the end of a word becomes the final form (Unicode 3.13, Final_Sigma).
bool final_sigma(std::string_view text, std::size_t at, std::size_t after) {
  if (at == 0 || !is_cased(decode_before(text, at).value)) return false;
  return after >= text.size() || !is_cased(decode_at(text, after).value);
}

void append_changed(std::string& out, std::string_view text, std::size_t at, const CodePoint& point, Case to) {
  if (point.value < 0) {
    out += text[at];
  } else if (to == Case::lower && point.value == 0x3A3 && final_sigma(text, at, at + point.size)) {
    append_utf8(out, 0x3C2);
  } else {
    append_case(out, point.value, to);
  }
}

}  // namespace

std::string change_case(std::string_view text, Case to) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = decode_at(text, at);
    append_changed(out, text, at, point, to);
    at += point.size;
  }
  return out;
}

std::string capitalize(std::string_view text) {
  if (text.empty()) return {};
  std::string out;
  const CodePoint first = decode_at(text, 0);
  append_changed(out, text, 0, first, Case::title);
  for (std::size_t at = first.size; at < text.size();) {
    const CodePoint point = decode_at(text, at);
    append_changed(out, text, at, point, Case::lower);
    at += point.size;
  }
  return out;
}

std::string title_words(std::string_view text) {
  std::string out;
  bool inside = false;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = decode_at(text, at);
    append_changed(out, text, at, point, inside ? Case::lower : Case::title);
    inside = is_cased(point.value);
    at += point.size;
  }
  return out;
}

}  // namespace halftone::jinja
