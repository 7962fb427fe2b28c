#include "quantize/dense_product.h"

#include "base/error.h"
#include "kernels/matmul/matmul.h"

namespace halftone {

void dense_product(std::span<const float> x, std::int64_t x_rows, std::span<const float> w, std::int64_t w_rows,
                   std::int64_t depth, std::span<float> y, ThreadPool& pool) {
  HT_CHECK(static_cast<std::int64_t>(x.size()) == x_rows * depth &&
           static_cast<std::int64_t>(w.size()) == w_rows * depth &&
           static_cast<std::int64_t>(y.size()) == x_rows * w_rows);
  QuantizedTensor plain;  // FP32 without scales; the codes are the numbers
  plain.rows = w_rows;
  plain.cols = depth;
  plain.codes = std::as_bytes(w);
  const PackedMatrix packed = pack_matrix(plain, std::nullopt, pool);
  Activations input;
  input.assign(x, x_rows, depth, std::nullopt, pool);
  matmul(packed, input, nullptr, y.data(), w_rows, pool);
}

}  // namespace halftone
