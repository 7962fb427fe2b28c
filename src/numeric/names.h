// Names that people type: compared without case, and the near ones named when a word is unknown.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace halftone {

std::string lower_case(std::string_view text);                      // ASCII
std::size_t edit_distance(std::string_view a, std::string_view b);  // Levenshtein
// Up to `count` of the names, nearest first, none further than half of the word's letters.
std::vector<std::string> near_names(std::string_view word, const std::vector<std::string>& names, std::size_t count);

}  // namespace halftone
