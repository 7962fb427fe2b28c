#include "pipeline/smooth.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "base/error.h"
#include "model/block.h"
#include "model/model.h"
#include "pipeline/stored.h"

namespace halftone {
namespace {

using Json = nlohmann::ordered_json;

// Rows of calibration data that the searches measure their error on.
constexpr std::int64_t kSampleRows = 384;

struct Rescaling {
  std::vector<float> cols, rows;  // columns are multiplied, rows divided; empty: not at all
};

class RescaledTensors final : public TensorSource {
 public:
  RescaledTensors(std::shared_ptr<const TensorSource> base, std::map<std::string, Rescaling> matrices,
                  std::map<std::string, std::vector<std::byte>> vectors)
      : base_(std::move(base)), matrices_(std::move(matrices)), vectors_(std::move(vectors)) {
    for (TensorInfo info : base_->tensors()) {
      if (matrices_.contains(info.name)) {
        info.dtype = DType::f32;
        info.ggml.reset();
        info.bytes = static_cast<std::uint64_t>(info.elements()) * sizeof(float);
      }
      tensors_.push_back(std::move(info));
    }
  }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  std::span<const std::byte> rows(const TensorInfo& info, std::int64_t first, std::int64_t count,
                                  std::vector<std::byte>& scratch) const override {
    if (const auto vector = vectors_.find(info.name); vector != vectors_.end()) {
      const std::size_t row = vector->second.size() / static_cast<std::size_t>(std::max<std::int64_t>(1, info.rows()));
      return std::span(vector->second)
          .subspan(static_cast<std::size_t>(first) * row, static_cast<std::size_t>(count) * row);
    }
    const TensorInfo& from = base_->at(info.name);
    const auto found = matrices_.find(info.name);
    if (found == matrices_.end()) return base_->rows(from, first, count, scratch);
    const std::int64_t cols = info.shape.back();
    std::vector<float> values(static_cast<std::size_t>(count * cols));
    read_rows_as_float(*base_, from, first, count, values);
    for (std::int64_t r = 0; r < count; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) {
        float& value = values[static_cast<std::size_t>(r * cols + c)];
        if (!found->second.cols.empty()) value *= found->second.cols[static_cast<std::size_t>(c)];
        if (!found->second.rows.empty()) value /= found->second.rows[static_cast<std::size_t>(first + r)];
      }
    }
    scratch.resize(values.size() * sizeof(float));
    std::memcpy(scratch.data(), values.data(), scratch.size());
    return scratch;
  }
  void forget(const TensorInfo& info) const override { base_->forget(base_->at(info.name)); }

 private:
  std::shared_ptr<const TensorSource> base_;
  std::map<std::string, Rescaling> matrices_;
  std::map<std::string, std::vector<std::byte>> vectors_;
  std::vector<TensorInfo> tensors_;
};

// What is known of the values that some linears read.
struct Watched {
  explicit Watched(std::int64_t width)
      : cols(width), amax(static_cast<std::size_t>(width)), mean_abs(static_cast<std::size_t>(width)) {}

  void add(std::span<const float> x, std::int64_t every) {
    const std::int64_t count = std::ssize(x) / cols;
    for (std::int64_t r = 0; r < count; ++r, ++rows) {
      const auto row = x.subspan(static_cast<std::size_t>(r * cols), static_cast<std::size_t>(cols));
      for (std::size_t c = 0; c < row.size(); ++c) {
        amax[c] = std::max(amax[c], std::fabs(row[c]));
        mean_abs[c] += std::fabs(row[c]);
      }
      if (rows % every == 0) samples.insert(samples.end(), row.begin(), row.end());
    }
  }

  std::int64_t cols, rows = 0;
  std::vector<float> amax, mean_abs, samples;
};

class Smoother {
 public:
  Smoother(const Checkpoint& source, std::string_view method, const std::vector<std::vector<std::int32_t>>& sequences,
           const FormatsOf& formats, ThreadPool& pool, Progress& progress)
      : source_(source),
        config_(*source.model),
        method_(method),
        sequences_(sequences),
        formats_(formats),
        pool_(pool),
        progress_(progress) {
    std::int64_t tokens = 0;
    for (const auto& sequence : sequences) tokens += std::ssize(sequence);
    every_ = std::max<std::int64_t>(1, tokens / kSampleRows);
  }

  SmoothedCheckpoint run() {
    const ModelEnds ends(config_, *source_.weights, pool_);
    std::vector<std::vector<float>> x;
    for (const auto& sequence : sequences_) {
      x.emplace_back(sequence.size() * static_cast<std::size_t>(config_.hidden));
      ends.embed(sequence, x.back().data(), pool_);
    }
    const auto blocks = static_cast<std::int64_t>(config_.layers.size());
    const std::string stem = find_module_names(*source_.weights).stem;
    progress_.begin("smooth", static_cast<std::uint64_t>(blocks), "blocks");
    for (std::int64_t i = 0; i < blocks; ++i) {
      const DecoderBlock block(config_, i, *source_.weights, pool_);
      std::vector<std::vector<float>> before(x.size());
      for (const BlockStage stage : kBlockStages) {
        const bool adds = stage == BlockStage::attention_out || stage == BlockStage::ffn_down;
        Watched watched(block.input_cols(stage));
        for (std::size_t s = 0; s < x.size(); ++s) {
          throw_if_interrupted();
          const std::int64_t rows = std::ssize(sequences_[s]);
          std::vector<float> input(static_cast<std::size_t>(rows * block.input_cols(stage)));
          block.input(stage, adds ? before[s].data() : x[s].data(), rows, input.data(), pool_);
          watched.add(input, every_);
          if (adds) block.add_output(stage, input.data(), rows, x[s].data(), pool_);
          before[s] = adds ? std::vector<float>() : std::move(input);
        }
        const char* norm = config_.post_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm";
        if (stage == BlockStage::qkv)
          smooth(block.modules(stage), watched, module_name(i, "input_layernorm", stem), "");
        if (stage == BlockStage::gate_up) smooth(block.modules(stage), watched, module_name(i, norm, stem), "");
        if (stage == BlockStage::ffn_down)
          smooth(block.modules(stage), watched, "", module_name(i, "mlp.up_proj", stem));
      }
      progress_.advance(1, fmt::format("model.layers.{}", i));
    }
    progress_.end();
    SmoothedCheckpoint out{source_, std::move(report_)};
    out.checkpoint.tensors =
        std::make_shared<RescaledTensors>(source_.tensors, std::move(matrices_), std::move(vectors_));
    out.checkpoint.weights = stored_weights(out.checkpoint.tensors, source_.config);
    return out;
  }

