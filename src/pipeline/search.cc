#include "pipeline/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "base/error.h"
#include "kernels/activation/activation.h"
#include "model/block.h"
#include "model/model.h"
#include "pipeline/stored.h"
#include "quantize/calibrated_method.h"
#include "quantize/matrix_problem.h"

namespace halftone {
namespace {

using Json = nlohmann::ordered_json;

// Some matrices replaced, all else as in the base.
class ReplacedWeights final : public WeightSource {
 public:
  explicit ReplacedWeights(std::shared_ptr<const WeightSource> base) : base_(std::move(base)) {}
  void replace(const std::string& module, QuantizedTensor tensor) { replaced_[module] = std::move(tensor); }
  std::optional<WeightInfo> find(std::string_view module) const override {
    const auto found = replaced_.find(module);
    if (found == replaced_.end()) return base_ ? base_->find(module) : std::nullopt;
    return WeightInfo{std::string(module), found->second.scheme, std::nullopt, found->second.rows, found->second.cols};
  }
  QuantizedTensor rows(const WeightInfo& info, std::int64_t first, std::int64_t count) const override {
    const auto found = replaced_.find(info.module);
    return found == replaced_.end() ? base_->rows(info, first, count) : slice_rows(found->second, first, count);
  }
  std::optional<std::vector<float>> vector(std::string_view name) const override { return base_->vector(name); }

 private:
  std::shared_ptr<const WeightSource> base_;
  std::map<std::string, QuantizedTensor, std::less<>> replaced_;
};

std::vector<float> values_of(const WeightSource& weights, const WeightInfo& info) {
  std::vector<float> values(static_cast<std::size_t>(info.rows * info.cols));
  dequantize_rows(weights.rows(info, 0, info.rows), 0, info.rows, values);
  return values;
}

struct Rounded {
  QuantizedTensor tensor;
  double error = 0;  // weighed by the channels' second moments
};

Rounded rounded(const WeightInfo& info, std::span<const float> values, const Scheme& scheme,
                const std::vector<float>& importance, ThreadPool& pool) {
  const ProblemInputs inputs{std::vector<float>(importance)};
  MatrixProblem problem(info.module, scheme, values, info.rows, inputs);
  make_weighted_rounding()->apply(problem, pool);
  return {problem.solution(), problem.weighted_error(pool)};
}

// As the native layout stores it, zero points and all.
std::uint64_t file_bytes(const std::string& module, const Scheme& scheme, std::int64_t rows, std::int64_t cols) {
  StoredModule stored;
  stored.module = module;
  stored.weights = scheme;
  stored.rows = rows;
  stored.cols = cols;
  std::uint64_t bytes = 0;
  for (const TensorInfo& info : stored_tensors(StoredMethod::halftone, stored)) bytes += info.bytes;
  return bytes;
}

class Measurement {
 public:
  Measurement(const Checkpoint& source, const CalibrationData& data, const std::vector<Scheme>& candidates,
              ThreadPool& pool, Progress& progress)
      : source_(source),
        config_(*source.model),
        candidates_(candidates),
        pool_(pool),
        progress_(progress),
        ends_(config_, *source.weights, pool) {
    // A few hundred positions are enough: each loss is a mean of differences from the same original.
    for (const std::vector<TokenId>& sequence : data.sequences) {
      if (sequences_.size() == 2) break;
      sequences_.emplace_back(sequence.begin(), sequence.begin() + std::min<std::ptrdiff_t>(std::ssize(sequence), 256));
    }
  }

