// Inside kernels/attention only: where things lie in a page of the key/value cache.
#pragma once

#include <cstddef>

#include "kernels/attention/attention.h"
#include "kernels/attention/kernels.h"

namespace halftone {

KvCode kv_code(const ElementFormat& format);  // Error(unsupported) for formats that the cache cannot hold

// Byte offsets; `row` is kv_head * kKvPageTokens + slot.
struct PageMap {
  explicit PageMap(const KvLayout& layout);

  KvCode kind;
  std::size_t code_bytes;
  std::size_t numbers_per_head_row;  // kv_heads * kKvPageTokens
  std::size_t head_dim;
  std::size_t value_offset, scale_offset;

  std::size_t key_codes(std::size_t row) const { return row * head_dim * code_bytes; }
  std::size_t value_codes(std::size_t row) const { return value_offset + row * head_dim * code_bytes; }
  std::size_t key_scale(std::size_t row) const { return scale_offset + row * sizeof(float); }
  std::size_t value_scale(std::size_t row) const { return scale_offset + (numbers_per_head_row + row) * sizeof(float); }
};

}  // namespace halftone
