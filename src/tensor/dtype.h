// How a tensor's bytes are stored in a checkpoint: the dtypes of safetensors and the block types of GGUF in one list.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "numeric/format.h"
#include "numeric/ggml.h"

namespace halftone {

enum class DType : std::uint8_t {
  boolean,
  f4,
  f6_e2m3,
  f6_e3m2,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64,
  ggml_block  // a GGUF block type; TensorInfo::ggml says which
};

std::string_view dtype_name(DType dtype);  // the safetensors spelling: "F8_E4M3"
std::optional<DType> find_dtype(std::string_view safetensors_name);
int dtype_bits(DType dtype);  // 4, 6, 8, ...; 0 for ggml_block
// The element format of floating dtypes (f32 bf16 f16 f8_* f6_* f4) and i8; nullopt for the others.
std::optional<ElementFormat> dtype_format(DType dtype);

}  // namespace halftone
