// For tests only: where the shared reference files are, folders that vanish, random values, instruction sets to test.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "base/random.h"

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

// Every instruction set, up to the best one written, that this machine can run.
inline std::vector<Isa> runnable_isas(Isa written = Isa::avx512) {
  std::vector<Isa> isas{Isa::scalar};
#ifdef HALFTONE_SIMD
  const Isa best = select_isa(detect_cpu(), std::nullopt, written).isa;
  if (best >= Isa::avx2) isas.push_back(Isa::avx2);
  if (best >= Isa::avx512) isas.push_back(Isa::avx512);
#endif
  return isas;
}

// Seeded values of a normal distribution with standard deviation `size`.
inline std::vector<float> normal_values(std::int64_t n, std::uint64_t seed, float size = 1.0F) {
  CounterRng rng(seed);
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& v : values) v = size * rng.next_normal();
  return values;
}

}  // namespace halftone
