#include "quantize/method.h"

#include <utility>

#include "base/error.h"

namespace halftone {
namespace {

class RoundToNearest final : public Method {
 public:
  explicit RoundToNearest(std::unique_ptr<ScaleObserver> observer) : observer_(std::move(observer)) {}
  std::string name() const override { return "rtn"; }
  QuantizedTensor apply(const MethodInput& input) const override {
    return quantize_with(*observer_, input.scheme, input.values, input.rows, input.cols, input.whole);
  }

 private:
  std::unique_ptr<ScaleObserver> observer_;
};

}  // namespace

std::vector<std::string> method_names() { return {"rtn"}; }

std::unique_ptr<Method> make_method(std::string_view name, std::string_view observer) {
  if (name == "rtn") return std::make_unique<RoundToNearest>(make_observer(observer));
  fail(ErrorKind::usage, "unknown method '{}' (there is: {})", name, fmt::join(method_names(), ", "));
}

}  // namespace halftone