  SensitivityReport run() {
    SensitivityReport report;
    report.candidates = candidates_;
    const auto blocks = static_cast<std::int64_t>(config_.layers.size());
    for (std::int64_t i = 0; i < blocks; ++i) blocks_.emplace_back(config_, i, *source_.weights, pool_);
    const std::string table = ends_.table_module(), head = ends_.head_module();

    // The hidden states before every block, and what the linears read.
    states_.resize(static_cast<std::size_t>(blocks) + 1);
    for (const auto& sequence : sequences_) {
      std::vector<float> x(sequence.size() * static_cast<std::size_t>(config_.hidden));
      ends_.embed(sequence, x.data(), pool_);
      states_[0].push_back(std::move(x));
    }
    for (std::int64_t i = 0; i < blocks; ++i) {
      states_[static_cast<std::size_t>(i) + 1] = states_[static_cast<std::size_t>(i)];
      for (std::size_t s = 0; s < sequences_.size(); ++s) watch(i, s, states_[static_cast<std::size_t>(i) + 1][s]);
    }
    for (std::size_t s = 0; s < sequences_.size(); ++s) {
      const std::vector<float> input = head_input(states_.back()[s], s);
      add_squares(head, input);
      reference_.push_back(log_probabilities(input));
      report.tokens += scored(s);
    }

    std::vector<std::pair<std::int64_t, BlockStage>> places;
    for (std::int64_t i = 0; i < blocks; ++i) {
      for (const BlockStage stage : kBlockStages) places.emplace_back(i, stage);
    }
    std::uint64_t total = 1;
    for (const auto& [i, stage] : places) total += blocks_[static_cast<std::size_t>(i)].modules(stage).size();
    progress_.begin("sensitivity", total, "matrices");
    measure(report, head, [&](const WeightSource& weights) { return loss_of_head(weights); });
    for (const auto& [i, stage] : places) {
      for (const std::string& module : blocks_[static_cast<std::size_t>(i)].modules(stage)) {
        measure(report, module, [&, i = i, stage = stage](const WeightSource& weights) {
          DecoderBlock& block = blocks_[static_cast<std::size_t>(i)];
          block.rebind(stage, weights, pool_);
          const double kl = loss_from(i, states_[static_cast<std::size_t>(i)]);
          const ReplacedWeights original(source_.weights);
          block.rebind(stage, original, pool_);
          return kl;
        });
      }
    }
    progress_.end();
    count(report);
    return report;
  }

 private:
  std::int64_t rows(std::size_t s) const { return std::ssize(sequences_[s]); }
  // The first positions know too little of the text to tell models apart.
  std::int64_t first_scored(std::size_t s) const { return rows(s) / 4; }
  std::int64_t scored(std::size_t s) const { return (rows(s) - first_scored(s) + 1) / 2; }  // every second one

  void add_squares(const std::string& module, std::span<const float> x) {
    std::vector<float>& sums = importance_[module];
    const std::size_t cols = source_.weights->find(module)->cols;
    sums.resize(cols);
    const float share = 1.0F / static_cast<float>(x.size() / cols * sequences_.size());
    for (std::size_t at = 0; at < x.size(); at += cols) {
      for (std::size_t c = 0; c < cols; ++c) sums[c] += x[at + c] * x[at + c] * share;
    }
  }

  void watch(std::int64_t i, std::size_t s, std::vector<float>& x) {
    throw_if_interrupted();
    const DecoderBlock& block = blocks_[static_cast<std::size_t>(i)];
    std::vector<float> before;
    for (const BlockStage stage : kBlockStages) {
      const bool adds = stage == BlockStage::attention_out || stage == BlockStage::ffn_down;
      std::vector<float> input(static_cast<std::size_t>(rows(s) * block.input_cols(stage)));
      block.input(stage, adds ? before.data() : x.data(), rows(s), input.data(), pool_);
      for (const std::string& module : block.modules(stage)) add_squares(module, input);
      if (adds) block.add_output(stage, input.data(), rows(s), x.data(), pool_);
      before = std::move(input);
    }
  }

  std::vector<float> head_input(const std::vector<float>& x, std::size_t s) const {
    std::vector<float> out(x.size());
    ends_.head_input(x.data(), rows(s), out.data(), pool_);
    return out;
  }

