#include "text/pretokenizer.h"

#include <array>
#include <cstddef>
#include <utility>

#include "base/error.h"
#include "text/unicode.h"

namespace halftone {

const std::string_view kPatternGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const std::string_view kPatternLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kPatternQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kPatternDeepSeekNumbers = R"(\p{N}{1,3})";
const std::string_view kPatternDeepSeekCjk = "[一-龥\u3040-ゟ゠-ヿ]+";
const std::string_view kPatternDeepSeekMain =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

// Turns matches into pieces by HF's five behaviours. `matches` are ordered and do not overlap.
void cut(const PieceList::Piece& piece, const std::vector<TextRange>& matches, SplitBehavior behavior, bool invert,
         std::vector<PieceList::Piece>& out) {
  struct Part {
    std::size_t begin, end;
    bool match;
  };
  const std::string_view text = piece.text;
  const auto emit = [&](std::size_t begin, std::size_t end) {
    if (end > begin) out.push_back({text.substr(begin, end - begin), piece.at_start && begin == 0});
  };
  if (matches.empty()) {
    if (!(invert && behavior == SplitBehavior::removed)) emit(0, text.size());
    return;
  }
  if (behavior == SplitBehavior::isolated) {
    std::size_t last = 0;
    for (const TextRange& m : matches) {
      emit(last, m.begin);
      emit(m.begin, m.end);
      last = m.end;
    }
    emit(last, text.size());
    return;
  }
  std::vector<Part> parts;
  std::size_t last = 0;
  for (const TextRange& m : matches) {
    if (m.begin > last) parts.push_back({last, m.begin, invert});
    parts.push_back({m.begin, m.end, !invert});
    last = m.end;
  }
  if (last < text.size()) parts.push_back({last, text.size(), invert});

  std::vector<Part> joined;
  switch (behavior) {
    case SplitBehavior::removed:
      for (const Part& part : parts) {
        if (!part.match) joined.push_back(part);
      }
      break;
    case SplitBehavior::contiguous:
      for (const Part& part : parts) {
        if (!joined.empty() && joined.back().match == part.match) {
          joined.back().end = part.end;
        } else {
          joined.push_back(part);
        }
      }
      break;
    case SplitBehavior::merged_with_previous: {
      bool previous_match = false;
      for (const Part& part : parts) {
        if (part.match && !previous_match && !joined.empty()) {
          joined.back().end = part.end;
        } else {
          joined.push_back(part);
        }
        previous_match = part.match;
      }
      break;
    }
    case SplitBehavior::merged_with_next: {
      bool next_match = false;
      for (std::size_t i = parts.size(); i-- > 0;) {
        const Part& part = parts[i];
        if (part.match && !next_match && !joined.empty()) {
          joined.back().begin = part.begin;
        } else {
          joined.push_back(part);
        }
        next_match = part.match;
      }
      std::vector<Part> forward(joined.rbegin(), joined.rend());
      joined.swap(forward);
      break;
    }
    case SplitBehavior::isolated:
      break;
  }
  for (const Part& part : joined) emit(part.begin, part.end);
}

class RegexSplit : public PreTokenizerStep {
 public:
  RegexSplit(std::string_view pattern, SplitBehavior behavior, bool invert)
      : regex_(pattern), behavior_(behavior), invert_(invert) {}
  void apply(PieceList& list) const override {
    RegexMatcher matcher(regex_);
    std::vector<PieceList::Piece> out;
    out.reserve(list.pieces.size());
    std::vector<TextRange> matches;
    for (const PieceList::Piece& piece : list.pieces) {
      matches.clear();
      matcher.find_all(piece.text, matches);
      cut(piece, matches, behavior_, invert_, out);
    }
    list.pieces.swap(out);
  }

 private:
  Regex regex_;
  SplitBehavior behavior_;
  bool invert_;
};

class ClassSplit : public PreTokenizerStep {
 public:
  ClassSplit(std::function<bool(char32_t)> is_member, SplitBehavior behavior)
      : is_member_(std::move(is_member)), behavior_(behavior) {}
  void apply(PieceList& list) const override {
    std::vector<PieceList::Piece> out;
    out.reserve(list.pieces.size());
    std::vector<TextRange> matches;
    for (const PieceList::Piece& piece : list.pieces) {
      matches.clear();
      for (std::size_t at = 0; at < piece.text.size();) {
        const Utf8Step step = read_utf8(piece.text, at);
        if (step.valid && is_member_(step.value)) matches.push_back({at, at + step.size});
        at += step.size;
      }
      cut(piece, matches, behavior_, false, out);
    }
    list.pieces.swap(out);
  }

