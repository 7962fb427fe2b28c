#include "pipeline/calibration_walk.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "base/error.h"
#include "model/block.h"

namespace halftone {
namespace {

// One array a sequence, [tokens, cols].
using States = std::vector<std::vector<float>>;

class Walk {
 public:
  Walk(const ModelConfig& config, const WeightSource& original, const std::vector<std::vector<std::int32_t>>& sequences,
       const WalkOptions& options, CalibrationJob& job, ThreadPool& pool, Progress& progress)
      : config_(config),
        original_(original),
        sequences_(sequences),
        options_(options),
        job_(job),
        pool_(pool),
        progress_(progress),
        ends_(config, original, pool) {
    for (const std::vector<std::int32_t>& sequence : sequences) {
      for (const std::int32_t token : sequence) {
        if (token < 0 || token >= config.vocabulary) {
          fail(ErrorKind::bad_input, "calibration token {} is outside the model's vocabulary of {}", token,
               config.vocabulary);
        }
      }
    }
  }

  void run() {
    const std::string table = ends_.table_module(), head = ends_.head_module();
    const auto blocks = static_cast<std::int64_t>(config_.layers.size());
    const bool head_first = table == head && job_.needs_inputs(table);
    progress_.begin("calibrate", static_cast<std::uint64_t>(blocks * (head_first ? 2 : 1)), "blocks");
    if (head_first) {
      // The table is the head too: it is quantized before the blocks, for what the original blocks hand it.
      States x = embedded();
      for (std::int64_t i = 0; i < blocks; ++i) {
        const DecoderBlock block(config_, i, original_, pool_);
        for (std::size_t s = 0; s < x.size(); ++s) {
          throw_if_interrupted();
          block.forward(x[s].data(), rows(s), pool_);
        }
        progress_.advance(1, fmt::format("model.layers.{} (original)", i));
      }
      const ProblemInputs inputs = head_inputs(x, x, job_.activations(head), options_.table_damping);
      job_.write({table}, &inputs);
    } else {
      job_.write({table}, nullptr);
    }
    original_states_ = embedded();
    ends_.rebind_table(*job_.written({table}), pool_);
    quantized_states_ = embedded();
    for (std::int64_t i = 0; i < blocks; ++i) {
      block(i);
      progress_.advance(1, fmt::format("model.layers.{}", i));
    }
    if (table != head) {
      if (job_.needs_inputs(head)) {
        const ProblemInputs inputs =
            head_inputs(original_states_, quantized_states_, job_.activations(head), options_.damping);
        job_.write({head}, &inputs);
      } else {
        job_.write({head}, nullptr);
      }
    }
    progress_.end();
  }

 private:
  std::int64_t rows(std::size_t s) const { return static_cast<std::int64_t>(sequences_[s].size()); }

  States embedded() const {
    States x(sequences_.size());
    for (std::size_t s = 0; s < x.size(); ++s) {
      x[s].resize(static_cast<std::size_t>(rows(s) * config_.hidden));
      ends_.embed(sequences_[s], x[s].data(), pool_);
    }
    return x;
  }

  std::vector<float> input(const DecoderBlock& block, BlockStage stage, std::size_t s, const float* from) const {
    std::vector<float> out(static_cast<std::size_t>(rows(s) * block.input_cols(stage)));
    block.input(stage, from, rows(s), out.data(), pool_);
    return out;
  }

  // Adds a sequence's inputs, those of the quantized model in the form that its linears will see.
  void add(InputStatistics& statistics, std::span<const float> quantized, std::span<const float> original,
           const std::optional<Scheme>& activations) const {
    const std::int64_t cols = statistics.cols(), count = static_cast<std::int64_t>(original.size()) / cols;
    if (!activations) return statistics.add(quantized, original, count, pool_);
    std::vector<float> coded(quantized.begin(), quantized.end());
    pool_.run_ranges(count, 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t r = begin; r < end; ++r) {
        fake_quantize_rows(*activations,
                           std::span(coded).subspan(static_cast<std::size_t>(r * cols), static_cast<std::size_t>(cols)),
                           1, cols);
      }
    });
    statistics.add(coded, original, count, pool_);
  }