  // [scored, vocabulary]
  std::vector<float> log_probabilities(const std::vector<float>& head_input) const {
    const std::int64_t vocabulary = config_.vocabulary, hidden = config_.hidden;
    const std::int64_t all = std::ssize(head_input) / hidden, first = all / 4, count = (all - first + 1) / 2;
    std::vector<float> chosen(static_cast<std::size_t>(count * hidden));
    for (std::int64_t r = 0; r < count; ++r) {
      std::copy_n(head_input.begin() + (first + 2 * r) * hidden, hidden, chosen.begin() + r * hidden);
    }
    std::vector<float> out(static_cast<std::size_t>(count * vocabulary));
    ends_.logits(chosen.data(), count, out.data(), pool_);
    pool_.run(count, [&](std::int64_t r, int) {
      float* row = out.data() + r * vocabulary;
      const auto sum = static_cast<float>(log_sum_exp(row, vocabulary));
      for (std::int64_t v = 0; v < vocabulary; ++v) row[v] -= sum;
    });
    return out;
  }

  double divergence(const std::vector<float>& reference, const std::vector<float>& candidate) const {
    const std::int64_t vocabulary = config_.vocabulary, count = std::ssize(reference) / vocabulary;
    std::vector<double> sums(static_cast<std::size_t>(count));
    pool_.run(count, [&](std::int64_t r, int) {
      double sum = 0;
      for (std::int64_t v = r * vocabulary; v < (r + 1) * vocabulary; ++v) {
        const auto i = static_cast<std::size_t>(v);
        sum += std::exp(static_cast<double>(reference[i])) *
               (static_cast<double>(reference[i]) - static_cast<double>(candidate[i]));
      }
      sums[static_cast<std::size_t>(r)] = sum;
    });
    double sum = 0;
    for (const double value : sums) sum += value;
    return sum;
  }

  // Mean KL over the scored positions from the states before block i on.
  double loss_from(std::int64_t i, std::vector<std::vector<float>> x) const {
    double sum = 0;
    std::int64_t count = 0;
    for (std::size_t s = 0; s < x.size(); ++s) {
      throw_if_interrupted();
      for (std::size_t b = static_cast<std::size_t>(i); b < blocks_.size(); ++b)
        blocks_[b].forward(x[s].data(), rows(s), pool_);
      sum += divergence(reference_[s], log_probabilities(head_input(x[s], s)));
      count += scored(s);
    }
    return std::max(0.0, sum / static_cast<double>(count));
  }

  double loss_of_head(const WeightSource& weights) {
    const bool tied = ends_.table_module() == ends_.head_module();
    double kl = 0;
    if (tied) {
      ends_.rebind_table(weights, pool_);
      std::vector<std::vector<float>> x;
      for (const auto& sequence : sequences_) {
        x.emplace_back(sequence.size() * static_cast<std::size_t>(config_.hidden));
        ends_.embed(sequence, x.back().data(), pool_);
      }
      kl = loss_from(0, std::move(x));
      ends_.rebind_table(*source_.weights, pool_);
    } else {
      ends_.rebind_head(weights, pool_);
      kl = loss_from(static_cast<std::int64_t>(blocks_.size()), states_.back());
      ends_.rebind_head(*source_.weights, pool_);
    }
    return kl;
  }

