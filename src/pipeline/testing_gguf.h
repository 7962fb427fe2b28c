// For tests only: builds GGUF files, from scratch or as llama.cpp's converter would from a small safetensors model.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "tensor/source.h"

namespace halftone {

class GgufBuilder {
 public:
  explicit GgufBuilder(const std::string& architecture) { add_string("general.architecture", architecture); }

  void add_u32(const std::string& key, std::uint32_t value) { pair(key, 4, bytes_of(value)); }
  void add_f32(const std::string& key, float value) { pair(key, 6, bytes_of(value)); }
  void add_bool(const std::string& key, bool value) { pair(key, 7, std::string(1, value ? '\1' : '\0')); }
  void add_string(const std::string& key, const std::string& value) { pair(key, 8, counted(value)); }
  void add_strings(const std::string& key, const std::vector<std::string>& values) {
    std::string payload = bytes_of(std::uint32_t{8}) + bytes_of(static_cast<std::uint64_t>(values.size()));
    for (const std::string& value : values) payload += counted(value);
    pair(key, 9, payload);
  }
  void add_i32s(const std::string& key, const std::vector<std::int32_t>& values) {
    std::string payload = bytes_of(std::uint32_t{5}) + bytes_of(static_cast<std::uint64_t>(values.size()));
    for (const std::int32_t value : values) payload += bytes_of(value);
    pair(key, 9, payload);
  }
  void add_tensor(const std::string& name, const Shape& shape, std::uint32_t ggml_type, std::string data) {
    infos_ += counted(name) + bytes_of(static_cast<std::uint32_t>(shape.size()));
    for (auto dim = shape.rbegin(); dim != shape.rend(); ++dim) infos_ += bytes_of(static_cast<std::uint64_t>(*dim));
    infos_ += bytes_of(ggml_type) + bytes_of(static_cast<std::uint64_t>(data_.size()));
    data_ += data;
    data_.resize((data_.size() + 31) / 32 * 32);
    ++tensors_;
  }
  void add_f32_tensor(const std::string& name, const Shape& shape, const std::vector<float>& values) {
    add_tensor(name, shape, 0, std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
  }

  void write(const std::filesystem::path& path) const {
    std::string file = "GGUF" + bytes_of(std::uint32_t{3}) + bytes_of(tensors_) + bytes_of(pairs_) + meta_ + infos_;
    file.resize((file.size() + 31) / 32 * 32);
    write_text_file(path, file + data_);
  }

 private:
  template <class T>
  static std::string bytes_of(T value) {
    std::string bytes(sizeof(T), '\0');
    std::memcpy(bytes.data(), &value, sizeof(T));
    return bytes;
  }
  static std::string counted(const std::string& text) {
    return bytes_of(static_cast<std::uint64_t>(text.size())) + text;
  }
  void pair(const std::string& key, std::uint32_t type, const std::string& payload) {
    meta_ += counted(key) + bytes_of(type) + payload;
    ++pairs_;
  }

  std::string meta_, infos_, data_;
  std::uint64_t pairs_ = 0, tensors_ = 0;
};

// Rows (or the elements of a vector) from rotate-half to interleaved order, by the converter's rule: each head's rows
// viewed as [2, d/2] and transposed.
inline std::vector<float> interleave(const std::vector<float>& values, std::int64_t width, std::int64_t head_dim) {
  std::vector<float> out(values.size());
  const std::int64_t rows = std::ssize(values) / width;
  for (std::int64_t head = 0; head < rows / head_dim; ++head) {
    for (std::int64_t j = 0; j < 2; ++j) {
      for (std::int64_t i = 0; i < head_dim / 2; ++i) {
        const std::int64_t from = head * head_dim + j * (head_dim / 2) + i, to = head * head_dim + 2 * i + j;
        std::copy_n(values.begin() + from * width, width, out.begin() + to * width);
      }
    }
  }
  return out;
}

}  // namespace halftone
