#include "tensor/dtype.h"

namespace halftone {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  int bits;
  std::string_view format;  // "" where there is none
};

constexpr Row kRows[] = {
    {DType::boolean, "BOOL", 8, ""},
    {DType::f4, "F4", 4, "fp4_e2m1"},
    {DType::f6_e2m3, "F6_E2M3", 6, "fp6_e2m3"},
    {DType::f6_e3m2, "F6_E3M2", 6, "fp6_e3m2"},
    {DType::u8, "U8", 8, ""},
    {DType::i8, "I8", 8, "int8"},
    {DType::f8_e5m2, "F8_E5M2", 8, "fp8_e5m2"},
    {DType::f8_e4m3, "F8_E4M3", 8, "fp8_e4m3"},
    {DType::f8_e8m0, "F8_E8M0", 8, "e8m0"},
    {DType::f8_e4m3fnuz, "F8_E4M3FNUZ", 8, "fp8_e4m3fnuz"},
    {DType::f8_e5m2fnuz, "F8_E5M2FNUZ", 8, "fp8_e5m2fnuz"},
    {DType::i16, "I16", 16, ""},
    {DType::u16, "U16", 16, ""},
    {DType::f16, "F16", 16, "fp16"},
    {DType::bf16, "BF16", 16, "bf16"},
    {DType::i32, "I32", 32, ""},
    {DType::u32, "U32", 32, ""},
    {DType::f32, "F32", 32, "fp32"},
    {DType::c64, "C64", 64, ""},
    {DType::f64, "F64", 64, ""},
    {DType::i64, "I64", 64, ""},
    {DType::u64, "U64", 64, ""},
    {DType::ggml_block, "GGML", 0, ""},
};

}  // namespace

std::string_view dtype_name(DType dtype) {
  return kRows[static_cast<int>(dtype)].name;
}

std::optional<DType> find_dtype(std::string_view safetensors_name) {
  for (const Row& row : kRows) {
    if (row.name == safetensors_name && row.dtype != DType::ggml_block) return row.dtype;
  }
  return std::nullopt;
}

int dtype_bits(DType dtype) {
  return kRows[static_cast<int>(dtype)].bits;
}

std::optional<ElementFormat> dtype_format(DType dtype) {
  const std::string_view name = kRows[static_cast<int>(dtype)].format;
  if (name.empty()) return std::nullopt;
  return find_format(name);
}

}  // namespace halftone
