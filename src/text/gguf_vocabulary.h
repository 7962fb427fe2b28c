// What make_tokenizer and tokenizer_files share about GGUF vocabularies.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/bpe.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"

namespace halftone {

inline constexpr std::string_view kSpaceMark = "\u2581";
inline constexpr std::int64_t kMaxTokens = 1 << 24;

// One type a token; those of files without token_type are guessed. Error(bad_input) for wrong counts and values.
std::vector<TokenType> gguf_token_types(const GgufVocabulary& vocabulary);
bool gguf_adds_bos(const GgufVocabulary& vocabulary);
bool gguf_adds_eos(const GgufVocabulary& vocabulary);
PreTokenizerFamily gguf_family(const GgufVocabulary& vocabulary);  // Error(unsupported) for a name that is not known

// "left right", cut at the first space after index 0. Error(bad_input) names the merge.
std::pair<std::string_view, std::string_view> split_merge(std::string_view merge, std::size_t index);
// Error(bad_input) if a part or the result is not a token. Merges into control tokens are left out.
MergeTable read_merges(const std::vector<std::pair<std::string_view, std::string_view>>& merges,
                       const std::vector<TokenType>& types,
                       const std::unordered_map<std::string_view, TokenId>& by_text);

}  // namespace halftone
