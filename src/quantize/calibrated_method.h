// A calibrated method improves one matrix, knowing what its inputs look like. Methods work one after the other, in the
// order in which a recipe names them: first those that move the target, then one that rounds, then those that refine.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "quantize/matrix_problem.h"

namespace halftone {

class CalibratedMethod {
 public:
  enum class Place : std::uint8_t { target, rounding, refinement };

  virtual ~CalibratedMethod() = default;
  virtual std::string name() const = 0;
  virtual Place place() const = 0;
  virtual void apply(MatrixProblem& problem, ThreadPool& pool) const = 0;
};

// One file each:
//   gptaq     the target makes up for what the layers before have lost (Li et al. 2025)
//   rtn       round to nearest, scales by the channels' second moments
//   gptq      rounding errors are made up for by the channels that follow (Frantar et al. 2022)
//   quantease cyclic coordinate descent over codes and scales (Behdin et al. 2023)
std::unique_ptr<CalibratedMethod> make_gptaq();
std::unique_ptr<CalibratedMethod> make_weighted_rounding();
std::unique_ptr<CalibratedMethod> make_gptq();
std::unique_ptr<CalibratedMethod> make_quantease();

std::vector<std::string> method_names();
// Before all of them one of "smoothquant", "pss", "awq" may stand (smoothing.h): it moves range between the inputs and
// the weights of the whole model.
std::string smoothing_method(const std::vector<std::string>& names);  // "" if none is named
// The others of a recipe's names. Error(usage): unknown, twice, in an order that makes no sense, none or two that
// round.
std::vector<std::unique_ptr<CalibratedMethod>> make_calibrated_methods(const std::vector<std::string>& names);
// True unless the names ask for plain rounding alone.
bool needs_calibration(const std::vector<std::string>& names);

}  // namespace halftone
