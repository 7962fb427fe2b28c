// Files: read-only mappings, checked writing, and output folders that appear under their final name only when complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace halftone {

// A read-only mapping of a regular file. Errors: bad_input (missing, a directory), resources (cannot map).
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Tells the system that these bytes will not be needed soon: their pages leave the resident set.
  void forget(std::span<const std::byte> range) const;

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Sequential or positioned writing. Every failure is Error(resources) that names the file and, for a full disk, the
// bytes needed. close() syncs to disk; the destructor closes without reporting.
class OutputFile {
 public:
  OutputFile(const std::filesystem::path& path, bool keep_existing_content);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void append(std::span<const std::byte> bytes);
  void append(std::string_view text);
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  void truncate(std::uint64_t size);
  std::uint64_t size() const { return size_; }
  void sync();   // fdatasync
  void close();  // fsync and close

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  std::uint64_t size_ = 0;
};

std::string read_text_file(const std::filesystem::path& path);  // bytes as they are; bad_input if missing
void write_text_file(const std::filesystem::path& path, std::string_view text);  // temporary name, fsync, rename

// Renames and syncs the parent folder. Error(resources) if `to` exists and is not an empty folder.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

bool same_file(const std::filesystem::path& a, const std::filesystem::path& b);  // device and inode; links followed
std::uint64_t free_disk_bytes(const std::filesystem::path& where);               // nearest existing parent
std::filesystem::path user_cache_folder();  // $XDG_CACHE_HOME/halftone or ~/.cache/halftone

std::uint64_t peak_resident_bytes();     // VmHWM
std::uint64_t current_resident_bytes();  // VmRSS

}  // namespace halftone
