// Pre-tokenizers: cut text into pieces that the model treats one by one. A chain of steps, as in tokenizer.json.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/regex.h"

namespace halftone {

// Text that is being cut. A piece is a view of the caller's text or of `storage` (where a step changed it).
struct PieceList {
  struct Piece {
    std::string_view text;
    bool at_start = false;  // the piece begins where the whole input begins
  };
  std::vector<Piece> pieces;
  std::deque<std::string> storage;
};

enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };
enum class PrependScheme { never, first, always };

class PreTokenizerStep {
 public:
  virtual ~PreTokenizerStep() = default;
  virtual void apply(PieceList& list) const = 0;
};

using PreTokenizer = std::vector<std::unique_ptr<PreTokenizerStep>>;

// Cuts at the matches of a pattern; `invert` takes what lies between the matches as the matches.
std::unique_ptr<PreTokenizerStep> split_by_regex(std::string_view pattern, SplitBehavior behavior, bool invert = false);
// Cuts at characters of a class, one match a character.
std::unique_ptr<PreTokenizerStep> split_by_class(bool (*is_member)(char32_t), SplitBehavior behavior);
std::unique_ptr<PreTokenizerStep> split_by_character(char32_t character, SplitBehavior behavior);
// " " becomes `replacement`; one is put in front as the scheme says, unless there is one; `split` cuts before each.
std::unique_ptr<PreTokenizerStep> metaspace(std::string_view replacement, PrependScheme scheme, bool split);
// ByteLevel's add_prefix_space: a space in front of every piece that has none.
std::unique_ptr<PreTokenizerStep> prefix_space();

// The published patterns; formats.md 4.2.
extern const std::string_view kPatternGpt2;
extern const std::string_view kPatternLlama3;
extern const std::string_view kPatternQwen2;
extern const std::string_view kPatternDeepSeekNumbers, kPatternDeepSeekCjk, kPatternDeepSeekMain;

// The families of GGUF's tokenizer.ggml.pre; nullopt for a name that is not known.
enum class PreTokenizerFamily { gpt2, smollm, llama3, qwen2, deepseek3 };
std::optional<PreTokenizerFamily> pretokenizer_family(std::string_view gguf_name);
PreTokenizer make_pretokenizer(PreTokenizerFamily family);
// The names that pretokenizer_family knows, for error messages.
std::string known_pretokenizers();

void run_pretokenizer(const PreTokenizer& steps, PieceList& list);

}  // namespace halftone
