// Reading tokenizer.json: its vocabulary and merges (up to half a million entries each) go straight into lists.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer.h"

namespace halftone {

struct TokenizerJson {
  nlohmann::json rest;  // the file without model.vocab and model.merges
  std::vector<std::pair<std::string, TokenId>> vocabulary;
  std::vector<std::pair<std::string, std::string>> merges;
};

// Error(bad_input) with the byte position for what is not JSON, and for entries that cannot be read.
TokenizerJson parse_tokenizer_json(std::string_view text);

}  // namespace halftone
