// How quantized matrices stand in a Hugging Face directory: compressed-tensors where it can say the scheme, DeepSeek's
// "fp8", and "halftone" for all others. Reading and writing live side by side, so that what is written is what is read.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tensor/source.h"
#include "tensor/weights.h"

namespace halftone {

// The matrices of a checkpoint with canonical names, as its quantization_config (config["quantization_config"], may be
// absent) says. Plain tensors become dense schemes; GGUF blocks schemes with `ggml`. A scale without its weight or a
// weight without its scale is Error(bad_input); a quant_method or format that cannot be read is Error(unsupported).
// `notes` gets a line for everything that is read otherwise than written (static activation scales).
std::shared_ptr<const WeightSource> stored_weights(std::shared_ptr<const TensorSource> tensors,
                                                   const nlohmann::ordered_json& config,
                                                   std::vector<std::string>* notes = nullptr);

// What stored_weights found, for jobs that carry every tensor over: one entry a tensor or quantized matrix, in file order.
struct StoredEntry {
  std::string name;                // of the plain tensor; module + ".weight" (or the bare name) of a quantized matrix
  std::string module;              // for WeightSource::find; empty for plain tensors
  bool quantized = false;          // has codes with scales, or GGUF blocks
  WeightInfo info;                 // if quantized
  std::vector<std::string> parts;  // tensors of the file that make it up
};
std::vector<StoredEntry> stored_entries(const TensorSource& tensors, const nlohmann::ordered_json& config);

// A scheme for one module of an output checkpoint.
struct StoredModule {
  std::string module;
  Scheme weights;
  std::optional<Scheme> activations;
  std::int64_t rows = 0, cols = 0;
  bool is_table = false;  // an embedding (or tied head): compressed-tensors readers look for linear layers only
};

enum class StoredMethod { none, compressed_tensors, halftone };

// compressed-tensors if it can say every scheme (and shape) of the list, else halftone; `why` gets the first reason.
StoredMethod choose_method(const std::vector<StoredModule>& quantized, std::string* why);

// The tensors (name, dtype, shape, bytes) that hold a module, in the order in which store_module fills them.
std::vector<TensorInfo> stored_tensors(StoredMethod method, const StoredModule& module);

// Before the last chunk of a module, chunks must start at and hold a multiple of so many rows.
std::int64_t store_row_multiple(StoredMethod method, const StoredModule& module);

// The bytes of stored_tensors()[which] for rows [first, first + chunk.rows) of the module. Tensors that belong to the
// whole matrix (a global scale, a shape, a scale a tensor) are returned with the first chunk and empty afterwards.
std::vector<std::byte> store_rows(StoredMethod method, const StoredModule& module, std::size_t which,
                                  std::int64_t first, const QuantizedTensor& chunk);

// The quantization_config of the output; `dense_linears` are the linear modules that stay unquantized (ignore list).
nlohmann::ordered_json quantization_config(StoredMethod method, const std::vector<StoredModule>& quantized,
                                           const std::vector<std::string>& dense_linears);

}  // namespace halftone
