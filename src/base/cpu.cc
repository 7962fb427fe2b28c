#include "base/cpu.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "base/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace halftone {
namespace {

constexpr std::string_view kNames[] = {"scalar", "avx2", "avx512"};

#if defined(__x86_64__)
std::uint64_t read_xcr0() {
  std::uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return std::uint64_t{high} << 32 | low;
}

void detect_x86(CpuFeatures& cpu) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  char brand[49] = {};
  for (unsigned leaf = 0; leaf < 3; ++leaf) {
    if (__get_cpuid(0x80000002U + leaf, &a, &b, &c, &d) == 0) break;
    const unsigned words[4] = {a, b, c, d};
    std::memcpy(brand + 16 * leaf, words, sizeof words);
  }
  cpu.model = brand;
  while (!cpu.model.empty() && std::isspace(static_cast<unsigned char>(cpu.model.back())) != 0) cpu.model.pop_back();

  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return;
  const bool osxsave = (c >> 27 & 1U) != 0;
  const bool has_fma = (c >> 12 & 1U) != 0, has_f16c = (c >> 29 & 1U) != 0;
  if (!osxsave) return;
  const std::uint64_t xcr0 = read_xcr0();
  const bool ymm_saved = (xcr0 & 0x06U) == 0x06U;
  const bool zmm_saved = (xcr0 & 0xE6U) == 0xE6U;
  if (!ymm_saved || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return;
  cpu.avx2 = (b >> 5 & 1U) != 0;
  cpu.bmi2 = (b >> 8 & 1U) != 0;
  cpu.fma = has_fma;
  cpu.f16c = has_f16c;
  if (!zmm_saved) return;
  cpu.avx512f = (b >> 16 & 1U) != 0;
  cpu.avx512dq = (b >> 17 & 1U) != 0;
  cpu.avx512bw = (b >> 30 & 1U) != 0;
  cpu.avx512vl = (b >> 31 & 1U) != 0;
  cpu.avx512vbmi = (c >> 1 & 1U) != 0;
  cpu.avx512vnni = (c >> 11 & 1U) != 0;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) != 0) cpu.avx512bf16 = (a >> 5 & 1U) != 0;
}
#endif

void read_caches(CpuFeatures& cpu) {
  for (int index = 0; index < 8; ++index) {
    const std::string base = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/", index);
    std::ifstream level_file(base + "level"), type_file(base + "type"), size_file(base + "size");
    int level = 0;
    std::string type, size;
    if (!(level_file >> level) || !(type_file >> type) || !(size_file >> size) || type == "Instruction") continue;
    std::size_t bytes = std::strtoull(size.c_str(), nullptr, 10);
    if (size.ends_with('K')) bytes *= 1024;
    if (size.ends_with('M')) bytes *= 1024 * 1024;
    if (bytes == 0) continue;
    if (level == 1) cpu.l1d_bytes = bytes;
    if (level == 2) cpu.l2_bytes = bytes;
    if (level == 3) cpu.l3_bytes = bytes;
  }
}

// The first thing that an instruction set lacks; empty if it can run.
std::string refusal(const CpuFeatures& cpu, Isa isa, std::optional<Isa> cap, Isa compiled) {
  if (isa > compiled) return "not compiled in";
  if (cap && isa > *cap) return fmt::format("capped by HALFTONE_ISA={}", isa_name(*cap));
  struct Need {
    bool CpuFeatures::*flag;
    const char* name;
  };
  static constexpr Need kAvx2[] = {
      {&CpuFeatures::avx2, "AVX2"}, {&CpuFeatures::fma, "FMA"}, {&CpuFeatures::f16c, "F16C"}, {&CpuFeatures::bmi2, "BMI2"}};
  static constexpr Need kAvx512[] = {
      {&CpuFeatures::avx512f, "AVX512F"},       {&CpuFeatures::avx512bw, "AVX512BW"},
      {&CpuFeatures::avx512vl, "AVX512VL"},     {&CpuFeatures::avx512dq, "AVX512DQ"},
      {&CpuFeatures::avx512vbmi, "AVX512_VBMI"}, {&CpuFeatures::avx512vnni, "AVX512_VNNI"},
      {&CpuFeatures::avx512bf16, "AVX512_BF16"}};
  std::string missing;
  const auto check = [&](const Need& need) {
    if (!(cpu.*need.flag)) missing += (missing.empty() ? "no " : ", ") + std::string(need.name);
  };
  if (isa >= Isa::avx2) std::for_each(std::begin(kAvx2), std::end(kAvx2), check);
  if (isa >= Isa::avx512) std::for_each(std::begin(kAvx512), std::end(kAvx512), check);
  return missing;
}

}  // namespace

std::string_view isa_name(Isa isa) { return kNames[static_cast<int>(isa)]; }

std::optional<Isa> parse_isa(std::string_view name) {
  for (int i = 0; i < 3; ++i) {
    if (name == kNames[i]) return static_cast<Isa>(i);
  }
  return std::nullopt;
}

CpuFeatures detect_cpu() {
  CpuFeatures cpu;
#if defined(__x86_64__)
  detect_x86(cpu);
#endif
  read_caches(cpu);
  return cpu;
}

IsaChoice select_isa(const CpuFeatures& cpu, std::optional<Isa> cap, Isa compiled) {
  IsaChoice choice;
  std::string refused;
  for (const Isa isa : {Isa::avx512, Isa::avx2, Isa::scalar}) {
    const std::string why = refusal(cpu, isa, cap, compiled);
    if (why.empty()) {
      choice.isa = isa;
      break;
    }
    refused += fmt::format("{}{} refused: {}", refused.empty() ? "" : "; ", isa_name(isa), why);
  }
  choice.reason = refused.empty() ? "the widest that is compiled in" : refused;
  return choice;
}

const IsaChoice& active_isa() {
  static const IsaChoice choice = [] {
    std::optional<Isa> cap;
    if (const char* wanted = std::getenv("HALFTONE_ISA"); wanted != nullptr && *wanted != '\0') {
      cap = parse_isa(wanted);
      if (!cap) fail(ErrorKind::usage, "HALFTONE_ISA={}: expected scalar, avx2 or avx512", wanted);
    }
#ifdef HALFTONE_SIMD
    constexpr Isa kCompiled = Isa::avx512;
#else
    constexpr Isa kCompiled = Isa::scalar;
#endif
    return select_isa(detect_cpu(), cap, kCompiled);
  }();
  return choice;
}

}  // namespace halftone
