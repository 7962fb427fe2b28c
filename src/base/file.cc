#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "base/error.h"

namespace halftone {
namespace fs = std::filesystem;
namespace {

std::string system_message(int code) { return std::strerror(code); }

[[noreturn]] void fail_writing(const fs::path& path, int code, std::uint64_t wanted) {
  if (code == ENOSPC || code == EDQUOT) {
    fail(ErrorKind::resources, "{}: the disk is full (writing {} bytes, {} bytes free): free space and run again",
         path.string(), wanted, free_disk_bytes(path));
  }
  fail(ErrorKind::resources, "{}: cannot write: {}", path.string(), system_message(code));
}

void write_all(int fd, const fs::path& path, std::span<const std::byte> bytes, std::uint64_t offset) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::pwrite(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_writing(path, n < 0 ? errno : ENOSPC, bytes.size() - done);
    done += static_cast<std::size_t>(n);
  }
}

void sync_folder(const fs::path& folder) {
  const int fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

std::uint64_t status_bytes(const char* key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key)) return std::strtoull(line.c_str() + std::strlen(key), nullptr, 10) * 1024;
  }
  return 0;
}

}  // namespace

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT || errno == ENOTDIR) fail(ErrorKind::bad_input, "{}: no such file", path.string());
    if (errno == EACCES) fail(ErrorKind::bad_input, "{}: no permission to read it", path.string());
    fail(ErrorKind::resources, "{}: cannot open: {}", path.string(), system_message(errno));
  }
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    fail(ErrorKind::bad_input, "{}: not a regular file", path.string());
  }
  size_ = static_cast<std::size_t>(info.st_size);
  if (size_ > 0) {
    void* data = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
    const int code = errno;
    ::close(fd);
    if (data == MAP_FAILED) {
      fail(ErrorKind::resources, "{}: cannot map {} bytes: {}", path.string(), size_, system_message(code));
    }
    data_ = static_cast<const std::byte*>(data);
  } else {
    ::close(fd);
  }
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::forget(std::span<const std::byte> range) const {
  if (range.empty()) return;
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(range.data());
  const std::uintptr_t first = begin / page * page, last = (begin + range.size() + page - 1) / page * page;
  ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

OutputFile::OutputFile(const fs::path& path, bool keep_existing_content) : path_(path) {
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | (keep_existing_content ? 0 : O_TRUNC), 0644);
  if (fd_ < 0) fail(ErrorKind::resources, "{}: cannot create: {}", path.string(), system_message(errno));
  struct stat info {};
  if (::fstat(fd_, &info) == 0) size_ = static_cast<std::uint64_t>(info.st_size);
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
}

void OutputFile::append(std::span<const std::byte> bytes) { write_at(size_, bytes); }

void OutputFile::append(std::string_view text) { append(std::as_bytes(std::span(text.data(), text.size()))); }

void OutputFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  HT_CHECK(fd_ >= 0);
  write_all(fd_, path_, bytes, offset);
  size_ = std::max(size_, offset + bytes.size());
}

void OutputFile::truncate(std::uint64_t size) {
  if (::ftruncate(fd_, static_cast<off_t>(size)) != 0) fail_writing(path_, errno, size);
  size_ = size;
}

void OutputFile::sync() {
  if (::fdatasync(fd_) != 0) fail_writing(path_, errno, size_);
}

void OutputFile::close() {
  if (fd_ < 0) return;
  const int synced = ::fsync(fd_), sync_code = errno;
  const int closed = ::close(fd_), close_code = errno;
  fd_ = -1;
  if (synced != 0) fail_writing(path_, sync_code, size_);
  if (closed != 0) fail_writing(path_, close_code, size_);
}

std::string read_text_file(const fs::path& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void write_text_file(const fs::path& path, std::string_view text) {
  fs::path temporary = path;
  temporary += ".partial";
  try {
    OutputFile file(temporary, false);
    file.append(text);
    file.close();
  } catch (...) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw;
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    fail(ErrorKind::resources, "{}: cannot rename into place: {}", path.string(), system_message(errno));
  }
  sync_folder(path.parent_path());
}

void rename_durably(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    fail(ErrorKind::resources, "cannot rename {} to {}: {}", from.string(), to.string(), system_message(errno));
  }
  sync_folder(to.parent_path());
}

bool same_file(const fs::path& a, const fs::path& b) {
  struct stat sa {}, sb {};
  if (::stat(a.c_str(), &sa) != 0 || ::stat(b.c_str(), &sb) != 0) return false;
  return sa.st_dev == sb.st_dev && sa.st_ino == sb.st_ino;
}

std::uint64_t free_disk_bytes(const fs::path& where) {
  fs::path at = fs::absolute(where);
  struct statvfs info {};
  while (::statvfs(at.c_str(), &info) != 0) {
    if (!at.has_parent_path() || at == at.parent_path()) return 0;
    at = at.parent_path();
  }
  return static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
}

fs::path user_cache_folder() {
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg != nullptr && *xdg != '\0') return fs::path(xdg) / "halftone";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') return fs::path(home) / ".cache" / "halftone";
  fail(ErrorKind::usage, "no cache folder: set HOME or XDG_CACHE_HOME");
}

std::uint64_t peak_resident_bytes() { return status_bytes("VmHWM:"); }
std::uint64_t current_resident_bytes() { return status_bytes("VmRSS:"); }

}  // namespace halftone
