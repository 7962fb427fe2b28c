#include "checkpoint/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "checkpoint/file_kind.h"

namespace halftone {
namespace {

using Json = nlohmann::json;

// More dimensions than any framework's tensors have: a longer list is damage, and messages print shapes.
constexpr std::size_t kMaxShapeLength = 64;
constexpr int kMaxIndexDepth = 32;

// What both documents share: a SAX handler that refuses everything it does not expect, so that neither depth nor
// duplicates can do harm. Every refusal throws, which stops the parser.
class StrictHandler {
 public:
  explicit StrictHandler(const std::string& file) : file_(file) {}

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(ErrorKind::bad_input, file_ + ": " + fmt::format(format, std::forward<Args>(args)...));
  }
  bool parse_error(std::size_t position, const std::string&, const Json::exception&) {
    refuse("this is not valid JSON (at byte {} of it): download the file again", position);
  }

 protected:
  const std::string& file_;
};

// {"__metadata__": {string: string}, NAME: {"dtype": string, "shape": [int], "data_offsets": [int, int]}}
class HeaderHandler : public StrictHandler {
 public:
  using StrictHandler::StrictHandler;

  bool null() { wrong("null"); }
  bool boolean(bool) { wrong("a boolean"); }
  bool number_integer(std::int64_t value) {
    if (at_ == At::shape) refuse("tensor '{}': negative dimension {} in its shape", name(), value);
    if (at_ == At::offsets) refuse("tensor '{}': negative number {} in data_offsets", name(), value);
    wrong("a number");
  }
  bool number_unsigned(std::uint64_t value) {
    if (at_ == At::shape) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        refuse("tensor '{}': overflow: dimension {} in its shape does not fit 63 bits", name(), value);
      }
      if (entry_.info.shape.size() == kMaxShapeLength) {
        refuse("tensor '{}': its shape has more than {} dimensions", name(), kMaxShapeLength);
      }
      entry_.info.shape.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (at_ == At::offsets) {
      if (offsets_ == 2) refuse("tensor '{}': data_offsets must hold two numbers", name());
      (offsets_++ == 0 ? entry_.begin : entry_.end) = value;
      return true;
    }
    wrong("a number");
  }
  bool number_float(double, const std::string& text) {
    if (at_ == At::shape || at_ == At::offsets) {
      refuse("tensor '{}': '{}' in its {} is not a 64-bit integer", name(), printable(text),
             at_ == At::shape ? "shape" : "data_offsets");
    }
    wrong("a number");
  }
  bool string(std::string& value) {
    if (at_ == At::metadata) {
      if (!header_.metadata.emplace(key_, value).second) refuse("__metadata__: duplicate key '{}'", printable(key_));
      return true;
    }
    if (at_ == At::entry && field_ == Field::dtype) {
      const std::optional<DType> dtype = find_dtype(value);
      if (!dtype) {
        refuse("tensor '{}': unknown dtype '{}' (known ones are BOOL, F4 to F64, BF16, I8 to I64, U8 to U64, C64)",
               name(), printable(value));
      }
      entry_.info.dtype = *dtype;
      return true;
    }
    wrong("a string");
  }
  bool binary(Json::binary_t&) { wrong("binary data"); }

  bool start_object(std::size_t) {
    if (at_ == At::root) {
      at_ = At::top;
    } else if (at_ == At::top) {
      at_ = key_ == "__metadata__" ? At::metadata : At::entry;
      entry_ = {};
      entry_.info.name = key_;
      seen_dtype_ = seen_shape_ = seen_offsets_ = false;
      field_ = Field::none;
    } else {
      wrong("an object");
    }
    return true;
  }
  bool key(std::string& value) {
    if (at_ == At::top) {
      if (!names_.insert(value).second) refuse("duplicate key '{}' in the header", printable(value));
      key_ = value;
    } else if (at_ == At::metadata) {
      key_ = value;
    } else {
      bool* seen = nullptr;
      if (value == "dtype") {
        field_ = Field::dtype, seen = &seen_dtype_;
      } else if (value == "shape") {
        field_ = Field::shape, seen = &seen_shape_;
      } else if (value == "data_offsets") {
        field_ = Field::offsets, seen = &seen_offsets_;
      } else {
        refuse("tensor '{}': unknown field '{}'", name(), printable(value));
      }
      if (*seen) refuse("tensor '{}': duplicate key '{}'", name(), value);
      *seen = true;
    }
    return true;
  }
  bool end_object() {
    if (at_ == At::entry) {
      const char* missing = !seen_dtype_ ? "dtype" : !seen_shape_ ? "shape" : !seen_offsets_ ? "data_offsets" : nullptr;
      if (missing != nullptr) refuse("tensor '{}': the field '{}' is missing", name(), missing);
      header_.entries.push_back(std::move(entry_));
      at_ = At::top;
    } else {
      at_ = at_ == At::metadata ? At::top : At::done;
    }
    return true;
  }
  bool start_array(std::size_t) {
    if (at_ != At::entry || (field_ != Field::shape && field_ != Field::offsets)) wrong("an array");
    at_ = field_ == Field::shape ? At::shape : At::offsets;
    offsets_ = 0;
    return true;
  }
  bool end_array() {
    if (at_ == At::offsets && offsets_ != 2) refuse("tensor '{}': data_offsets must hold two numbers", name());
    at_ = At::entry;
    return true;
  }

