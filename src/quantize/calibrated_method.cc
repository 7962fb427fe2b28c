#include "quantize/calibrated_method.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace halftone {
namespace {

struct Maker {
  std::string_view name;
  std::unique_ptr<CalibratedMethod> (*make)();
};
constexpr std::array kMakers = {Maker{"gptaq", make_gptaq}, Maker{"rtn", make_weighted_rounding},
                                Maker{"gptq", make_gptq}, Maker{"quantease", make_quantease}};

constexpr std::array<std::string_view, 3> kSmoothing = {"smoothquant", "pss", "awq"};

bool is_smoothing(std::string_view name) {
  return std::find(kSmoothing.begin(), kSmoothing.end(), name) != kSmoothing.end();
}

}  // namespace

std::string smoothing_method(const std::vector<std::string>& names) {
  return !names.empty() && is_smoothing(names.front()) ? names.front() : "";
}

std::vector<std::string> method_names() {
  std::vector<std::string> names(kSmoothing.begin(), kSmoothing.end());
  for (const Maker& maker : kMakers) names.emplace_back(maker.name);
  return names;
}

std::vector<std::unique_ptr<CalibratedMethod>> make_calibrated_methods(const std::vector<std::string>& names) {
  std::vector<std::unique_ptr<CalibratedMethod>> methods;
  int rounding = 0;
  for (const std::string& name : names) {
    if (is_smoothing(name)) {
      if (&name == &names.front()) continue;
      fail(ErrorKind::usage, "method '{}' cannot come after '{}': one that smooths comes first, and only one", name,
           *(&name - 1));
    }
    const auto* maker = std::find_if(kMakers.begin(), kMakers.end(), [&](const Maker& m) { return m.name == name; });
    if (maker == kMakers.end()) {
      fail(ErrorKind::usage, "unknown method '{}' (there are: {})", name, fmt::join(method_names(), ", "));
    }
    methods.push_back(maker->make());
    if (std::count(names.begin(), names.end(), name) > 1) fail(ErrorKind::usage, "method '{}' is named twice", name);
    if (methods.size() > 1 && methods.back()->place() < methods[methods.size() - 2]->place()) {
      fail(ErrorKind::usage,
           "method '{}' cannot come after '{}': first those that move the target (gptaq), then one "
           "that rounds (rtn, gptq), then those that refine (quantease)",
           name, methods[methods.size() - 2]->name());
    }
    rounding += methods.back()->place() == CalibratedMethod::Place::rounding ? 1 : 0;
  }
  if (rounding != 1) {
    fail(ErrorKind::usage, "methods [{}]: exactly one that rounds is needed, rtn or gptq", fmt::join(names, ", "));
  }
  return methods;
}

bool needs_calibration(const std::vector<std::string>& names) {
  return names != std::vector<std::string>{"rtn"};
}

}  // namespace halftone