 private:
  std::function<bool(char32_t)> is_member_;
  SplitBehavior behavior_;
};

class Metaspace : public PreTokenizerStep {
 public:
  Metaspace(std::string_view replacement, PrependScheme scheme, bool split)
      : replacement_(replacement), scheme_(scheme), split_(split) {}
  void apply(PieceList& list) const override {
    std::vector<PieceList::Piece> out;
    for (const PieceList::Piece& piece : list.pieces) {
      if (piece.text.empty()) continue;
      std::string changed;
      changed.reserve(piece.text.size() + 8);
      const bool prepend = scheme_ == PrependScheme::always || (scheme_ == PrependScheme::first && piece.at_start);
      if (prepend && !piece.text.starts_with(' ') && !piece.text.starts_with(replacement_)) changed += replacement_;
      for (const char c : piece.text) {
        if (c == ' ') {
          changed += replacement_;
        } else {
          changed += c;
        }
      }
      const PieceList::Piece whole{list.storage.emplace_back(std::move(changed)), piece.at_start};
      if (!split_) {
        out.push_back(whole);
        continue;
      }
      std::vector<TextRange> matches;
      for (std::size_t at = whole.text.find(replacement_); at != std::string_view::npos;
           at = whole.text.find(replacement_, at + replacement_.size())) {
        matches.push_back({at, at + replacement_.size()});
      }
      cut(whole, matches, SplitBehavior::merged_with_next, false, out);
    }
    list.pieces.swap(out);
  }

 private:
  std::string replacement_;
  PrependScheme scheme_;
  bool split_;
};

class PrefixSpace : public PreTokenizerStep {
 public:
  void apply(PieceList& list) const override {
    for (PieceList::Piece& piece : list.pieces) {
      if (piece.text.starts_with(' ')) continue;
      piece.text = list.storage.emplace_back(" " + std::string(piece.text));
    }
  }
};

struct Name {
  std::string_view name;
  PreTokenizerFamily family;
};
// "default" is what converters write when they know no better; its vocabulary is GPT-2's in practice.
constexpr std::array<Name, 19> kNames{{
    {"gpt-2", PreTokenizerFamily::gpt2},
    {"default", PreTokenizerFamily::gpt2},
    {"", PreTokenizerFamily::gpt2},
    {"phi-2", PreTokenizerFamily::gpt2},
    {"smollm", PreTokenizerFamily::smollm},
    {"starcoder", PreTokenizerFamily::smollm},
    {"refact", PreTokenizerFamily::smollm},
    {"command-r", PreTokenizerFamily::smollm},
    {"codeshell", PreTokenizerFamily::smollm},
    {"exaone", PreTokenizerFamily::smollm},
    {"minerva-7b", PreTokenizerFamily::smollm},
    {"llama-bpe", PreTokenizerFamily::llama3},
    {"llama3", PreTokenizerFamily::llama3},
    {"llama-v3", PreTokenizerFamily::llama3},
    {"falcon3", PreTokenizerFamily::llama3},
    {"qwen2", PreTokenizerFamily::qwen2},
    {"deepseek-r1-qwen", PreTokenizerFamily::qwen2},
    {"deepseek-v3", PreTokenizerFamily::deepseek3},
    {"hunyuan-dense", PreTokenizerFamily::deepseek3},
}};

}  // namespace

std::unique_ptr<PreTokenizerStep> split_by_regex(std::string_view pattern, SplitBehavior behavior, bool invert) {
  return std::make_unique<RegexSplit>(pattern, behavior, invert);
}

std::unique_ptr<PreTokenizerStep> split_by_class(bool (*is_member)(char32_t), SplitBehavior behavior) {
  return std::make_unique<ClassSplit>(is_member, behavior);
}

std::unique_ptr<PreTokenizerStep> split_by_character(char32_t character, SplitBehavior behavior) {
  return std::make_unique<ClassSplit>([character](char32_t c) { return c == character; }, behavior);
}

std::unique_ptr<PreTokenizerStep> metaspace(std::string_view replacement, PrependScheme scheme, bool split) {
  HT_CHECK(!replacement.empty());
  return std::make_unique<Metaspace>(replacement, scheme, split);
}

std::unique_ptr<PreTokenizerStep> prefix_space() {
  return std::make_unique<PrefixSpace>();
}

std::optional<PreTokenizerFamily> pretokenizer_family(std::string_view gguf_name) {
  for (const Name& entry : kNames) {
    if (entry.name == gguf_name) return entry.family;
  }
  return std::nullopt;
}

std::string known_pretokenizers() {
  std::string out;
  for (const Name& entry : kNames) {
    if (entry.name.empty()) continue;
    if (!out.empty()) out += ", ";
    out += entry.name;
  }
  return out;
}

PreTokenizer make_pretokenizer(PreTokenizerFamily family) {
  PreTokenizer steps;
  const auto isolate = [&](std::string_view pattern) {
    steps.push_back(split_by_regex(pattern, SplitBehavior::isolated));
  };
  switch (family) {
    case PreTokenizerFamily::gpt2:
      isolate(kPatternGpt2);
      break;
    case PreTokenizerFamily::smollm:
      steps.push_back(split_by_class(is_number, SplitBehavior::isolated));
      isolate(kPatternGpt2);
      break;
    case PreTokenizerFamily::llama3:
      isolate(kPatternLlama3);
      break;
    case PreTokenizerFamily::qwen2:
      isolate(kPatternQwen2);
      break;
    case PreTokenizerFamily::deepseek3:
      isolate(kPatternDeepSeekNumbers);
      isolate(kPatternDeepSeekCjk);
      isolate(kPatternDeepSeekMain);
      break;
  }
  return steps;
}

void run_pretokenizer(const PreTokenizer& steps, PieceList& list) {
  for (const auto& step : steps) step->apply(list);
}

}  // namespace halftone
