// Where tensors come from and where they go. Readers give a checked index; jobs ask for rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"

namespace halftone {

using Shape = std::vector<std::int64_t>;  // row-major, outermost first ({} is a scalar)

std::string shape_string(const Shape& shape);  // "[576, 192]"

struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  std::optional<GgmlType> ggml;  // with DType::ggml_block
  Shape shape;
  std::uint64_t bytes = 0;  // of the whole tensor, checked against the file
  std::string file;         // base name of the file that holds it, for messages

  std::int64_t elements() const;
  std::int64_t rows() const;        // product of all but the last dimension (1 for scalars and vectors)
  std::int64_t cols() const;        // the last dimension (1 for scalars)
  std::uint64_t row_bytes() const;  // bytes / rows; a row of every type is whole bytes or the reader refused it
};

// A checked index of tensors over mapped files. Thread-safe for reading.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  virtual const std::vector<TensorInfo>& tensors() const = 0;  // in file order
  const TensorInfo* find(std::string_view name) const;         // nullptr if absent; by a sorted index
  const TensorInfo& at(std::string_view name) const;           // Error(bad_input) that names it

  // The bytes of rows [first, first + count) of a tensor. Points into the mapped file where possible; where rows must
  // be moved (GGUF's permuted Q/K) or do not lie on byte bounds, fills `scratch` and points there.
  virtual std::span<const std::byte> rows(const TensorInfo& info, std::int64_t first, std::int64_t count,
                                          std::vector<std::byte>& scratch) const = 0;
  // Lets the pages of rows already read leave memory.
  virtual void forget(const TensorInfo&) const {}

 private:
  struct Index;
  std::shared_ptr<Index> index_ = make_index();
  static std::shared_ptr<Index> make_index();
};

// rows() decoded to FP32, any floating, integer or GGUF block dtype; F4 and F6 rows are bit streams, least significant
// bits first. Integers and F64 are rounded to nearest. out.size() == count * cols.
// Error(unsupported) for dtypes without a numeric value (booleans, complex) and for GGUF types that cannot be decoded.
void read_rows_as_float(const TensorSource& source, const TensorInfo& info, std::int64_t first, std::int64_t count,
                        std::span<float> out);
std::vector<float> read_as_float(const TensorSource& source, const TensorInfo& info);

// Whether two tensors of a source have the same type, shape and bytes; reads both a few MiB at a time.
bool same_bytes(const TensorSource& source, const TensorInfo& a, const TensorInfo& b);

// Takes the tensors of an output checkpoint one after the other; bytes may come in pieces.
class TensorSink {
 public:
  virtual ~TensorSink() = default;
  virtual void begin(const TensorInfo& info) = 0;
  virtual void append(std::span<const std::byte> bytes) = 0;
  virtual void end() = 0;  // all bytes of the tensor must have come
};

}  // namespace halftone
