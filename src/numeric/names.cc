#include "numeric/names.h"

#include <algorithm>
#include <utility>

namespace halftone {

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({change, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

std::vector<std::string> near_names(std::string_view word, const std::vector<std::string>& names, std::size_t count) {
  constexpr std::size_t kLongestWord = 64;  // longer ones are no misspelling
  std::vector<std::pair<std::size_t, std::string>> ranked;
  if (word.size() <= kLongestWord) {
    const std::string wanted = lower_case(word);
    for (const std::string& name : names) {
      const std::size_t distance = edit_distance(wanted, lower_case(name));
      if (distance <= std::max<std::size_t>(1, wanted.size() / 2)) ranked.emplace_back(distance, name);
    }
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> out;
  for (std::size_t i = 0; i < std::min(count, ranked.size()); ++i) out.push_back(ranked[i].second);
  return out;
}

}  // namespace halftone
