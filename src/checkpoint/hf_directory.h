// A model directory as Hugging Face lays it out: config.json, tokenizer files and safetensors weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tensor/source.h"

namespace halftone {

struct HfDirectory {
  std::filesystem::path path;
  std::string config;  // text of config.json; empty if there is none
  // Small files that an output directory carries along byte for byte, by name: tokenizer.json, tokenizer_config.json,
  // special_tokens_map.json, added_tokens.json, tokenizer.model, vocab.json, merges.txt, vocab.txt,
  // generation_config.json, preprocessor_config.json, processor_config.json, chat_template.jinja,
  // chat_template.json, LICENSE*, NOTICE*, README.md. config.json is not among them.
  std::map<std::string, std::string> sidecars;
  std::vector<std::filesystem::path> files;  // every file that was read or mapped, weights first
  std::vector<std::string> notes;            // what was left out or is unusual, one line each
  std::unique_ptr<TensorSource> tensors;     // SafetensorsFile or ShardedSafetensors
};

// Bytes of the largest sidecar or config.json that is read: larger ones are left out with a note (config.json:
// refused).
inline constexpr std::uint64_t kMaxSidecarBytes = 64ULL << 20;

// True if a path is a directory with a config.json or weight files of the names that open_hf_directory knows.
bool looks_like_hf_directory(const std::filesystem::path& path);

// Opens model.safetensors, or the shards that model.safetensors.index.json names. Errors: bad_input (no such directory,
// no weights, damaged or missing files), unsupported (only pickled weights such as pytorch_model.bin or *.pth: convert
// to safetensors; only GGUF files: they are opened by their own path).
HfDirectory open_hf_directory(const std::filesystem::path& path);

// A single .safetensors file with the config.json and the small files that lie beside it, if any.
HfDirectory open_safetensors_with_neighbours(const std::filesystem::path& file);

}  // namespace halftone
