// The JSON header of a safetensors file, read and checked as far as the file's data is not needed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/source.h"

namespace halftone {

struct SafetensorsEntry {
  TensorInfo info;                   // dtype, shape, bytes
  std::uint64_t begin = 0, end = 0;  // data_offsets, relative to the start of the data
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the order of their data, without holes or overlaps from offset 0
  std::map<std::string, std::string> metadata;
  std::uint64_t data_bytes = 0;
};

// `json`: the header without its length prefix; `file` goes into messages. Error(bad_input).
SafetensorsHeader parse_safetensors_header(std::string_view json, const std::string& file);

// The weight_map of model.safetensors.index.json: tensor name to file name. Names of files are plain base names.
// Error(bad_input) for anything else, for names that occur twice and for paths that leave the folder.
std::map<std::string, std::string> parse_safetensors_index(std::string_view json, const std::string& file);

}  // namespace halftone
