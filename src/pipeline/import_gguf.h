// Inside pipeline/ only: a GGUF file seen as a Hugging Face checkpoint (shared/formats.md 3.6).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/gguf.h"
#include "tensor/source.h"
#include "text/tokenizer.h"

namespace halftone {

struct GgufImport {
  // Canonical names. Q and K of architecture llama have their rows in rotate-half order again; norms of Gemma hold w of
  // 1 + w, as FP32 (g - 1, exact for g in [0.5, 2]). What has no canonical name keeps its own.
  std::shared_ptr<const TensorSource> tensors;
  nlohmann::ordered_json config;  // loads in transformers; of an unknown architecture only its name
  std::string refusal;            // why config cannot be complete; empty if it is
  ErrorKind refusal_kind = ErrorKind::unsupported;
  std::optional<GgufVocabulary> vocabulary;
  std::optional<std::string> chat_template;
  std::vector<std::string> notes;
};

GgufImport import_gguf(std::shared_ptr<const GgufFile> file);

// "model.layers.3.mlp.down_proj.weight" of "blk.3.ffn_down.weight"; nullopt if there is no canonical name.
std::optional<std::string> canonical_name(std::string_view architecture, std::string_view gguf_name);

}  // namespace halftone