  template <class Loss>
  void measure(SensitivityReport& report, const std::string& module, const Loss& loss) {
    throw_if_interrupted();
    const std::optional<WeightInfo> info = source_.weights->find(module);
    HT_CHECK(info.has_value());
    const std::vector<float> values = values_of(*source_.weights, *info);
    source_.weights->forget(*info);
    Sensitivity item;
    item.module = module;
    item.role = module == ends_.head_module() ? Role::head : role_of(module + ".weight", 2);
    item.rows = info->rows;
    item.cols = info->cols;
    item.importance = importance_.at(module);
    item.measured = candidates_.size() / 2;
    std::vector<double> errors;
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      if (const auto refusal = scheme_refusal(candidates_[i], info->rows, info->cols)) {
        fail(ErrorKind::unsupported, "{}: {}", module, *refusal);
      }
      Rounded result = rounded(*info, values, candidates_[i], item.importance, pool_);
      errors.push_back(result.error);
      item.bytes.push_back(file_bytes(module, candidates_[i], info->rows, info->cols));
      if (i != item.measured) continue;
      ReplacedWeights one(nullptr);
      one.replace(module, std::move(result.tensor));
      item.kl.assign(candidates_.size(), loss(one));
    }
    const double measured = errors[item.measured];
    for (std::size_t i = 0; i < errors.size(); ++i) item.kl[i] *= measured > 0 ? errors[i] / measured : 1.0;
    report.matrices.push_back(std::move(item));
    progress_.advance(1, fmt::format("{} {:.5f}", module, report.matrices.back().kl[report.matrices.back().measured]));
  }

  void count(SensitivityReport& report) const {
    std::set<std::string> chosen;
    for (const Sensitivity& item : report.matrices) chosen.insert(item.module);
    for (const StoredEntry& entry : stored_entries(*source_.tensors, source_.config)) {
      const std::string module = module_of(entry.name);
      std::uint64_t bytes = 0;
      for (const std::string& part : entry.parts) bytes += source_.tensors->at(part).bytes;
      if (const auto info = source_.weights->find(module)) {
        report.parameters += info->rows * info->cols;
      } else {
        report.parameters += source_.tensors->at(entry.name).elements();
      }
      if (!chosen.contains(module)) report.other_bytes += bytes;
    }
  }

  const Checkpoint& source_;
  const ModelConfig& config_;
  const std::vector<Scheme>& candidates_;
  ThreadPool& pool_;
  Progress& progress_;
  ModelEnds ends_;
  std::vector<DecoderBlock> blocks_;
  std::vector<std::vector<std::int32_t>> sequences_;
  std::vector<std::vector<std::vector<float>>> states_;  // [block][sequence], before the block
  std::map<std::string, std::vector<float>> importance_;
  std::vector<std::vector<float>> reference_;
};

Allocation priced(const SensitivityReport& report, double price) {
  Allocation out;
  out.bytes = report.other_bytes;
  for (const Sensitivity& item : report.matrices) {
    std::size_t best = 0;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < item.kl.size(); ++i) {
      const double cost = item.kl[i] + price * static_cast<double>(item.bytes[i]);
      if (cost < least) {
        least = cost;
        best = i;
      }
    }
    out.choice.push_back(best);
    out.bytes += item.bytes[best];
    out.predicted_kl += item.kl[best];
  }
  out.bits = 8.0 * static_cast<double>(out.bytes) / static_cast<double>(std::max<std::int64_t>(1, report.parameters));
  return out;
}

}  // namespace

std::vector<Scheme> default_candidates() {
  std::vector<Scheme> out;
  for (const char* name :
       {"int2:g64:asym", "int3:g64:asym", "int4:g64:asym", "int5:g64:asym", "int6:g64:asym", "int8:g64"}) {
    out.push_back(parse_scheme(name));
  }
  return out;
}

SensitivityReport measure_sensitivity(const Checkpoint& source, const CalibrationData& data,
                                      const std::vector<Scheme>& candidates, ThreadPool& pool, Progress& progress) {
  HT_CHECK(source.model.has_value() && !data.sequences.empty());
  if (candidates.empty()) fail(ErrorKind::usage, "the search needs at least one candidate scheme");
  for (const Scheme& scheme : candidates) {
    if (!MatrixProblem::can_solve(scheme)) {
      fail(ErrorKind::usage, "candidate '{}': the search chooses among schemes with scales and at most 8 bits",
           scheme_text(scheme));
    }
  }
  return Measurement(source, data, candidates, pool, progress).run();
}

