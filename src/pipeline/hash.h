// XXH64 of bytes that come in pieces.
#pragma once

#include <fmt/format.h>
#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace halftone {

struct HashDeleter {
  void operator()(XXH64_state_t* state) const { XXH64_freeState(state); }
};

class Hash {
 public:
  Hash() : state_(XXH64_createState()) { XXH64_reset(state_.get(), 0); }
  void add(const void* data, std::size_t bytes) { XXH64_update(state_.get(), data, bytes); }
  void add(std::string_view text) { add(text.data(), text.size()); }
  std::uint64_t digest() const { return XXH64_digest(state_.get()); }
  std::string hex() const { return fmt::format("{:016x}", digest()); }

 private:
  std::unique_ptr<XXH64_state_t, HashDeleter> state_;
};

// One hash for the tensors that hold a matrix.
inline std::string joined_hash(const std::vector<Hash>& parts) {
  if (parts.size() == 1) return parts.front().hex();
  Hash whole;
  for (const Hash& part : parts) whole.add(part.hex());
  return whole.hex();
}

}  // namespace halftone
