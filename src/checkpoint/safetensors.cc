#include "checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.h"
#include "checkpoint/file_kind.h"
#include "checkpoint/safetensors_header.h"

namespace halftone {
namespace fs = std::filesystem;
namespace {

constexpr std::uint64_t kPrefixBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the reference's limit
constexpr std::uint64_t kMaxIndexBytes = 100'000'000;
constexpr std::size_t kMaxListed = 5;

static_assert(std::endian::native == std::endian::little, "file formats are little-endian and are read in place");

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < kMaxListed; ++i)
    text += (i == 0 ? "'" : ", '") + printable(names[i]) + "'";
  if (names.size() > kMaxListed) text += fmt::format(" and {} more", names.size() - kMaxListed);
  return text;
}

// Copies `bits` bits that begin at bit `from` (least significant first) to the start of `out`; unused bits are zero.
void copy_bits(std::span<const std::byte> bytes, std::uint64_t from, std::uint64_t bits, std::span<std::byte> out) {
  const std::uint64_t shift = from % 8, at = from / 8;
  for (std::size_t i = 0; i < out.size(); ++i) {
    unsigned value = std::to_integer<unsigned>(bytes[at + i]) >> shift;
    if (shift != 0 && at + i + 1 < bytes.size()) value |= std::to_integer<unsigned>(bytes[at + i + 1]) << (8 - shift);
    out[i] = static_cast<std::byte>(value & 0xFFU);
  }
  if (bits % 8 != 0) out.back() &= static_cast<std::byte>((1U << (bits % 8)) - 1U);
}

}  // namespace

SafetensorsFile::SafetensorsFile(const fs::path& path) : file_(std::make_shared<MappedFile>(path)) {
  const std::span<const std::byte> content = file_->bytes();
  const std::string file = path.string();
  refuse_lookalike(path, content, "safetensors");
  if (content.size() < kPrefixBytes) {
    fail(ErrorKind::bad_input, "{}: the file has {} bytes, too few for a safetensors header: download it again", file,
         content.size());
  }
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, content.data(), sizeof header_bytes);
  if (header_bytes > kMaxHeaderBytes) {
    fail(ErrorKind::bad_input, "{}: the header length {} is above the limit of {}: not a safetensors file, or damaged",
         file, header_bytes, kMaxHeaderBytes);
  }
  if (header_bytes > content.size() - kPrefixBytes) {
    fail(ErrorKind::bad_input,
         "{}: the header needs {} bytes, the file has {}: it was cut short or is not a safetensors file: download it "
         "again",
         file, kPrefixBytes + header_bytes, content.size());
  }
  const std::string_view json(reinterpret_cast<const char*>(content.data()) + kPrefixBytes, header_bytes);
  SafetensorsHeader header = parse_safetensors_header(json, file);

  const std::uint64_t data_start = kPrefixBytes + header_bytes, data_bytes = content.size() - data_start;
  if (header.data_bytes > data_bytes) {
    const auto lost = std::find_if(header.entries.begin(), header.entries.end(),
                                   [&](const SafetensorsEntry& entry) { return entry.end > data_bytes; });
    // A lying header may declare anything up to 2^64 - 1 bytes, so the sum may not fit.
    const auto expected = checked_add(data_start, header.data_bytes);
    fail(ErrorKind::bad_input,
         "{}: expected {} bytes, the file has {}: it is cut short, the first lost tensor is '{}': download it again",
         file, expected ? std::to_string(*expected) : "more than 2^64", content.size(), printable(lost->info.name));
  }
  if (header.data_bytes < data_bytes) {
    fail(ErrorKind::bad_input,
         "{}: expected {} bytes, the file has {}: {} bytes trail the last tensor: download it again", file,
         data_start + header.data_bytes, content.size(), data_bytes - header.data_bytes);
  }
  metadata_ = std::move(header.metadata);
  tensors_.reserve(header.entries.size());
  offsets_.reserve(header.entries.size());
  for (SafetensorsEntry& entry : header.entries) {
    entry.info.file = path.filename().string();
    index_.emplace(entry.info.name, tensors_.size());
    offsets_.push_back(data_start + entry.begin);
    tensors_.push_back(std::move(entry.info));
  }
}

