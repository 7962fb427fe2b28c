#include "checkpoint/hf_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/safetensors.h"

namespace halftone {
namespace fs = std::filesystem;
namespace {

constexpr const char* kIndexName = "model.safetensors.index.json";

bool is_weight_file(const std::string& name) {
  return name.starts_with("model") && name.ends_with(".safetensors");
}

std::uint64_t allocated_bytes(const fs::path& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? static_cast<std::uint64_t>(info.st_blocks) * 512 : 0;
}

// Reserves the blocks of [0, bytes). False if the disk is full; file systems that cannot reserve are taken at their
// word (the free space was looked at).
bool reserve(const fs::path& path, std::uint64_t bytes) {
  if (bytes == 0) return true;
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) fail(ErrorKind::resources, "{}: cannot open: {}", path.string(), std::strerror(errno));
  int code = 0;
  do {
    code = ::fallocate(fd, 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  } while (code == EINTR);
  ::close(fd);
  return code != ENOSPC && code != EDQUOT && code != EFBIG;
}

}  // namespace

HfLayout hf_layout(std::vector<TensorInfo> tensors, const HfWriterOptions& options,
                   std::span<const std::size_t> groups) {
  HT_CHECK(groups.empty() || groups.size() == tensors.size());
  HfLayout layout;
  layout.tensors = std::move(tensors);
  std::vector<std::vector<std::size_t>> shards(1);  // positions in layout.tensors
  std::uint64_t filled = 0;
  for (std::size_t first = 0, end = 0; first < layout.tensors.size(); first = end) {
    std::uint64_t bytes = 0;
    do {
      bytes += layout.tensors[end++].bytes;
    } while (!groups.empty() && end < groups.size() && groups[end] == groups[first]);
    if (!shards.back().empty() && bytes > options.max_shard_bytes - std::min(filled, options.max_shard_bytes)) {
      shards.emplace_back();
      filled = 0;
    }
    for (std::size_t i = first; i < end; ++i) shards.back().push_back(i);
    filled += bytes;
    layout.total_size += bytes;
  }
  layout.places.resize(layout.tensors.size());
  for (std::size_t s = 0; s < shards.size(); ++s) {
    std::stable_sort(shards[s].begin(), shards[s].end(), [&](std::size_t a, std::size_t b) {
      return dtype_bits(layout.tensors[a].dtype) > dtype_bits(layout.tensors[b].dtype);
    });
    HfShard shard;
    shard.name = shards.size() == 1 ? std::string("model.safetensors")
                                    : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
    std::vector<TensorInfo> infos;
    for (const std::size_t i : shards[s]) infos.push_back(layout.tensors[i]);
    shard.header = safetensors_header(infos, options.metadata);
    shard.bytes = shard.header.size();
    for (const std::size_t i : shards[s]) {
      layout.places[i] = {s, shard.bytes};
      shard.bytes += layout.tensors[i].bytes;
    }
    layout.disk_bytes += shard.bytes;
    layout.shards.push_back(std::move(shard));
  }
  std::map<std::string, std::string> weight_map;
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    const HfShard& shard = layout.shards[layout.places[i].shard];
    layout.tensors[i].file = shard.name;
    if (!weight_map.emplace(layout.tensors[i].name, shard.name).second) {
      fail(ErrorKind::bad_input, "tensor '{}': the name occurs twice", layout.tensors[i].name);
    }
  }
  if (layout.shards.size() > 1) {
    nlohmann::json index;
    index["metadata"]["total_size"] = layout.total_size;
    index["weight_map"] = weight_map;
    layout.index_json = index.dump(2) + "\n";
    layout.disk_bytes += layout.index_json.size();
  }
  return layout;
}

struct HfWriter::State {
  struct File {
    std::unique_ptr<OutputFile> file;
    std::mutex mutex;  // OutputFile keeps its size, so that two threads may not write at once
  };

  fs::path folder;
  HfLayout layout;
  std::map<std::string, std::size_t, std::less<>> positions;
  std::vector<std::unique_ptr<File>> files;
  bool resumed = true;

  fs::path path(const HfShard& shard) const { return folder / shard.name; }

