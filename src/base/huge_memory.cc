#include "base/huge_memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <mutex>

#include "base/error.h"

namespace halftone {
namespace {

constexpr std::size_t kPage = std::size_t{2} << 20;
constexpr std::size_t kChunk = std::size_t{32} << 20;

std::shared_ptr<std::byte[]> map_chunk(std::size_t bytes) {
  const std::size_t rounded = (bytes + kPage - 1) / kPage * kPage, whole = rounded + kPage;
  void* base = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) fail(ErrorKind::resources, "no memory for {} bytes of weights", bytes);
  const auto address = reinterpret_cast<std::uintptr_t>(base);
  auto* aligned = reinterpret_cast<std::byte*>((address + kPage - 1) / kPage * kPage);
  ::madvise(aligned, rounded, MADV_HUGEPAGE);  // a wish: without huge pages the program runs all the same
  return {aligned, [base, whole](std::byte*) { ::munmap(base, whole); }};
}

}  // namespace

std::shared_ptr<std::byte[]> allocate_huge(std::size_t bytes) {
  if (bytes > kChunk / 2) return map_chunk(bytes);
  static std::mutex mutex;
  static std::weak_ptr<std::byte[]> open_chunk;
  static std::size_t used = 0;
  const std::size_t rounded = (bytes + 63) / 64 * 64;
  const std::lock_guard lock(mutex);
  std::shared_ptr<std::byte[]> chunk = open_chunk.lock();
  if (!chunk || used + rounded > kChunk) {
    chunk = map_chunk(kChunk);
    open_chunk = chunk;
    used = 0;
  }
  std::byte* part = chunk.get() + used;
  used += rounded;
  return {std::move(chunk), part};
}

}  // namespace halftone