  SafetensorsHeader take() { return std::move(header_); }

 private:
  enum class At { root, top, metadata, entry, shape, offsets, done };
  enum class Field { none, dtype, shape, offsets };

  std::string name() const { return printable(entry_.info.name); }

  [[noreturn]] void wrong(const char* found) const {
    switch (at_) {
      case At::root:
      case At::done:
        refuse("the header must be a JSON object, found {}", found);
      case At::top:
        refuse("the header's entry '{}' must be an object, found {}", printable(key_), found);
      case At::metadata:
        refuse("__metadata__: the value of '{}' must be a string, found {}", printable(key_), found);
      case At::shape:
        refuse("tensor '{}': its shape must hold integers, found {}", name(), found);
      case At::offsets:
        refuse("tensor '{}': data_offsets must hold integers, found {}", name(), found);
      case At::entry:
        break;
    }
    refuse("tensor '{}': the field '{}' must be {}, found {}", name(),
           field_ == Field::dtype   ? "dtype"
           : field_ == Field::shape ? "shape"
                                    : "data_offsets",
           field_ == Field::dtype ? "a string" : "an array of integers", found);
  }

  At at_ = At::root;
  Field field_ = Field::none;
  std::string key_;
  std::set<std::string> names_;
  SafetensorsEntry entry_;
  int offsets_ = 0;
  bool seen_dtype_ = false, seen_shape_ = false, seen_offsets_ = false;
  SafetensorsHeader header_;
};

// {"weight_map": {string: string}, anything else}; what else there is gets skipped.
class IndexHandler : public StrictHandler {
 public:
  using StrictHandler::StrictHandler;

  bool null() { return value("null"); }
  bool boolean(bool) { return value("a boolean"); }
  bool number_integer(std::int64_t) { return value("a number"); }
  bool number_unsigned(std::uint64_t) { return value("a number"); }
  bool number_float(double, const std::string&) { return value("a number"); }
  bool binary(Json::binary_t&) { return value("binary data"); }
  bool string(std::string& text) {
    if (!in_map()) return value("a string");
    const bool plain = !text.empty() && text != "." && text != ".." && text.find_first_of("/\\") == std::string::npos &&
                       text.find('\0') == std::string::npos;
    if (!plain) {
      refuse("weight_map places tensor '{}' in '{}', which is not a file name inside of this folder", printable(key_),
             printable(text));
    }
    if (!map_.emplace(key_, text).second) refuse("weight_map: duplicate key '{}'", printable(key_));
    return true;
  }
  bool start_object(std::size_t) {
    if (depth_ == 1 && key_ == "weight_map") {
      if (found_map_) refuse("duplicate key 'weight_map'");
      found_map_ = true;
      ++depth_;
      return true;
    }
    return open("an object");
  }
  bool start_array(std::size_t) {
    if (depth_ == 0) refuse("the index must be a JSON object, found an array");
    return open("an array");
  }
  bool key(std::string& text) {
    if (depth_ == 1) top_ = text;
    if (depth_ <= 2) key_ = text;
    return true;
  }
  bool end_object() {
    --depth_;
    return true;
  }
  bool end_array() {
    --depth_;
    return true;
  }

  std::map<std::string, std::string> take() {
    if (!found_map_) refuse("the index has no 'weight_map'");
    return std::move(map_);
  }