  ProblemInputs head_inputs(const States& original, const States& quantized, const std::optional<Scheme>& activations,
                            double damping) const {
    InputStatistics statistics(config_.hidden);
    for (std::size_t s = 0; s < original.size(); ++s) {
      throw_if_interrupted();
      std::vector<float> a(original[s].size()), b(original[s].size());
      ends_.head_input(original[s].data(), rows(s), a.data(), pool_);
      ends_.head_input(quantized[s].data(), rows(s), b.data(), pool_);
      add(statistics, b, a, activations);
    }
    return ProblemInputs(statistics, damping);
  }

  void block(std::int64_t layer) {
    const DecoderBlock original(config_, layer, original_, pool_);
    DecoderBlock quantized(config_, layer, original_, pool_);
    States held_original(sequences_.size()), held_quantized(sequences_.size());  // inputs of the last stage
    for (const BlockStage stage : kBlockStages) {
      const bool from_stream = stage == BlockStage::qkv || stage == BlockStage::gate_up;
      const std::vector<std::string> modules = quantized.modules(stage);
      const bool wanted = std::any_of(modules.begin(), modules.end(),
                                      [&](const std::string& module) { return job_.needs_inputs(module); });
      std::optional<InputStatistics> statistics;
      if (wanted) statistics.emplace(original.input_cols(stage));
      for (std::size_t s = 0; s < sequences_.size(); ++s) {
        throw_if_interrupted();
        std::vector<float> a =
            input(original, stage, s, from_stream ? original_states_[s].data() : held_original[s].data());
        std::vector<float> b =
            input(quantized, stage, s, from_stream ? quantized_states_[s].data() : held_quantized[s].data());
        if (statistics) add(*statistics, b, a, job_.activations(modules.front()));
        if (!from_stream) original.add_output(stage, a.data(), rows(s), original_states_[s].data(), pool_);
        held_original[s] = from_stream ? std::move(a) : std::vector<float>();
        held_quantized[s] = std::move(b);
      }
      if (statistics) {
        const ProblemInputs inputs(*statistics, options_.damping);
        statistics.reset();
        job_.write(modules, &inputs);
      } else {
        job_.write(modules, nullptr);
      }
      quantized.rebind(stage, *job_.written(modules), pool_);
      if (from_stream) continue;
      for (std::size_t s = 0; s < sequences_.size(); ++s) {
        quantized.add_output(stage, held_quantized[s].data(), rows(s), quantized_states_[s].data(), pool_);
        held_quantized[s] = {};
      }
    }
  }

  const ModelConfig& config_;
  const WeightSource& original_;
  const std::vector<std::vector<std::int32_t>>& sequences_;
  const WalkOptions& options_;
  CalibrationJob& job_;
  ThreadPool& pool_;
  Progress& progress_;
  ModelEnds ends_;
  States original_states_, quantized_states_;
};

}  // namespace

void walk_calibration(const ModelConfig& config, const WeightSource& original,
                      const std::vector<std::vector<std::int32_t>>& sequences, const WalkOptions& options,
                      CalibrationJob& job, ThreadPool& pool, Progress& progress) {
  Walk(config, original, sequences, options, job, pool, progress).run();
}

std::uint64_t walk_bytes(const ModelConfig& config, std::int64_t tokens) {
  const std::int64_t q = config.heads * config.head_dim, kv = config.kv_heads * config.head_dim;
  const std::int64_t widest = std::max({config.hidden, config.ffn, q});
  const std::int64_t block = config.hidden * (2 * q + 2 * kv + 3 * config.ffn);
  const std::int64_t states = tokens * (2 * config.hidden + std::max(2 * config.hidden, config.hidden + widest));
  // Sums, a product, two moments and the factor; Eigen's two matrices in FP64; a matrix with target, difference,
  // product.
  const std::int64_t solving = 12 * widest * widest + 4 * std::max(widest * config.hidden, std::int64_t{1} << 22);
  const std::int64_t table = 2 * config.vocabulary * config.hidden;
  return static_cast<std::uint64_t>(4 * (2 * block + states + solving + table));
}

}  // namespace halftone
