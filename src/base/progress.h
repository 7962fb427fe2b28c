// How a long job tells where it is. Jobs call it; the command line decides what a person or a machine sees.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

namespace halftone {

class Progress {
 public:
  virtual ~Progress() = default;
  // A stage of `total` units ("tensors", "bytes", "windows"); stages follow one another, they do not nest.
  virtual void begin(std::string_view stage, std::uint64_t total, std::string_view unit) = 0;
  virtual void advance(std::uint64_t units, std::string_view item) = 0;
  virtual void end() = 0;
  virtual void note(std::string_view line) = 0;  // something a person must see: a substitution, a fallback
};

Progress& no_progress();  // takes everything, shows nothing

// Set by SIGINT/SIGTERM in the command line; long loops call throw_if_interrupted() between items.
std::atomic<bool>& interrupt_flag();
void throw_if_interrupted();  // Error(interrupted)

}  // namespace halftone
