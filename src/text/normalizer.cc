#include "text/normalizer.h"

#include <utf8proc.h>

#include <cstddef>
#include <cstdlib>
#include <utility>

#include "base/error.h"
#include "text/regex.h"
#include "text/unicode.h"

namespace halftone {
namespace {

bool is_ascii(std::string_view text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  }
  return true;
}

class UnicodeFormStep : public NormalizerStep {
 public:
  explicit UnicodeFormStep(UnicodeForm form) {
    int options = UTF8PROC_STABLE;
    options |= form == UnicodeForm::nfc || form == UnicodeForm::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
    if (form == UnicodeForm::nfkc || form == UnicodeForm::nfkd) options |= UTF8PROC_COMPAT;
    options_ = static_cast<utf8proc_option_t>(options);
  }
  void apply(std::string& text) const override {
    if (is_ascii(text)) return;
    std::string out;
    out.reserve(text.size());
    for_each_stretch(text, [&](std::string_view stretch, bool valid) {
      if (!valid) {
        out += stretch;
        return;
      }
      utf8proc_uint8_t* mapped = nullptr;
      const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(stretch.data()),
                                                 static_cast<utf8proc_ssize_t>(stretch.size()), &mapped, options_);
      if (size < 0) fail(ErrorKind::resources, "cannot normalize text: {}", utf8proc_errmsg(size));
      out.append(reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(size));
      std::free(mapped);
    });
    text.swap(out);
  }

 private:
  utf8proc_option_t options_ = UTF8PROC_STABLE;
};

class PrependStep : public NormalizerStep {
 public:
  explicit PrependStep(std::string_view prefix) : prefix_(prefix) {}
  void apply(std::string& text) const override {
    if (!text.empty()) text.insert(0, prefix_);
  }

 private:
  std::string prefix_;
};

class ReplaceStep : public NormalizerStep {
 public:
  ReplaceStep(std::string_view from, std::string_view to) : from_(from), to_(to) {}
  void apply(std::string& text) const override {
    if (from_.empty()) return;
    std::size_t found = text.find(from_);
    if (found == std::string::npos) return;
    std::string out;
    out.reserve(text.size() + text.size() / 2);
    std::size_t last = 0;
    for (; found != std::string::npos; found = text.find(from_, last)) {
      out.append(text, last, found - last);
      out += to_;
      last = found + from_.size();
    }
    out.append(text, last, std::string::npos);
    text.swap(out);
  }

 private:
  std::string from_, to_;
};

class ReplaceRegexStep : public NormalizerStep {
 public:
  ReplaceRegexStep(std::string_view pattern, std::string_view to) : regex_(pattern), to_(to) {}
  void apply(std::string& text) const override {
    std::vector<TextRange> matches;
    RegexMatcher(regex_).find_all(text, matches);
    if (matches.empty()) return;
    std::string out;
    std::size_t last = 0;
    for (const TextRange& m : matches) {
      out.append(text, last, m.begin - last);
      out += to_;
      last = m.end;
    }
    out.append(text, last, std::string::npos);
    text.swap(out);
  }

 private:
  Regex regex_;
  std::string to_;
};

class LowercaseStep : public NormalizerStep {
 public:
  void apply(std::string& text) const override {
    std::string out;
    out.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
      const Utf8Step step = read_utf8(text, at);
      if (!step.valid) {
        out.append(text, at, step.size);
      } else if (step.value == 0x130) {
        out += "i\u0307";  // the only character whose full lower case is two characters (SpecialCasing.txt)
      } else {
        append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(step.value))));
      }
      at += step.size;
    }
    text.swap(out);
  }
};

class StripStep : public NormalizerStep {
 public:
  StripStep(bool left, bool right) : left_(left), right_(right) {}
  void apply(std::string& text) const override {
    std::size_t begin = 0, end = 0;
    bool seen = false;
    for (std::size_t at = 0; at < text.size();) {
      const Utf8Step step = read_utf8(text, at);
      if (!step.valid || !is_white_space(step.value)) {
        if (!seen) begin = at;
        seen = true;
        end = at + step.size;
      }
      at += step.size;
    }
    if (!seen) begin = end = text.size();
    if (!left_) begin = 0;
    if (!right_) end = text.size();
    text = begin < end ? text.substr(begin, end - begin) : std::string();
  }

 private:
  bool left_, right_;
};

}  // namespace

std::unique_ptr<NormalizerStep> unicode_form(UnicodeForm form) {
  return std::make_unique<UnicodeFormStep>(form);
}

std::unique_ptr<NormalizerStep> prepend_text(std::string_view text) {
  return std::make_unique<PrependStep>(text);
}

std::unique_ptr<NormalizerStep> replace_text(std::string_view from, std::string_view to) {
  return std::make_unique<ReplaceStep>(from, to);
}

std::unique_ptr<NormalizerStep> replace_regex(std::string_view pattern, std::string_view to) {
  return std::make_unique<ReplaceRegexStep>(pattern, to);
}

std::unique_ptr<NormalizerStep> lowercase() {
  return std::make_unique<LowercaseStep>();
}

std::unique_ptr<NormalizerStep> strip_white_space(bool left, bool right) {
  return std::make_unique<StripStep>(left, right);
}

void run_normalizer(const Normalizer& steps, std::string& text) {
  for (const auto& step : steps) step->apply(text);
}

}  // namespace halftone
