// What goes wrong because of users, files or the system is an Error; a broken promise inside Halftone is an HT_CHECK.
// The library never prints and never exits: the command line turns an Error into one line and an exit code.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace halftone {

// The value of each kind is the exit code of the command line.
enum class ErrorKind {
  usage = 2,         // a wrong flag, scheme or name
  bad_input = 3,     // a file that is not what it says
  unsupported = 4,   // sound input that Halftone cannot handle
  resources = 5,     // memory, disk, permissions
  quality_gate = 6,  // the result is worse than the gate allows
  interrupted = 130  // stopped by the user; a second run resumes
};

// One sentence that names the file, tensor or field, and says what to do.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }
  int exit_code() const { return static_cast<int>(kind_); }

 private:
  ErrorKind kind_;
};

template <class... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}

// Thrown by HT_CHECK; a bug in Halftone, never the fault of input.
class CheckFailed : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void check_failed(const char* file, int line, const char* expression);

#define HT_CHECK(condition) \
  (static_cast<bool>(condition) ? void(0) : ::halftone::check_failed(__FILE__, __LINE__, #condition))

}  // namespace halftone