 private:
  // The scales of one input, folded into a norm or into the rows of the matrix that makes it.
  void smooth(const std::vector<std::string>& modules, Watched& watched, const std::string& norm,
              const std::string& maker) {
    Json entry{{"input", norm.empty() ? maker : norm}};
    std::vector<std::string> touched = modules;
    if (!maker.empty()) touched.push_back(maker);
    for (const std::string& module : touched) {
      const TensorInfo* plain = source_.tensors->find(module + ".weight");
      if (!formats_(module) || plain == nullptr || plain->shape.size() != 2) {
        entry["how"] = fmt::format("left alone: {} is not quantized from plain numbers", module);
        report_.push_back(std::move(entry));
        return;
      }
    }
    if (!maker.empty() && config_.ffn_bias) {
      entry["how"] = "left alone: its bias would have to be divided too";
      report_.push_back(std::move(entry));
      return;
    }
    SmoothingProblem problem;
    problem.samples = watched.samples;
    problem.cols = watched.cols;
    problem.count = std::ssize(watched.samples) / watched.cols;
    problem.amax = watched.amax;
    problem.mean_abs = watched.mean_abs;
    for (float& value : problem.mean_abs) value /= static_cast<float>(std::max<std::int64_t>(1, watched.rows));
    std::vector<std::vector<float>> values;
    for (const std::string& module : modules) {
      const TensorInfo& info = source_.tensors->at(module + ".weight");
      values.push_back(read_as_float(*source_.tensors, info));
      const std::optional<MatrixFormats> formats = formats_(module);
      problem.consumers.push_back({values.back(), info.shape[0], formats->weights, formats->activations});
    }
    SmoothingResult result = method_ == "pss"   ? piecewise_search(problem, PiecewiseOptions{}, pool_)
                             : method_ == "awq" ? awq_search(problem, 20, pool_)
                                                : smooth_quant(problem, 0.5, pool_);
    entry["how"] = result.how;
    entry["loss"] = result.loss;
    entry["identity_loss"] = result.identity_loss;
    report_.push_back(std::move(entry));
    if (norm.empty()) {
      for (const std::string& module : modules) matrices_[module + ".weight"].cols = result.scales;
      matrices_[maker + ".weight"].rows = std::move(result.scales);
      return;
    }
    const std::vector<float> scales = fold_into_norm(norm + ".weight", result.scales);
    for (const std::string& module : modules) matrices_[module + ".weight"].cols = scales;
  }

  // Divides a norm's weights; returns what they were really divided by, rounded as the file's dtype rounds them.
  std::vector<float> fold_into_norm(const std::string& name, std::vector<float> scales) {
    const TensorInfo& info = source_.tensors->at(name);
    const float offset = config_.norm_weight_plus_one ? 1.0F : 0.0F;
    const std::vector<float> weights = read_as_float(*source_.tensors, info);
    HT_CHECK(weights.size() == scales.size());
    std::vector<std::byte>& bytes = vectors_[name];
    bytes.resize(info.bytes);
    for (std::size_t c = 0; c < scales.size(); ++c) {
      const float whole = weights[c] + offset;
      float divided = whole / scales[c] - offset;
      if (info.dtype == DType::f32) {
        std::memcpy(bytes.data() + 4 * c, &divided, 4);
      } else {
        const std::uint16_t code = info.dtype == DType::f16 ? float_to_fp16(divided) : float_to_bf16(divided);
        divided = info.dtype == DType::f16 ? fp16_to_float(code) : bf16_to_float(code);
        std::memcpy(bytes.data() + 2 * c, &code, 2);
      }
      const float now = divided + offset;
      // A channel whose weight is (or becomes) zero carries nothing, whatever its column is multiplied by.
      scales[c] = now != 0.0F && std::isfinite(now) ? whole / now : 1.0F;
    }
    return scales;
  }

  const Checkpoint& source_;
  const ModelConfig& config_;
  std::string method_;
  const std::vector<std::vector<std::int32_t>>& sequences_;
  const FormatsOf& formats_;
  ThreadPool& pool_;
  Progress& progress_;
  std::int64_t every_ = 1;
  std::map<std::string, Rescaling> matrices_;
  std::map<std::string, std::vector<std::byte>> vectors_;
  Json report_ = Json::array();
};

}  // namespace

SmoothedCheckpoint smooth_checkpoint(const Checkpoint& source, std::string_view method,
                                     const std::vector<std::vector<std::int32_t>>& sequences, const FormatsOf& formats,
                                     ThreadPool& pool, Progress& progress) {
  return Smoother(source, method, sequences, formats, pool, progress).run();
}

}  // namespace halftone
