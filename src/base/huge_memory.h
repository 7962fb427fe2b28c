// Memory for large tables that are read again and again: zeroed, in 2 MiB pages where the system gives them, so that
// streaming does not wait for page tables.
#pragma once

#include <cstddef>
#include <memory>

namespace halftone {

// 64-byte aligned, zeroed. Small requests share chunks of 32 MiB; a chunk is given back when all its parts are gone.
// Thread-safe. Error(resources) if the system has no more.
std::shared_ptr<std::byte[]> allocate_huge(std::size_t bytes);

}  // namespace halftone
