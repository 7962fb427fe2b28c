// Opens any checkpoint and shows it under one naming: Hugging Face's. GGUF names, the row order of Q and K, norm offsets
// and metadata are translated here and nowhere else.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/threads.h"
#include "model/config.h"
#include "tensor/source.h"
#include "tensor/weights.h"
#include "text/tokenizer.h"

namespace halftone {

struct Checkpoint {
  std::filesystem::path path;
  std::string container;  // "safetensors", "gguf"
  std::vector<std::filesystem::path> files;  // every file that was opened (for "output is the input" checks)

  nlohmann::ordered_json config;  // config.json; for GGUF made from its metadata; null for a bare .safetensors
  std::shared_ptr<const TensorSource> tensors;  // canonical names, all tensors
  std::shared_ptr<const WeightSource> weights;  // the same as matrices in schemes; reads quantization_config

  std::optional<ModelConfig> model;  // nullopt: cannot be run; model_refusal says why (quantize still works)
  std::string model_refusal;
  ErrorKind model_refusal_kind = ErrorKind::unsupported;  // bad_input: its description is damaged or incomplete

  // Small files that an output directory carries along byte for byte (tokenizer.json, generation_config.json, templates);
  // for GGUF made from its metadata.
  std::map<std::string, std::string> sidecars;
  std::optional<std::string> chat_template;
  std::optional<GgufVocabulary> gguf_vocabulary;
  std::vector<std::string> notes;  // what was translated, dropped or unusual: shown by inspect, plan and report
};

// An HF directory, a .safetensors (file or its directory's config when one lies beside it), or a .gguf.
Checkpoint open_checkpoint(const std::filesystem::path& path);

std::unique_ptr<Tokenizer> open_tokenizer(const Checkpoint& checkpoint);  // Error(bad_input) if it has none
const ModelConfig& runnable_config(const Checkpoint& checkpoint);         // Error(model_refusal_kind) with model_refusal

}  // namespace halftone
