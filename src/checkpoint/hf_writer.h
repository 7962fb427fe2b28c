// Writes the weight files of a Hugging Face directory at known places: model.safetensors, or shards with their index.
// The whole list of tensors is known before the first byte, so that every position, the size on disk and the headers
// are fixed at the start: writing may happen in any order, from several threads, and be taken up again after a stop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/source.h"

namespace halftone {

struct HfWriterOptions {
  std::uint64_t max_shard_bytes = 5'000'000'000;  // of tensor data in a file; a larger tensor gets a file of its own
  std::map<std::string, std::string> metadata;    // of each file's header; {"format": "pt"} is added
};

struct HfShard {
  std::string name;         // "model.safetensors" or "model-00001-of-00002.safetensors"
  std::string header;       // safetensors_header() of its tensors: the first bytes of the file
  std::uint64_t bytes = 0;  // of the whole file
};

struct HfPlace {
  std::size_t shard = 0;     // index into HfLayout::shards
  std::uint64_t offset = 0;  // of the tensor's first byte, from the start of the file
};

// Where every byte stands. A pure function of its arguments; touches no file.
struct HfLayout {
  std::vector<TensorInfo> tensors;  // as given, TensorInfo::file filled in
  std::vector<HfPlace> places;      // one a tensor
  std::vector<HfShard> shards;      // at least one
  std::string index_json;           // model.safetensors.index.json; empty if there is one shard
  std::uint64_t total_size = 0;     // bytes of all tensors
  std::uint64_t disk_bytes = 0;     // of all files, the index included
};

// Tensors go to the shards in the given order; a new shard begins where the next group would not fit. `groups`: one
// number a tensor, neighbours with the same number stay in one shard (a weight and its scales); empty: every tensor is
// a group. Within a shard the widest dtypes come first, so that every tensor is aligned. Error(bad_input) for a name
// that occurs twice, is "__metadata__" or is not UTF-8.
HfLayout hf_layout(std::vector<TensorInfo> tensors, const HfWriterOptions& options = {},
                   std::span<const std::size_t> groups = {});

class HfWriter {
 public:
  // Creates the files of the layout in `folder` (which is made if missing) at their full size, with their headers.
  // Files of an earlier run with the same layout keep their content. Errors: resources (cannot write; the disk cannot
  // hold the output: needed and free bytes are named, and files made by this call are removed again), bad_input (the
  // folder holds weight files of another layout).
  HfWriter(const std::filesystem::path& folder, std::vector<TensorInfo> tensors, const HfWriterOptions& options = {});
  HfWriter(const std::filesystem::path& folder, HfLayout layout);
  ~HfWriter();
  HfWriter(const HfWriter&) = delete;
  HfWriter& operator=(const HfWriter&) = delete;

  const HfLayout& layout() const;
  bool resumed() const;  // every file was there already, in full size, with its header

  // Puts bytes at a position inside a tensor. May be called from several threads and repeated. HT_CHECK: the tensor is
  // in the list and the bytes lie inside of it. Error(resources) if the write fails.
  void write(std::string_view tensor, std::uint64_t offset_in_tensor, std::span<const std::byte> bytes);
  void write(std::size_t tensor, std::uint64_t offset_in_tensor, std::span<const std::byte> bytes);  // by position

  void sync();    // all bytes written so far are on the disk when this returns
  void finish();  // syncs and closes the files and writes the index; write() may not be called any more
                  // (bytes that nobody wrote are zero: the caller knows what is done)

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace halftone
