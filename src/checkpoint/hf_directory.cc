#include "checkpoint/hf_directory.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/file_kind.h"
#include "checkpoint/safetensors.h"

namespace halftone {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kSidecars[] = {"added_tokens.json",
                                          "chat_template.jinja",
                                          "chat_template.json",
                                          "generation_config.json",
                                          "merges.txt",
                                          "preprocessor_config.json",
                                          "processor_config.json",
                                          "special_tokens_map.json",
                                          "tokenizer.json",
                                          "tokenizer.model",
                                          "tokenizer_config.json",
                                          "vocab.json",
                                          "vocab.txt",
                                          "README.md"};

bool is_sidecar(std::string_view name) {
  return std::find(std::begin(kSidecars), std::end(kSidecars), name) != std::end(kSidecars) ||
         name.starts_with("LICENSE") || name.starts_with("LICENCE") || name.starts_with("NOTICE");
}

// Names of the regular files (links followed) of a folder, sorted.
std::vector<std::string> file_names(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code code;
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code)) {
    std::error_code ignored;
    if (it->is_regular_file(ignored)) names.push_back(it->path().filename().string());
  }
  if (code) fail(ErrorKind::bad_input, "{}: cannot read the folder: {}", folder.string(), code.message());
  std::sort(names.begin(), names.end());
  return names;
}

void refuse_pointer(const fs::path& path, std::string_view text) {
  if (text.starts_with("version https://git-lfs")) {
    fail(ErrorKind::bad_input, "{}: this is a Git LFS pointer, not the file: fetch it with 'git lfs pull'",
         path.string());
  }
}

void read_small_files(const fs::path& folder, HfDirectory& out) {
  for (const std::string& name : file_names(folder)) {
    const bool is_config = name == "config.json";
    if (!is_config && !is_sidecar(name)) continue;
    const fs::path path = folder / name;
    std::error_code code;
    const std::uint64_t size = fs::file_size(path, code);
    if (!code && size > kMaxSidecarBytes) {
      if (is_config) fail(ErrorKind::bad_input, "{}: {} bytes are too many for a config", path.string(), size);
      out.notes.push_back(fmt::format("{} is left out: {} bytes, the limit is {}", name, size, kMaxSidecarBytes));
      continue;
    }
    std::string text = read_text_file(path);
    refuse_pointer(path, text);
    out.files.push_back(path);
    if (is_config) {
      out.config = std::move(text);
    } else {
      out.sidecars.emplace(name, std::move(text));
    }
  }
  if (out.config.empty()) out.notes.push_back("there is no config.json");
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < 5; ++i) text += (i == 0 ? "" : ", ") + printable(names[i]);
  return names.size() > 5 ? text + fmt::format(" and {} more", names.size() - 5) : text;
}

std::vector<std::string> with_extension(const std::vector<std::string>& names,
                                        const std::set<std::string>& extensions) {
  std::vector<std::string> found;
  for (const std::string& name : names) {
    if (extensions.contains(fs::path(name).extension().string())) found.push_back(name);
  }
  return found;
}

[[noreturn]] void refuse_without_weights(const fs::path& folder, const std::vector<std::string>& names) {
  const std::string where = folder.string();
  if (const auto other = with_extension(names, {".safetensors"}); !other.empty()) {
    const bool shards = std::any_of(other.begin(), other.end(), [](const std::string& name) {
      return name.starts_with("model-") && name.find("-of-") != std::string::npos;
    });
    if (shards) {
      fail(ErrorKind::bad_input, "{}: model.safetensors.index.json is missing beside {}: download it", where,
           joined(other));
    }
    fail(ErrorKind::bad_input, "{}: there is no model.safetensors, but {}: give the path of that file", where,
         joined(other));
  }
  if (const auto pickled = with_extension(names, {".bin", ".pth", ".pt", ".ckpt"}); !pickled.empty()) {
    fail(ErrorKind::unsupported,
         "{}: the weights are only there as pickled PyTorch files ({}): convert them to safetensors", where,
         joined(pickled));
  }
  if (const auto gguf = with_extension(names, {".gguf"}); !gguf.empty()) {
    fail(ErrorKind::unsupported, "{}: the folder has no safetensors but GGUF files ({}): give the path of one", where,
         joined(gguf));
  }
  if (const auto other = with_extension(names, {".h5", ".msgpack", ".onnx", ".npz"}); !other.empty()) {
    fail(ErrorKind::unsupported, "{}: the weights are only there as {}: convert them to safetensors", where,
         joined(other));
  }
  fail(ErrorKind::bad_input, "{}: no weights: neither model.safetensors nor model.safetensors.index.json is there",
       where);
}

}  // namespace

bool looks_like_hf_directory(const fs::path& path) {
  std::error_code code;
  if (!fs::is_directory(path, code)) return false;
  for (const char* name : {"config.json", "model.safetensors", "model.safetensors.index.json"}) {
    if (fs::exists(path / name, code)) return true;
  }
  return false;
}

HfDirectory open_hf_directory(const fs::path& path) {
  std::error_code code;
  if (!fs::is_directory(path, code)) fail(ErrorKind::bad_input, "{}: no such directory", path.string());
  const std::vector<std::string> names = file_names(path);
  // Looked up by path, not in `names`: a link to nowhere must be named by the reader, not taken for absence.
  const auto there = [&](const char* name) { return fs::exists(fs::symlink_status(path / name, code)); };
  const bool single = there("model.safetensors"), index = there("model.safetensors.index.json");
  if (!single && !index) refuse_without_weights(path, names);

  HfDirectory out;
  out.path = path;
  if (single) {
    out.files.push_back(path / "model.safetensors");
    out.tensors = std::make_unique<SafetensorsFile>(path / "model.safetensors");
  } else {
    auto shards = std::make_unique<ShardedSafetensors>(path);
    out.files = shards->files();
    out.tensors = std::move(shards);
  }
  std::vector<std::string> unread;
  for (const std::string& name : with_extension(names, {".safetensors"})) {
    const bool read = std::find(out.files.begin(), out.files.end(), path / name) != out.files.end();
    if (!read) unread.push_back(name);
  }
  if (!unread.empty()) out.notes.push_back(fmt::format("weights that are not read: {}", joined(unread)));
  if (single && index) {
    out.notes.push_back("model.safetensors.index.json is not read, because model.safetensors is there");
  }
  read_small_files(path, out);
  return out;
}

HfDirectory open_safetensors_with_neighbours(const fs::path& file) {
  HfDirectory out;
  out.path = file;
  out.tensors = std::make_unique<SafetensorsFile>(file);
  out.files.push_back(file);
  read_small_files(file.has_parent_path() ? file.parent_path() : fs::path("."), out);
  return out;
}

}  // namespace halftone