std::span<const std::byte> SafetensorsFile::rows(const TensorInfo& info, std::int64_t first, std::int64_t count,
                                                 std::vector<std::byte>& scratch) const {
  const auto found = index_.find(info.name);
  HT_CHECK(found != index_.end());
  const TensorInfo& mine = tensors_[found->second];
  HT_CHECK(first >= 0 && count >= 0 && first <= mine.rows() && count <= mine.rows() - first);
  const auto tensor = file_->bytes().subspan(offsets_[found->second], mine.bytes);
  if (tensor.empty() || count == 0) return tensor.first(0);
  const std::uint64_t row_bits =
      static_cast<std::uint64_t>(mine.cols()) * static_cast<std::uint64_t>(dtype_bits(mine.dtype));
  if (row_bits % 8 == 0) {
    return tensor.subspan(static_cast<std::uint64_t>(first) * (row_bits / 8),
                          static_cast<std::uint64_t>(count) * (row_bits / 8));
  }
  // Sub-byte rows that share bytes: each one is moved to the start of a byte.
  const std::uint64_t row_bytes = (row_bits + 7) / 8;
  scratch.assign(static_cast<std::uint64_t>(count) * row_bytes, std::byte{0});
  for (std::uint64_t r = 0; r < static_cast<std::uint64_t>(count); ++r) {
    copy_bits(tensor, (static_cast<std::uint64_t>(first) + r) * row_bits, row_bits,
              std::span(scratch).subspan(r * row_bytes, row_bytes));
  }
  return scratch;
}

void SafetensorsFile::forget(const TensorInfo& info) const {
  const auto found = index_.find(info.name);
  HT_CHECK(found != index_.end());
  file_->forget(file_->bytes().subspan(offsets_[found->second], tensors_[found->second].bytes));
}

std::string safetensors_header(const std::vector<TensorInfo>& tensors, std::map<std::string, std::string> metadata) {
  metadata.emplace("format", "pt");
  for (const auto& [key, value] : metadata) {
    if (first_invalid_utf8(key) || first_invalid_utf8(value)) {
      fail(ErrorKind::bad_input, "the metadata entry '{}' is not UTF-8 and cannot stand in a safetensors file",
           printable(key));
    }
  }
  std::set<std::string_view> names{"__metadata__"};
  std::string text = "{\"__metadata__\":" + nlohmann::json(metadata).dump();
  std::uint64_t offset = 0;
  for (const TensorInfo& tensor : tensors) {
    HT_CHECK(tensor.dtype != DType::ggml_block);
    if (first_invalid_utf8(tensor.name)) {
      fail(ErrorKind::bad_input, "tensor '{}': the name is not UTF-8 and cannot stand in a safetensors file",
           printable(tensor.name));
    }
    if (!names.insert(tensor.name).second) {
      fail(ErrorKind::bad_input, "tensor '{}': the name is used twice or reserved in a safetensors file",
           printable(tensor.name));
    }
    const std::uint64_t bits =
        static_cast<std::uint64_t>(tensor.elements()) * static_cast<std::uint64_t>(dtype_bits(tensor.dtype));
    HT_CHECK(bits % 8 == 0 && tensor.bytes == bits / 8);
    text += fmt::format(",{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}",
                        nlohmann::json(tensor.name).dump(), dtype_name(tensor.dtype),
                        nlohmann::json(tensor.shape).dump(), offset, offset + tensor.bytes);
    offset += tensor.bytes;
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kMaxHeaderBytes) {
    fail(ErrorKind::unsupported,
         "{} tensors need a safetensors header of {} bytes, above the format's limit of {}: "
         "write smaller shards",
         tensors.size(), text.size(), kMaxHeaderBytes);
  }
  const std::uint64_t size = text.size();
  std::string header(kPrefixBytes, '\0');
  std::memcpy(header.data(), &size, sizeof size);
  return header + text;
}

