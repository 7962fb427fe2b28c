// A text field of a JSON object, where anything else counts as absent.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace halftone {

inline std::string text_of(const nlohmann::ordered_json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace halftone
