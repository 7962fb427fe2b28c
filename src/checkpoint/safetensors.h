// safetensors files (shared/formats.md 3.1): eight bytes of header length, a JSON header, tensor data.
// Everything is checked against the real file size before anything is allocated. Stricter than the reference:
// duplicate keys are refused.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "tensor/source.h"

namespace halftone {

class SafetensorsFile final : public TensorSource {
 public:
  // Error(bad_input) that names file, tensor and field.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  std::span<const std::byte> rows(const TensorInfo&, std::int64_t first, std::int64_t count,
                                  std::vector<std::byte>& scratch) const override;
  void forget(const TensorInfo&) const override;

 private:
  std::shared_ptr<MappedFile> file_;
  std::vector<TensorInfo> tensors_;
  std::vector<std::uint64_t> offsets_;
  std::map<std::string, std::size_t> index_;
  std::map<std::string, std::string> metadata_;
};

// The header bytes (length prefix included, padded so that data starts at a multiple of 8) for tensors laid out in this
// order without gaps. Deterministic. `metadata` gets {"format": "pt"} added. Error(bad_input) for a name that is not
// UTF-8, "__metadata__" or there twice, Error(unsupported) above the format's 100,000,000 bytes. HT_CHECK: `bytes` is
// what dtype and shape need.
std::string safetensors_header(const std::vector<TensorInfo>& tensors,
                               std::map<std::string, std::string> metadata = {});

// All tensors of model.safetensors or, where there is no such file, of the shards that model.safetensors.index.json
// names. Error(bad_input) lists missing shards, tensors that the index places in another file, and tensors in two
// files.
class ShardedSafetensors final : public TensorSource {
 public:
  explicit ShardedSafetensors(const std::filesystem::path& directory);
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  std::span<const std::byte> rows(const TensorInfo&, std::int64_t first, std::int64_t count,
                                  std::vector<std::byte>& scratch) const override;
  void forget(const TensorInfo&) const override;
  std::vector<std::filesystem::path> files() const;  // the weight files, then the index if there is one

 private:
  std::vector<std::unique_ptr<SafetensorsFile>> shards_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::size_t> shard_of_;
  std::vector<std::filesystem::path> files_;
};

}  // namespace halftone
