// libFuzzer: any file must be read or refused with an Error, and all tensor bytes must be there.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("halftone-fuzz-" + std::to_string(::getpid()) + ".gguf");
  {
    halftone::OutputFile file(path, false);
    file.append(std::as_bytes(std::span(data, size)));
  }
  try {
    const halftone::GgufFile file(path);
    std::vector<std::byte> scratch;
    unsigned sum = 0;
    for (const halftone::TensorInfo& info : file.tensors()) {
      for (const std::byte b : file.rows(info, 0, info.rows(), scratch)) sum += std::to_integer<unsigned>(b);
    }
    [[maybe_unused]] static volatile unsigned sink;
    sink = sum;
  } catch (const halftone::Error&) {
  }
  return 0;
}