std::vector<Allocation> pareto_front(const SensitivityReport& report) {
  std::vector<Allocation> front;
  // From a price at which the smallest of everything is best to one at which bytes are free.
  for (double exponent = 0; exponent >= -16; exponent -= 0.05) {
    Allocation next = priced(report, std::pow(10.0, exponent));
    if (front.empty() || next.bytes > front.back().bytes) front.push_back(std::move(next));
  }
  return front;
}

Allocation allocate(const SensitivityReport& report, std::uint64_t max_bytes) {
  std::vector<Allocation> front = pareto_front(report);
  if (front.front().bytes > max_bytes) {
    fail(ErrorKind::usage,
         "the smallest formats need {} bytes ({:.3f} bits a weight), more than the {} that were given",
         front.front().bytes, front.front().bits, max_bytes);
  }
  std::size_t at = 0;
  while (at + 1 < front.size() && front[at + 1].bytes <= max_bytes) ++at;
  Allocation best = front[at];
  // What is left goes, step by step, where a byte saves the most.
  for (;;) {
    double gain = 0;
    std::size_t matrix = 0, candidate = 0;
    for (std::size_t m = 0; m < report.matrices.size(); ++m) {
      const Sensitivity& item = report.matrices[m];
      const std::size_t now = best.choice[m];
      for (std::size_t i = 0; i < item.kl.size(); ++i) {
        if (item.bytes[i] <= item.bytes[now] || best.bytes - item.bytes[now] + item.bytes[i] > max_bytes) continue;
        const double rate = (item.kl[now] - item.kl[i]) / static_cast<double>(item.bytes[i] - item.bytes[now]);
        if (rate > gain) {
          gain = rate;
          matrix = m;
          candidate = i;
        }
      }
    }
    if (gain <= 0) break;
    const Sensitivity& item = report.matrices[matrix];
    best.bytes += item.bytes[candidate] - item.bytes[best.choice[matrix]];
    best.predicted_kl += item.kl[candidate] - item.kl[best.choice[matrix]];
    best.choice[matrix] = candidate;
  }
  best.bits = 8.0 * static_cast<double>(best.bytes) / static_cast<double>(std::max<std::int64_t>(1, report.parameters));
  return best;
}

Recipe recipe_of(const SensitivityReport& report, const Allocation& allocation, std::string name,
                 std::string description) {
  Recipe recipe;
  recipe.name = std::move(name);
  recipe.description = std::move(description);
  std::map<std::size_t, std::uint64_t> weight;  // bytes of linears by candidate
  for (std::size_t m = 0; m < report.matrices.size(); ++m) {
    if (is_linear_role(report.matrices[m].role))
      weight[allocation.choice[m]] += report.matrices[m].bytes[allocation.choice[m]];
  }
  std::size_t common = 0;
  for (const auto& [candidate, bytes] : weight) {
    if (weight.find(common) == weight.end() || bytes > weight[common]) common = candidate;
  }
  recipe.weights = report.candidates[common];
  // Part of a layer and scheme -> layers, in the order of the model.
  std::vector<std::pair<std::pair<std::string, std::size_t>, std::vector<std::string>>> groups;
  for (std::size_t m = 0; m < report.matrices.size(); ++m) {
    const Sensitivity& item = report.matrices[m];
    const std::size_t choice = allocation.choice[m];
    if (item.role == Role::head) {
      RecipeRule rule;
      rule.match = "head";
      rule.weights = report.candidates[choice];
      recipe.rules.push_back(rule);
      continue;
    }
    if (choice == common) continue;
    const std::size_t layers = item.module.find("layers."), end = item.module.find('.', layers + 7);
    const std::pair key{item.module.substr(0, layers + 7) + "\n" + item.module.substr(end), choice};
    auto found = std::find_if(groups.begin(), groups.end(), [&](const auto& group) { return group.first == key; });
    if (found == groups.end()) found = groups.insert(groups.end(), {key, {}});
    found->second.push_back(item.module.substr(layers + 7, end - layers - 7));
  }
  const auto escaped = [](const std::string& text) {
    std::string out;
    for (const char c : text) out += c == '.' ? std::string("\\.") : std::string(1, c);
    return out;
  };
  for (const auto& [key, layers] : groups) {
    const std::size_t split = key.first.find('\n');
    RecipeRule rule;
    rule.match = fmt::format("re:{}({}){}$", escaped(key.first.substr(0, split)), fmt::join(layers, "|"),
                             escaped(key.first.substr(split + 1)));
    rule.weights = report.candidates[key.second];
    recipe.rules.push_back(rule);
  }
  recipe.methods = {"gptq", "quantease"};
  return recipe;
}

