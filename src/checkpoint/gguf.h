// GGUF v2 and v3 files (shared/formats.md 3.6). As strict as the reference C reader, and stricter: tensor data must lie
// inside of the file, alignments above 1 MiB, lists beyond any real file and well-known keys of a wrong type are
// refused.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/file.h"
#include "tensor/source.h"

namespace halftone {

// Key/value metadata. Integers of all widths are kept as int64 or uint64; arrays of strings and numbers are flat.
struct GgufValue {
  std::uint32_t type = 0;          // GGUF type id as in the file (9 = array)
  std::uint32_t element_type = 0;  // of an array
  std::variant<std::monostate, std::uint64_t, std::int64_t, double, bool, std::string, std::vector<std::uint64_t>,
               std::vector<std::int64_t>, std::vector<double>, std::vector<std::string>>
      value;
};

class GgufFile final : public TensorSource {
 public:
  // Error(bad_input) that names file, key or tensor, field; Error(unsupported) for big-endian files, versions other
  // than 2 and 3, tensor types that the format has removed, and one part of a split model.
  explicit GgufFile(const std::filesystem::path& path);

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }  // GGUF names; shape outermost first
  std::span<const std::byte> rows(const TensorInfo&, std::int64_t first, std::int64_t count,
                                  std::vector<std::byte>& scratch) const override;
  void forget(const TensorInfo&) const override;

  const std::map<std::string, GgufValue>& metadata() const { return metadata_; }
  // Typed look-ups: nullopt if the key is absent, Error(bad_input) if it holds another type.
  std::optional<std::string> string(std::string_view key) const;
  std::optional<std::uint64_t> unsigned_integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  const std::vector<std::string>* strings(std::string_view key) const;     // nullptr if absent
  std::optional<std::vector<double>> numbers(std::string_view key) const;  // any numeric array
  std::optional<std::vector<std::int64_t>> integers(std::string_view key) const;
  std::uint32_t version() const { return version_; }

 private:
  const GgufValue* value(std::string_view key) const;  // nullptr if absent
  [[noreturn]] void wrong_type(std::string_view key, const GgufValue& value, std::string_view wanted) const;

  std::shared_ptr<MappedFile> file_;
  std::uint32_t version_ = 0;
  std::map<std::string, GgufValue> metadata_;
  std::vector<TensorInfo> tensors_;
  std::vector<std::uint64_t> offsets_;
  std::map<std::string, std::size_t> index_;
};

}  // namespace halftone
