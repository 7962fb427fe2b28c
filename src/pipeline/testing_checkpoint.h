// For tests only: writes small checkpoints and opens them without a model.
#pragma once

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/random.h"
#include "checkpoint/safetensors.h"
#include "pipeline/open.h"
#include "pipeline/stored.h"

namespace halftone {

class CheckpointBuilder {
 public:
  void add(const std::string& name, DType dtype, Shape shape, std::vector<std::byte> bytes) {
    TensorInfo info;
    info.name = name;
    info.dtype = dtype;
    info.shape = std::move(shape);
    info.bytes = bytes.size();
    infos_.push_back(info);
    data_.push_back(std::move(bytes));
  }
  void add_bf16(const std::string& name, Shape shape, const std::vector<float>& values) {
    std::vector<std::byte> bytes(2 * values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::uint16_t code = float_to_bf16(values[i]);
      std::memcpy(bytes.data() + 2 * i, &code, 2);
    }
    add(name, DType::bf16, std::move(shape), std::move(bytes));
  }
  template <class T>
  void add_raw(const std::string& name, DType dtype, Shape shape, const std::vector<T>& values) {
    std::vector<std::byte> bytes(sizeof(T) * values.size());
    if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    add(name, dtype, std::move(shape), std::move(bytes));
  }

  void write(const std::filesystem::path& folder, const nlohmann::ordered_json& config = nullptr) const {
    std::filesystem::create_directories(folder);
    OutputFile file(folder / "model.safetensors", false);
    file.append(safetensors_header(infos_));
    for (const std::vector<std::byte>& bytes : data_) file.append(bytes);
    file.close();
    if (!config.is_null()) write_text_file(folder / "config.json", config.dump(2));
  }

 private:
  std::vector<TensorInfo> infos_;
  std::vector<std::vector<std::byte>> data_;
};

inline std::vector<float> bf16_values(std::size_t count, std::uint64_t seed, float scale = 0.02F) {
  CounterRng rng(seed);
  std::vector<float> values(count);
  for (float& value : values) value = bf16_to_float(float_to_bf16(rng.next_normal() * scale));
  return values;
}

// The tensors and the config of a folder, without a model or tokenizer.
inline Checkpoint plain_checkpoint(const std::filesystem::path& folder) {
  Checkpoint checkpoint;
  checkpoint.path = folder;
  checkpoint.container = "safetensors";
  auto tensors = std::make_shared<ShardedSafetensors>(folder);
  checkpoint.files = tensors->files();
  if (std::filesystem::exists(folder / "config.json")) {
    checkpoint.config = nlohmann::ordered_json::parse(read_text_file(folder / "config.json"));
    checkpoint.files.push_back(folder / "config.json");
  }
  checkpoint.tensors = tensors;
  checkpoint.weights = stored_weights(tensors, checkpoint.config, &checkpoint.notes);
  checkpoint.model_refusal = "opened without a model";
  return checkpoint;
}

inline std::vector<float> weight_values(const WeightSource& weights, const std::string& module) {
  const std::optional<WeightInfo> info = weights.find(module);
  if (!info) return {};
  std::vector<float> out(static_cast<std::size_t>(info->rows * info->cols));
  dequantize_rows(weights.rows(*info, 0, info->rows), 0, info->rows, out);
  return out;
}

}  // namespace halftone