  void refuse_foreign_files() const {
    std::error_code code;
    for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code)) {
      const std::string name = it->path().filename().string();
      const bool mine = std::any_of(layout.shards.begin(), layout.shards.end(),
                                    [&](const HfShard& shard) { return shard.name == name; });
      if ((is_weight_file(name) && !mine) || (name == kIndexName && layout.index_json.empty())) {
        fail(ErrorKind::bad_input, "{}: the folder holds '{}' of another output: remove it or choose another folder",
             folder.string(), name);
      }
    }
    if (code) fail(ErrorKind::resources, "{}: cannot read the folder: {}", folder.string(), code.message());
  }

  // True if the file is there in full. Error if it is another's.
  bool is_complete(const HfShard& shard) const {
    const fs::path file = path(shard);
    std::error_code code;
    if (!fs::exists(file, code)) return false;
    const MappedFile content(file);
    const std::span<const std::byte> bytes = content.bytes();
    const std::size_t known = std::min(bytes.size(), shard.header.size());
    if (bytes.size() == shard.bytes && std::memcmp(bytes.data(), shard.header.data(), known) == 0) return true;
    // A run that was stopped while it made the file leaves a prefix of the header and zeros.
    std::size_t same = 0;
    while (same < known && bytes[same] == static_cast<std::byte>(shard.header[same])) ++same;
    const bool unfinished =
        same < shard.header.size() && bytes.size() <= shard.bytes &&
        std::all_of(bytes.begin() + static_cast<std::ptrdiff_t>(same),
                    bytes.begin() + static_cast<std::ptrdiff_t>(known), [](std::byte b) { return b == std::byte{0}; });
    if (!unfinished) {
      fail(ErrorKind::bad_input,
           "{}: the file belongs to another output or was cut: remove it or choose another folder", file.string());
    }
    return false;
  }

  void create(const std::vector<bool>& complete) {
    std::uint64_t have = 0;
    for (const HfShard& shard : layout.shards) have += std::min(allocated_bytes(path(shard)), shard.bytes);
    const std::uint64_t needed = layout.disk_bytes - std::min(have, layout.disk_bytes);
    const auto full = [&](std::uint64_t free) {
      fail(ErrorKind::resources,
           "{}: the output needs {} bytes on the disk, but only {} are free: free space and run again", folder.string(),
           needed, free);
    };
    if (const std::uint64_t free = free_disk_bytes(folder); free < needed) full(free);
    const std::uint64_t free_before = free_disk_bytes(folder);
    std::vector<fs::path> made;
    try {
      for (std::size_t s = 0; s < layout.shards.size(); ++s) {
        const HfShard& shard = layout.shards[s];
        if (!complete[s]) made.push_back(path(shard));
        files.push_back(std::make_unique<File>());
        files.back()->file = std::make_unique<OutputFile>(path(shard), true);
        if (complete[s]) continue;
        if (!reserve(path(shard), shard.bytes)) full(free_before);
        files.back()->file->truncate(shard.bytes);
        const auto header = std::as_bytes(std::span(shard.header.data(), shard.header.size()));
        files.back()->file->write_at(0, header);
      }
    } catch (...) {
      files.clear();
      std::error_code ignored;
      for (const fs::path& path : made) fs::remove(path, ignored);
      throw;
    }
  }
};

HfWriter::HfWriter(const fs::path& folder, std::vector<TensorInfo> tensors, const HfWriterOptions& options)
    : HfWriter(folder, hf_layout(std::move(tensors), options)) {}

HfWriter::HfWriter(const fs::path& folder, HfLayout layout) : state_(std::make_unique<State>()) {
  state_->folder = folder;
  state_->layout = std::move(layout);
  std::error_code code;
  fs::create_directories(folder, code);
  if (code) fail(ErrorKind::resources, "{}: cannot make the folder: {}", folder.string(), code.message());
  state_->refuse_foreign_files();
  std::vector<bool> complete;
  for (const HfShard& shard : state_->layout.shards) {
    complete.push_back(state_->is_complete(shard));
    state_->resumed = state_->resumed && complete.back();
  }
  for (std::size_t i = 0; i < state_->layout.tensors.size(); ++i) {
    state_->positions.emplace(state_->layout.tensors[i].name, i);
  }
  state_->create(complete);
}

HfWriter::~HfWriter() = default;

const HfLayout& HfWriter::layout() const {
  return state_->layout;
}

bool HfWriter::resumed() const {
  return state_->resumed;
}

void HfWriter::write(std::string_view tensor, std::uint64_t offset_in_tensor, std::span<const std::byte> bytes) {
  const auto found = state_->positions.find(tensor);
  HT_CHECK(found != state_->positions.end());
  write(found->second, offset_in_tensor, bytes);
}

void HfWriter::write(std::size_t tensor, std::uint64_t offset_in_tensor, std::span<const std::byte> bytes) {
  HT_CHECK(!state_->files.empty());
  HT_CHECK(tensor < state_->layout.tensors.size());
  const std::uint64_t size = state_->layout.tensors[tensor].bytes;
  HT_CHECK(offset_in_tensor <= size && bytes.size() <= size - offset_in_tensor);
  if (bytes.empty()) return;
  const HfPlace& place = state_->layout.places[tensor];
  State::File& file = *state_->files[place.shard];
  const std::lock_guard lock(file.mutex);
  file.file->write_at(place.offset + offset_in_tensor, bytes);
}

void HfWriter::sync() {
  for (const auto& file : state_->files) {
    const std::lock_guard lock(file->mutex);
    file->file->sync();
  }
}

void HfWriter::finish() {
  HT_CHECK(!state_->files.empty());
  for (const auto& file : state_->files) file->file->close();
  state_->files.clear();
  if (!state_->layout.index_json.empty()) write_text_file(state_->folder / kIndexName, state_->layout.index_json);
}

}  // namespace halftone
