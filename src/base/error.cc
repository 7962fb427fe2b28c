#include "base/error.h"

namespace halftone {

void check_failed(const char* file, int line, const char* expression) {
  throw CheckFailed(fmt::format("{}:{}: internal check failed: {}", file, line, expression));
}

}  // namespace halftone
