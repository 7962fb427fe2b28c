#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/error.h"
#include "text/unicode.h"

namespace halftone {
namespace {

// PCRE2's \s under UCP also takes U+180E, which has lost White_Space in Unicode 6.3.
constexpr std::string_view kWhiteSpaceSet =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";

std::string translate(std::string_view pattern) {
  std::string out;
  bool in_set = false;
  std::size_t set_begin = 0;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      if (next == 's') {
        out += in_set ? std::string(kWhiteSpaceSet) : "[" + std::string(kWhiteSpaceSet) + "]";
      } else if (next == 'S' && !in_set) {
        out += "[^" + std::string(kWhiteSpaceSet) + "]";
      } else {
        out += c;
        out += next;
      }
      continue;
    }
    if (!in_set && c == '[') {
      in_set = true;
      out += c;
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') out += pattern[++i];
      set_begin = i + 1;
      continue;
    }
    if (in_set) {
      const bool posix = c == '[' && i + 1 < pattern.size() && pattern[i + 1] == ':';
      if (posix) {
        const std::size_t end = pattern.find(":]", i + 2);
        if (end != std::string_view::npos) {
          out += pattern.substr(i, end + 2 - i);
          i = end + 1;
          continue;
        }
      }
      if (c == '[' || (c == '&' && i + 1 < pattern.size() && pattern[i + 1] == '&')) {
        fail(ErrorKind::unsupported,
             "the pattern '{}' has a set inside a set, which is not supported: write it as alternatives", pattern);
      }
      if (c == ']' && i != set_begin) in_set = false;
    }
    out += c;
  }
  return out;
}

std::string pcre_message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

struct Regex::Compiled {
  pcre2_code* code = nullptr;
  bool jit = false;
  ~Compiled() { pcre2_code_free(code); }
};

Regex::Regex(std::string_view pattern) : pattern_(pattern), compiled_(std::make_unique<Compiled>()) {
  if (!is_valid_utf8(pattern)) fail(ErrorKind::bad_input, "a pattern of the tokenizer is not valid UTF-8");
  const std::string translated = translate(pattern);
  int code = 0;
  PCRE2_SIZE where = 0;
  compiled_->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK | PCRE2_NEVER_BACKSLASH_C, &code, &where, nullptr);
  if (compiled_->code == nullptr) {
    fail(ErrorKind::unsupported, "the tokenizer's pattern '{}' cannot be compiled: {}", pattern, pcre_message(code));
  }
  compiled_->jit = pcre2_jit_compile(compiled_->code, PCRE2_JIT_COMPLETE) == 0;
}

Regex::~Regex() = default;

std::string escape_regex(std::string_view literal) {
  std::string out;
  for (const char c : literal) {
    if (std::string_view("\\^$.[]|()?*+{}-#&~/").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

struct RegexMatcher::State {
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  ~State() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

RegexMatcher::RegexMatcher(const Regex& regex) : regex_(regex), state_(std::make_unique<State>()) {
  state_->data = pcre2_match_data_create(1, nullptr);
  state_->context = pcre2_match_context_create(nullptr);
  if (state_->data == nullptr || state_->context == nullptr) fail(ErrorKind::resources, "no memory for matching text");
  if (regex_.compiled_->jit) {
    state_->stack = pcre2_jit_stack_create(32 * 1024, 16 * 1024 * 1024, nullptr);
    if (state_->stack != nullptr) pcre2_jit_stack_assign(state_->context, nullptr, state_->stack);
  }
}

RegexMatcher::~RegexMatcher() = default;

void RegexMatcher::find_in_valid(std::string_view text, std::size_t offset, std::vector<TextRange>& matches) {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  std::size_t at = 0;
  while (at < text.size()) {
    int rc = pcre2_match(regex_.compiled_->code, subject, text.size(), at, PCRE2_NO_UTF_CHECK, state_->data,
                         state_->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      rc = pcre2_match(regex_.compiled_->code, subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                       state_->data, state_->context);
    }
    if (rc == PCRE2_ERROR_NOMATCH) return;
    if (rc < 0) {
      fail(ErrorKind::unsupported, "the tokenizer's pattern '{}' cannot be matched against this text: {}",
           regex_.pattern(), pcre_message(rc));
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(state_->data);
    if (range[1] > range[0]) {
      matches.push_back({offset + range[0], offset + range[1]});
      at = range[1];
    } else {
      at = std::max<std::size_t>(range[1], at);
      if (at < text.size()) at += read_utf8(text, at).size;
    }
  }
}

void RegexMatcher::find_all(std::string_view text, std::vector<TextRange>& matches) {
  for_each_stretch(text, [&](std::string_view stretch, bool valid) {
    if (valid) find_in_valid(stretch, static_cast<std::size_t>(stretch.data() - text.data()), matches);
  });
}

}  // namespace halftone