ShardedSafetensors::ShardedSafetensors(const fs::path& directory) {
  std::error_code ignored;  // a name that is too long is as missing as any other
  if (!fs::is_directory(directory, ignored)) fail(ErrorKind::bad_input, "{}: no such directory", directory.string());
  std::map<std::string, std::string> weight_map;
  std::set<std::string> names;
  const fs::path index = directory / "model.safetensors.index.json";
  const bool single = fs::exists(directory / "model.safetensors", ignored);
  if (single) {
    names.insert("model.safetensors");
  } else {
    const MappedFile file(index);
    refuse_lookalike(index, file.bytes(), "JSON index");
    if (file.bytes().size() > kMaxIndexBytes) {
      fail(ErrorKind::bad_input, "{}: {} bytes are too many for an index", index.string(), file.bytes().size());
    }
    weight_map = parse_safetensors_index({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()},
                                         index.string());
    for (const auto& [tensor, shard] : weight_map) names.insert(shard);
    if (names.empty()) fail(ErrorKind::bad_input, "{}: weight_map names no tensor", index.string());
  }
  std::vector<std::string> missing;
  for (const std::string& name : names) {
    if (!fs::exists(directory / name, ignored)) missing.push_back(name);
  }
  if (!missing.empty()) {
    fail(ErrorKind::bad_input,
         "{}: {} of the {} files that model.safetensors.index.json names {} missing: {}: download {}",
         directory.string(), missing.size(), names.size(), missing.size() == 1 ? "is" : "are", listed(missing),
         missing.size() == 1 ? "it" : "them");
  }
  for (const std::string& name : names) {
    if (!single && fs::path(name).extension() != ".safetensors") {
      fail(ErrorKind::bad_input, "{}: weight_map names '{}', which is not a .safetensors file", index.string(),
           printable(name));
    }
    shards_.push_back(std::make_unique<SafetensorsFile>(directory / name));
    files_.push_back(directory / name);
    const std::vector<TensorInfo>& held = shards_.back()->tensors();
    for (const TensorInfo& info : held) {
      const auto [before, is_new] = shard_of_.emplace(info.name, shards_.size() - 1);
      if (!is_new) {
        fail(ErrorKind::bad_input, "{}: tensor '{}' is in two files, '{}' and '{}'", directory.string(),
             printable(info.name), shards_[before->second]->tensors().front().file, info.file);
      }
    }
    tensors_.insert(tensors_.end(), held.begin(), held.end());
  }
  if (single) return;
  files_.push_back(index);

  std::vector<std::string> absent, unlisted, elsewhere;
  for (const auto& [tensor, shard] : weight_map) {
    const auto found = shard_of_.find(tensor);
    if (found == shard_of_.end()) {
      absent.push_back(tensor);
    } else if (const std::string& real = shards_[found->second]->tensors().front().file; real != shard) {
      elsewhere.push_back(fmt::format("{} (in {}, not in {})", tensor, real, shard));
    }
  }
  for (const TensorInfo& info : tensors_) {
    if (!weight_map.contains(info.name)) unlisted.push_back(info.name);
  }
  if (!elsewhere.empty()) {
    fail(ErrorKind::bad_input, "{}: the index places tensors in another file than they are in: {}", index.string(),
         listed(elsewhere));
  }
  if (!absent.empty()) {
    fail(ErrorKind::bad_input, "{}: the index names tensors that no file has: {}: download the files again",
         index.string(), listed(absent));
  }
  if (!unlisted.empty()) {
    fail(ErrorKind::bad_input, "{}: the files have tensors that the index does not name: {}: download the index again",
         index.string(), listed(unlisted));
  }
}

std::span<const std::byte> ShardedSafetensors::rows(const TensorInfo& info, std::int64_t first, std::int64_t count,
                                                    std::vector<std::byte>& scratch) const {
  const auto found = shard_of_.find(info.name);
  HT_CHECK(found != shard_of_.end());
  return shards_[found->second]->rows(info, first, count, scratch);
}

void ShardedSafetensors::forget(const TensorInfo& info) const {
  const auto found = shard_of_.find(info.name);
  HT_CHECK(found != shard_of_.end());
  shards_[found->second]->forget(info);
}

std::vector<fs::path> ShardedSafetensors::files() const {
  return files_;
}

}  // namespace halftone
