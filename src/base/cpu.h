// What this processor can do, and which instruction set the kernels use. Selection is a pure function, so that it is
// tested for processors that are not at hand.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace halftone {

enum class Isa { scalar = 0, avx2 = 1, avx512 = 2 };

std::string_view isa_name(Isa isa);                        // "scalar", "avx2", "avx512"
std::optional<Isa> parse_isa(std::string_view name);       // nullopt if it is none of the three

struct CpuFeatures {
  std::string model;  // brand string
  bool avx2 = false, fma = false, f16c = false, bmi2 = false;
  bool avx512f = false, avx512bw = false, avx512vl = false, avx512dq = false;
  bool avx512vbmi = false, avx512vnni = false, avx512bf16 = false;
  std::size_t l1d_bytes = 32 * 1024, l2_bytes = 512 * 1024, l3_bytes = 8 * 1024 * 1024;
};

CpuFeatures detect_cpu();  // CPUID and XGETBV: a feature counts only if the system saves its registers

struct IsaChoice {
  Isa isa = Isa::scalar;
  std::string reason;  // why this one and why the faster ones were refused; printed by `doctor`
};

// The fastest instruction set that `cpu` has, that was compiled in, and that is not above `cap`.
IsaChoice select_isa(const CpuFeatures& cpu, std::optional<Isa> cap, Isa compiled);

// select_isa(detect_cpu(), HALFTONE_ISA, what was compiled in), decided once a process.
// Error(usage) if HALFTONE_ISA holds another word than scalar, avx2, avx512.
const IsaChoice& active_isa();

}  // namespace halftone
