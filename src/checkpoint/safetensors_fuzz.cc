// libFuzzer: any header must be read or refused with an Error, and what is read must be consistent.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "checkpoint/safetensors_header.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const halftone::SafetensorsHeader header = halftone::parse_safetensors_header(text, "fuzz");
    std::uint64_t end = 0;
    for (const halftone::SafetensorsEntry& entry : header.entries) {
      HT_CHECK(entry.begin == end && entry.end - entry.begin == entry.info.bytes);
      HT_CHECK(entry.info.elements() >= 0 && entry.info.rows() >= 0 && entry.info.cols() >= 0);
      end = entry.end;
    }
    HT_CHECK(end == header.data_bytes);
  } catch (const halftone::Error&) {
  }
  try {
    for (const auto& [tensor, file] : halftone::parse_safetensors_index(text, "fuzz")) {
      HT_CHECK(file.find('/') == std::string::npos && file != ".." && file != ".");
    }
  } catch (const halftone::Error&) {
  }
  return 0;
}
