// For tests only: where the shared reference files are, and folders that vanish.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace halftone {

inline std::filesystem::path shared_folder() {
  if (const char* set = std::getenv("HALFTONE_SHARED")) return set;
#ifdef HALFTONE_SOURCE_DIR
  return std::filesystem::path(HALFTONE_SOURCE_DIR) / ".." / "shared";
#else
  return "../shared";
#endif
}

inline bool have_shared() { return std::filesystem::exists(shared_folder() / "golden" / "README.md"); }

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "halftone-test-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace halftone