 private:
  bool in_map() const { return depth_ == 2 && top_ == "weight_map"; }
  bool value(const char* found) {
    if (depth_ == 0) refuse("the index must be a JSON object, found {}", found);
    if (in_map()) refuse("weight_map: the value of '{}' must be a file name, found {}", printable(key_), found);
    if (depth_ == 1 && key_ == "weight_map") refuse("weight_map must be an object, found {}", found);
    return true;
  }
  bool open(const char* found) {
    if (depth_ > 0) value(found);
    if (++depth_ > kMaxIndexDepth) refuse("the index is nested more than {} deep", kMaxIndexDepth);
    return true;
  }

  int depth_ = 0;
  bool found_map_ = false;
  std::string top_, key_;
  std::map<std::string, std::string> map_;
};

template <class Handler>
void parse(std::string_view json, Handler& handler) {
  if (const std::optional<std::size_t> at = first_invalid_utf8(json)) {
    handler.refuse("the JSON is not UTF-8 (at byte {} of it)", *at);
  }
  // The parser takes a zero byte for the end of its input, and what follows would go unread.
  if (const std::size_t at = json.find('\0'); at != std::string_view::npos) {
    handler.refuse("the JSON has a zero byte (at byte {} of it)", at);
  }
  Json::sax_parse(json.begin(), json.end(), &handler);
}

// Sets info.bytes from dtype and shape and checks it against data_offsets.
void check_size(SafetensorsEntry& entry, const StrictHandler& messages) {
  TensorInfo& info = entry.info;
  const std::string name = printable(info.name);
  // Zero dimensions are left out of the overflow check's product: rows() and cols() take parts of it.
  std::uint64_t product = static_cast<std::uint64_t>(dtype_bits(info.dtype));
  bool empty = false, fits = true;
  for (const std::int64_t dimension : info.shape) {
    if (dimension == 0) {
      empty = true;
      continue;
    }
    const std::optional<std::uint64_t> next = checked_multiply(product, static_cast<std::uint64_t>(dimension));
    fits = fits && next.has_value();
    product = next.value_or(product);
  }
  if (!fits) {
    messages.refuse("tensor '{}': overflow: the size of shape {} in {} does not fit 64 bits", name,
                    shape_string(info.shape), dtype_name(info.dtype));
  }
  if (empty) product = 0;
  if (product % 8 != 0) {
    messages.refuse("tensor '{}': shape {} in {} has {} bits, which is not a whole number of bytes", name,
                    shape_string(info.shape), dtype_name(info.dtype), product);
  }
  if (entry.end < entry.begin) {
    messages.refuse("tensor '{}': data_offsets [{}, {}] are reversed", name, entry.begin, entry.end);
  }
  info.bytes = product / 8;
  if (entry.end - entry.begin != info.bytes) {
    messages.refuse("tensor '{}': shape {} in {} needs {} bytes, but data_offsets declare {}", name,
                    shape_string(info.shape), dtype_name(info.dtype), info.bytes, entry.end - entry.begin);
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view json, const std::string& file) {
  HeaderHandler handler(file);
  if (!json.starts_with('{')) handler.refuse("the header does not begin with '{{': not a safetensors file, or damaged");
  parse(json, handler);
  SafetensorsHeader header = handler.take();
  for (SafetensorsEntry& entry : header.entries) check_size(entry, handler);
  std::sort(header.entries.begin(), header.entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tie(a.begin, a.end, a.info.name) < std::tie(b.begin, b.end, b.info.name);
  });
  const SafetensorsEntry* before = nullptr;
  for (const SafetensorsEntry& entry : header.entries) {
    if (entry.begin > header.data_bytes) {
      handler.refuse("tensor '{}': data_offsets begin at {}, which leaves a hole of {} bytes before it",
                     printable(entry.info.name), entry.begin, entry.begin - header.data_bytes);
    }
    if (entry.begin < header.data_bytes) {
      handler.refuse("tensor '{}': data_offsets [{}, {}] overlap those of tensor '{}' [{}, {}]",
                     printable(entry.info.name), entry.begin, entry.end, printable(before->info.name), before->begin,
                     before->end);
    }
    header.data_bytes = entry.end;
    before = &entry;
  }
  return header;
}

std::map<std::string, std::string> parse_safetensors_index(std::string_view json, const std::string& file) {
  IndexHandler handler(file);
  parse(json, handler);
  return handler.take();
}

}  // namespace halftone
