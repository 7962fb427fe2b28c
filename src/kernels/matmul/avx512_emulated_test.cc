// kernels_avx512.cc compiled against testing_avx512_emulation.h: every kernel of it must give the scalar kernels' bits,
// on any machine. Where the processor has AVX-512 the real instructions are tested as well (matmul_test.cc).
#define HALFTONE_EMULATED_AVX512
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "base/testing.h"
#include "kernels/matmul/packed.h"
#include "kernels/matmul/testing_avx512_emulation.h"

#define avx512 avx512_emulated
#include "kernels/matmul/kernels_avx512.cc"
#undef avx512

namespace halftone {
namespace {

struct Sample {
  const char* weights;
  const char* activations;
};
const Sample kSamples[] = {{"fp32", ""},
                           {"bf16", ""},
                           {"fp16", ""},
                           {"fp8_e4m3:channel", ""},
                           {"fp8_e4m3:g48:fp32", ""},
                           {"fp8_e5m2:channel:fp16", ""},
                           {"int8:g32:asym", ""},
                           {"int5:g24:fp16", ""},
                           {"fp8_e3m4:g32", ""},
                           {"int4:g33:asym", ""},
                           {"int3:channel", ""},
                           {"mxfp4", ""},
                           {"nvfp4", ""},
                           {"nf4:g64", ""},
                           {"int8:channel", "int8:token"},
                           {"int8:g64:asym", "int8:token"},
                           {"int4:g37:asym", "int8:token"}};

TEST(EmulatedAvx512, EqualsTheScalarKernels) {
  ThreadPool pool(1);
  std::set<std::string> seen;
  for (const Sample& sample : kSamples) {
    const Scheme scheme = parse_scheme(sample.weights);
    std::optional<Scheme> activations;
    if (*sample.activations != 0) activations = parse_scheme(sample.activations);
    for (const std::int64_t cols : {1, 37, 301}) {
      const std::int64_t rows = 50, most = 15;
      std::vector<float> values = normal_values(rows * cols, 5, 0.1F);
      const std::vector<float> x = normal_values(most * cols, 6);
      if (scheme.is_dense()) {
        for (float& v : values) v = static_cast<float>(round_to(scheme.element, v));
      }
      TensorStats stats;
      accumulate_stats(stats, values, 0);
      const PackedMatrix w =
          pack_matrix(quantize_rows(scheme, values, rows, cols, stats), activations, pool, Isa::scalar);
      seen.insert(w.kernel_name());
      Activations input;
      const auto run = [&](const KernelSet& kernels, std::int64_t m) {
        const_cast<PackedMatrix::Data&>(w.data()).kernels = &kernels;
        input.assign(std::span(x).first(static_cast<std::size_t>(m * cols)), m, cols, activations, pool);
        std::vector<float> y(static_cast<std::size_t>(m * rows), -7.0F);
        matmul(w, input, nullptr, y.data(), rows, pool);
        return y;
      };
      for (const std::int64_t m : {1, 2, 7, 15}) {
        const std::vector<float> wanted = run(scalar::kernels(), m), got = run(avx512_emulated::kernels(), m);
        ASSERT_EQ(std::memcmp(wanted.data(), got.data(), got.size() * sizeof(float)), 0)
            << sample.weights << " x " << sample.activations << " cols " << cols << " m " << m;
      }
    }
  }
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(kWeightKinds) +
                             1);  // every kind; int4 with both activations; table4 never with int8
}

}  // namespace
}  // namespace halftone