std::shared_ptr<const WeightSource> allocated_weights(const Checkpoint& source, const SensitivityReport& report,
                                                      const Allocation& allocation, ThreadPool& pool) {
  auto weights = std::make_shared<ReplacedWeights>(source.weights);
  for (std::size_t m = 0; m < report.matrices.size(); ++m) {
    throw_if_interrupted();
    const std::optional<WeightInfo> info = source.weights->find(report.matrices[m].module);
    const std::vector<float> values = values_of(*source.weights, *info);
    weights->replace(
        info->module,
        rounded(*info, values, report.candidates[allocation.choice[m]], report.matrices[m].importance, pool).tensor);
  }
  return weights;
}

Json to_json(const SensitivityReport& report) {
  Json json;
  json["tokens"] = report.tokens;
  json["parameters"] = report.parameters;
  json["other_bytes"] = report.other_bytes;
  json["candidates"] = Json::array();
  for (const Scheme& scheme : report.candidates) json["candidates"].push_back(scheme_text(scheme));
  json["matrices"] = Json::array();
  for (const Sensitivity& item : report.matrices) {
    json["matrices"].push_back({{"module", item.module},
                                {"role", role_name(item.role)},
                                {"rows", item.rows},
                                {"cols", item.cols},
                                {"measured", item.measured},
                                {"kl", item.kl},
                                {"bytes", item.bytes},
                                {"importance", item.importance}});
  }
  return json;
}

SensitivityReport sensitivity_from_json(const Json& json, const std::string& where) {
  SensitivityReport report;
  try {
    report.tokens = json.at("tokens").get<std::int64_t>();
    report.parameters = json.at("parameters").get<std::int64_t>();
    report.other_bytes = json.at("other_bytes").get<std::uint64_t>();
    for (const Json& name : json.at("candidates")) report.candidates.push_back(parse_scheme(name.get<std::string>()));
    for (const Json& entry : json.at("matrices")) {
      Sensitivity item;
      item.module = entry.at("module").get<std::string>();
      const auto role = entry.at("role").get<std::string>();
      for (const Role known : all_roles()) {
        if (role_name(known) == role) item.role = known;
      }
      item.rows = entry.at("rows").get<std::int64_t>();
      item.cols = entry.at("cols").get<std::int64_t>();
      item.measured = entry.at("measured").get<std::size_t>();
      item.kl = entry.at("kl").get<std::vector<double>>();
      item.bytes = entry.at("bytes").get<std::vector<std::uint64_t>>();
      item.importance = entry.at("importance").get<std::vector<float>>();
      const std::size_t count = report.candidates.size();
      if (item.kl.size() != count || item.bytes.size() != count || item.measured >= count ||
          std::ssize(item.importance) != item.cols) {
        fail(ErrorKind::bad_input, "{}: '{}' does not fit the candidates of the file", where, item.module);
      }
      report.matrices.push_back(std::move(item));
    }
  } catch (const Json::exception& error) {
    fail(ErrorKind::bad_input, "{}: is no file of sensitivities ({})", where, error.what());
  }
  return report;
}

Json to_json(const std::vector<Allocation>& front) {
  Json json = Json::array();
  for (const Allocation& point : front) {
    json.push_back({{"bits_per_weight", point.bits}, {"bytes", point.bytes}, {"predicted_kl", point.predicted_kl}});
  }
  return json;
}

}  // namespace halftone
