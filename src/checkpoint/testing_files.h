// For tests only: builds checkpoint files byte by byte, sound ones and damaged ones.
#pragma once

#include <gtest/gtest.h>
#include <time.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/file.h"

namespace halftone {

inline void put_file(const std::filesystem::path& path, std::string_view content) {
  // A new file: some file systems write to the disk at once when a file is emptied and filled again.
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
}

template <class T>
std::string little_endian(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

inline std::string safetensors_bytes(std::string_view json, std::string_view data) {
  return little_endian(static_cast<std::uint64_t>(json.size())) + std::string(json) + std::string(data);
}

inline std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return bytes;
}

// What went wrong: the message of the Error that `body` throws, "" if it throws none. Another exception fails the test.
template <class Body>
std::string error_of(const Body& body, ErrorKind* kind = nullptr) {
  try {
    body();
  } catch (const Error& error) {
    if (kind != nullptr) *kind = error.kind();
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "not a halftone::Error: " << error.what();
    return error.what();
  }
  return "";
}

inline double thread_milliseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

// Expects an Error within 50 ms (of processor time: tests share machines) whose message has all of `parts`, and less
// than 10 MB of new memory at its peak.
template <class Body>
void expect_cheap_refusal(const Body& body, std::initializer_list<std::string_view> parts,
                          ErrorKind wanted = ErrorKind::bad_input) {
  std::ofstream("/proc/self/clear_refs") << "5";  // VmHWM starts again from the present value
  const std::uint64_t before = peak_resident_bytes();
  const double start = thread_milliseconds();
  ErrorKind kind{};
  const std::string message = error_of(body, &kind);
  const double time = thread_milliseconds() - start;
  EXPECT_LT(time, 50.0) << message;
  EXPECT_LT(peak_resident_bytes() - before, 10U << 20) << message;
  EXPECT_NE(message, "") << "accepted";
  EXPECT_EQ(kind, wanted) << message;
  for (const std::string_view part : parts) EXPECT_NE(message.find(part), std::string::npos) << part << "\n" << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

}  // namespace halftone
