#include "numeric/ggml.h"

#include <array>

#include "base/error.h"

namespace halftone {
namespace {

constexpr std::array kTypes = {
    GgmlTypeInfo{GgmlType::f32, "f32", 1, 4, true, true},
    GgmlTypeInfo{GgmlType::f16, "f16", 1, 2, true, true},
    GgmlTypeInfo{GgmlType::q4_0, "q4_0", 32, 18, true, true},
    GgmlTypeInfo{GgmlType::q4_1, "q4_1", 32, 20, true, true},
    GgmlTypeInfo{GgmlType::q5_0, "q5_0", 32, 22, true, true},
    GgmlTypeInfo{GgmlType::q5_1, "q5_1", 32, 24, true, true},
    GgmlTypeInfo{GgmlType::q8_0, "q8_0", 32, 34, true, true},
    GgmlTypeInfo{GgmlType::q8_1, "q8_1", 32, 36, true, false},
    GgmlTypeInfo{GgmlType::q2_k, "q2_k", 256, 84, true, true},
    GgmlTypeInfo{GgmlType::q3_k, "q3_k", 256, 110, true, true},
    GgmlTypeInfo{GgmlType::q4_k, "q4_k", 256, 144, true, true},
    GgmlTypeInfo{GgmlType::q5_k, "q5_k", 256, 176, true, true},
    GgmlTypeInfo{GgmlType::q6_k, "q6_k", 256, 210, true, true},
    GgmlTypeInfo{GgmlType::q8_k, "q8_k", 256, 292, true, false},
    GgmlTypeInfo{GgmlType::iq2_xxs, "iq2_xxs", 256, 66, false, false},
    GgmlTypeInfo{GgmlType::iq2_xs, "iq2_xs", 256, 74, false, false},
    GgmlTypeInfo{GgmlType::iq3_xxs, "iq3_xxs", 256, 98, false, false},
    GgmlTypeInfo{GgmlType::iq1_s, "iq1_s", 256, 50, false, false},
    GgmlTypeInfo{GgmlType::iq4_nl, "iq4_nl", 32, 18, true, true},
    GgmlTypeInfo{GgmlType::iq3_s, "iq3_s", 256, 110, false, false},
    GgmlTypeInfo{GgmlType::iq2_s, "iq2_s", 256, 82, false, false},
    GgmlTypeInfo{GgmlType::iq4_xs, "iq4_xs", 256, 136, true, true},
    GgmlTypeInfo{GgmlType::i8, "i8", 1, 1, true, false},
    GgmlTypeInfo{GgmlType::i16, "i16", 1, 2, true, false},
    GgmlTypeInfo{GgmlType::i32, "i32", 1, 4, true, false},
    GgmlTypeInfo{GgmlType::i64, "i64", 1, 8, true, false},
    GgmlTypeInfo{GgmlType::f64, "f64", 1, 8, true, false},
    GgmlTypeInfo{GgmlType::iq1_m, "iq1_m", 256, 56, false, false},
    GgmlTypeInfo{GgmlType::bf16, "bf16", 1, 2, true, true},
    GgmlTypeInfo{GgmlType::tq1_0, "tq1_0", 256, 54, true, true},
    GgmlTypeInfo{GgmlType::tq2_0, "tq2_0", 256, 66, true, true},
    GgmlTypeInfo{GgmlType::mxfp4, "mxfp4", 32, 17, true, true},
    GgmlTypeInfo{GgmlType::nvfp4, "nvfp4", 64, 36, true, true},
    GgmlTypeInfo{GgmlType::q1_0, "q1_0", 128, 18, true, false},
    GgmlTypeInfo{GgmlType::q2_0, "q2_0", 64, 18, true, false},
};

bool same_letters(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const char c = a[i] >= 'A' && a[i] <= 'Z' ? static_cast<char>(a[i] - 'A' + 'a') : a[i];
    if (c != b[i]) return false;
  }
  return true;
}

}  // namespace

std::span<const GgmlTypeInfo> ggml_types() {
  return kTypes;
}

const GgmlTypeInfo* find_ggml_type(std::uint32_t id) {
  for (const GgmlTypeInfo& info : kTypes) {
    if (static_cast<std::uint32_t>(info.type) == id) return &info;
  }
  return nullptr;
}

const GgmlTypeInfo* find_ggml_type(std::string_view name) {
  for (const GgmlTypeInfo& info : kTypes) {
    if (same_letters(name, info.name)) return &info;
  }
  return nullptr;
}

const GgmlTypeInfo& ggml_info(GgmlType type) {
  const GgmlTypeInfo* info = find_ggml_type(static_cast<std::uint32_t>(type));
  HT_CHECK(info != nullptr);
  return *info;
}

}  // namespace halftone
