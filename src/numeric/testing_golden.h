// For tests only: the shared golden vectors of number formats.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/testing.h"

#define NEEDS_SHARED() \
  if (!have_shared()) GTEST_SKIP() << "SKIPPED: no shared folder (set HALFTONE_SHARED)"

namespace halftone {

inline nlohmann::json golden(const char* name) {
  std::ifstream in(shared_folder() / "golden" / name);
  return nlohmann::json::parse(in);
}

inline std::uint32_t hex(const std::string& text) { return static_cast<std::uint32_t>(std::stoul(text, nullptr, 16)); }

}  // namespace halftone
