#include "base/progress.h"

#include "base/error.h"

namespace halftone {
namespace {

class Silent final : public Progress {
  void begin(std::string_view, std::uint64_t, std::string_view) override {}
  void advance(std::uint64_t, std::string_view) override {}
  void end() override {}
  void note(std::string_view) override {}
};

}  // namespace

Progress& no_progress() {
  static Silent silent;
  return silent;
}

std::atomic<bool>& interrupt_flag() {
  static std::atomic<bool> flag{false};
  return flag;
}

void throw_if_interrupted() {
  if (interrupt_flag().load(std::memory_order_relaxed)) {
    fail(ErrorKind::interrupted, "interrupted; run the same command again to go on");
  }
}

}  // namespace halftone
