// y = x W^T for weights in any scheme, never expanded to FP32 in memory.
//
// Order of summation, the same in every instruction set, for any number of rows of x and any number of threads:
// the K axis is cut into segments of the group length (schemes with groups along the row) or of kSegment elements;
// a segment's sum is acc = fma(x[k], w[k], acc) for k ascending from acc = 0, w[k] the stored code: the decoded one
// without its scale, plus an offset where codes are stored without a sign; then acc = fma(-zero, acc_x, acc) where
// codes have an offset or zero point (acc_x = the segment's sum of x), and segments are added in ascending order: y =
// fma(scale, acc, y), y = fma(minimum, acc_x, y) for GGUF's minimums. Schemes with one scale a row or matrix add the
// bare segment sums and do the rest once at the end. INT8 x INT8 sums a segment in int32, which is exact. So results
// are bit-identical between scalar, AVX2 and AVX-512, for one row of x or many.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "base/threads.h"
#include "tensor/quantized.h"

namespace halftone {

inline constexpr std::int64_t kSegment = 256;

// A weight matrix [rows = outputs, cols = inputs] in the layout of the kernels.
class PackedMatrix {
 public:
  PackedMatrix();
  ~PackedMatrix();
  PackedMatrix(PackedMatrix&&) noexcept;
  PackedMatrix& operator=(PackedMatrix&&) noexcept;

  std::int64_t rows() const;
  std::int64_t cols() const;
  std::size_t bytes() const;     // read from memory by one product: codes, scales, minimums
  const Scheme& scheme() const;  // of the weights as they were given
  const std::optional<Scheme>& activations() const;
  std::string kernel_name() const;                                // e.g. "fp8_e4m3.avx2"
  void decode_row(std::int64_t row, std::span<float> out) const;  // dequantized, as dequantize_rows says

  struct Data;  // kernels/matmul/packed.h
  const Data& data() const { return *data_; }

 private:
  friend class PackedMatrixBuilder;
  std::unique_ptr<Data> data_;
};

// Builds a PackedMatrix from row chunks, so that a large table is never in memory twice.
class PackedMatrixBuilder {
 public:
  PackedMatrixBuilder(std::int64_t rows, std::int64_t cols, const Scheme& weights, std::optional<Scheme> activations,
                      Isa isa = active_isa().isa);
  ~PackedMatrixBuilder();
  // Rows [first, first + chunk.rows), in any order; `first` a multiple of row_alignment() (chunks but the last
  // likewise). Error(bad_input) if a code is NaN or infinite (kernels do not look).
  void add_rows(std::int64_t first, const QuantizedTensor& chunk, ThreadPool& pool);
  std::int64_t row_alignment() const;
  PackedMatrix finish();

 private:
  std::unique_ptr<PackedMatrix::Data> data_;
};

PackedMatrix pack_matrix(const QuantizedTensor& tensor, std::optional<Scheme> activations, ThreadPool& pool,
                         Isa isa = active_isa().isa);

// Rows of x in the form that a product wants: as they are, fake-quantized in FP32 (exact decoded codes), or INT8 codes
// with a scale a row. Made once and shared by all linears with the same input and activation scheme.
class Activations {
 public:
  // Without a scheme x is not copied: it must live as long as this is used.
  void assign(std::span<const float> x, std::int64_t rows, std::int64_t cols, const std::optional<Scheme>& scheme,
              ThreadPool& pool);
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  const float* values() const { return data_; }               // [rows, cols]; see assign
  const std::int8_t* codes() const { return codes_.data(); }  // [rows, cols] for int8:token, else empty
  const float* row_scales() const {
    return row_scales_.empty() ? nullptr : row_scales_.data();
  }  // [rows], token schemes
  const std::optional<Scheme>& scheme() const { return scheme_; }

 private:
  std::int64_t rows_ = 0, cols_ = 0;
  std::optional<Scheme> scheme_;
  const float* data_ = nullptr;
  std::vector<float> values_;
  std::vector<std::int8_t> codes_;
  std::vector<float> row_scales_;
};

// y[m, rows(w)] (leading dimension ldy) = x w^T + bias (bias may be nullptr). x.scheme() must equal w.activations().
struct Product {
  const PackedMatrix* w;
  const float* bias;
  float* y;
  std::int64_t ldy;
};
// Several products of one x in one go of the pool. `after`, which needs matrices with the same number of rows, is
// called once for each block of results [first_row, last_row) x [first_col, last_col), when all products have theirs.
using AfterBlock =
    std::function<void(std::int64_t first_row, std::int64_t last_row, std::int64_t first_col, std::int64_t last_col)>;
void matmul(std::span<const Product> products, const Activations& x, ThreadPool& pool,
            const AfterBlock& after = nullptr);
void matmul(const PackedMatrix& w, const Activations& x, const float* bias, float* y, std::int64_t ldy,
            ThreadPool& pool);

// FP32 multiply-add operations a second (a fused one counts as two) of the pool's threads together, the best of several
// runs of independent chains in registers: the limit that products of many rows are judged by.
double measure_fp32_peak(ThreadPool& pool, Isa isa = active_isa().isa);

// What `doctor` and the tests walk over: every kernel that was compiled in.
struct MatmulKernelInfo {
  std::string name;  // "fp8_e4m3"
  Isa isa;
  bool runnable;       // on this processor
  std::string covers;  // which schemes it serves
};
std::vector<MatmulKernelInfo> matmul_kernels();

}  // namespace halftone
