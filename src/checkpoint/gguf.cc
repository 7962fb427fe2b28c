#include "checkpoint/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "checkpoint/file_kind.h"

namespace halftone {
namespace {

static_assert(std::endian::native == std::endian::little, "file formats are little-endian and are read in place");

// Limits far above real files (the largest vocabularies have half a million merges, the largest models some ten
// thousand tensors), so that a damaged count costs neither time nor memory.
constexpr std::uint64_t kMaxPairs = 1U << 20;
constexpr std::uint64_t kMaxTensors = 1U << 20;
constexpr std::uint64_t kMaxArrayElements = 1U << 24;  // of all arrays together
constexpr std::uint64_t kMaxKeyBytes = 65535;
constexpr std::uint64_t kMaxStringBytes = 256U << 20;
constexpr std::uint64_t kMaxNameBytes = 63;
constexpr std::uint32_t kMaxDimensions = 4;
constexpr std::uint64_t kDefaultAlignment = 32, kMaxAlignment = 1U << 20;
constexpr std::uint64_t kInt64Max = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());

enum ValueType : std::uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
  kValueTypes
};
constexpr std::string_view kTypeNames[kValueTypes] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                      "bool", "string", "array", "u64", "i64", "f64"};
constexpr std::uint64_t kTypeBytes[kValueTypes] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 0, 8, 8, 8};  // string: its length

struct RemovedType {
  std::uint32_t id;
  std::string_view name;
};
constexpr RemovedType kRemovedTypes[] = {{4, "Q4_2"},      {5, "Q4_3"},        {31, "Q4_0_4_4"},   {32, "Q4_0_4_8"},
                                         {33, "Q4_0_8_8"}, {36, "IQ4_NL_4_4"}, {37, "IQ4_NL_4_8"}, {38, "IQ4_NL_8_8"}};

// Keys whose meaning depends on their type: another type is damage, not a dialect.
struct KnownKey {
  std::string_view key;
  std::uint32_t type;
  std::uint32_t element_type;  // of arrays
};
constexpr KnownKey kKnownKeys[] = {{"general.alignment", kU32, 0},
                                   {"general.architecture", kString, 0},
                                   {"general.name", kString, 0},
                                   {"tokenizer.chat_template", kString, 0},
                                   {"tokenizer.ggml.model", kString, 0},
                                   {"tokenizer.ggml.pre", kString, 0},
                                   {"tokenizer.ggml.tokens", kArray, kString},
                                   {"tokenizer.ggml.merges", kArray, kString},
                                   {"tokenizer.ggml.scores", kArray, kF32},
                                   {"tokenizer.ggml.token_type", kArray, kI32}};

std::string type_text(std::uint32_t type, std::uint32_t element_type) {
  return type == kArray ? fmt::format("array of {}", kTypeNames[element_type]) : std::string(kTypeNames[type]);
}

// A cursor over the file; every read is checked against what is left, and `what` says what was being read.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, std::string file) : bytes_(bytes), file_(std::move(file)) {}

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(ErrorKind::bad_input, file_ + ": " + fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  [[noreturn]] void unsupported(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(ErrorKind::unsupported, file_ + ": " + fmt::format(format, std::forward<Args>(args)...));
  }

  std::uint64_t position() const { return position_; }
  std::uint64_t left() const { return bytes_.size() - position_; }

  template <class T>
  T number(std::string_view what) {
    need(sizeof(T), what);
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }
  std::string string(std::uint64_t limit, std::string_view what) {
    const auto size = number<std::uint64_t>(what);
    if (size > left()) refuse("{}: a length of {} bytes, but only {} bytes are left in the file", what, size, left());
    if (size > limit) refuse("{}: a length of {} bytes is above the limit of {}", what, size, limit);
    std::string text(reinterpret_cast<const char*>(bytes_.data()) + position_, size);
    position_ += size;
    return text;
  }
  void need(std::uint64_t size, std::string_view what) const {
    if (size > left()) {
      refuse("the file ends inside of its header ({}, at byte {}): download it again", what, position_);
    }
  }

 private:
  std::span<const std::byte> bytes_;
  std::string file_;
  std::uint64_t position_ = 0;
};

template <class T, class Stored>
std::vector<Stored> read_numbers(Cursor& cursor, std::uint64_t count, std::string_view what) {
  std::vector<Stored> values;
  values.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) values.push_back(static_cast<Stored>(cursor.number<T>(what)));
  return values;
}

void read_scalar(Cursor& cursor, GgufValue& out, const std::string& what) {
  using U = std::uint64_t;
  using I = std::int64_t;
  switch (out.type) {
    case kU8:
      out.value = U{cursor.number<std::uint8_t>(what)};
      return;
    case kU16:
      out.value = U{cursor.number<std::uint16_t>(what)};
      return;
    case kU32:
      out.value = U{cursor.number<std::uint32_t>(what)};
      return;
    case kU64:
      out.value = cursor.number<U>(what);
      return;
    case kI8:
      out.value = I{cursor.number<std::int8_t>(what)};
      return;
    case kI16:
      out.value = I{cursor.number<std::int16_t>(what)};
      return;
    case kI32:
      out.value = I{cursor.number<std::int32_t>(what)};
      return;
    case kI64:
      out.value = cursor.number<I>(what);
      return;
    case kF32:
      out.value = static_cast<double>(cursor.number<float>(what));
      return;
    case kF64:
      out.value = cursor.number<double>(what);
      return;
    case kBool:
      out.value = cursor.number<std::uint8_t>(what) != 0;
      return;
    default:
      out.value = cursor.string(kMaxStringBytes, what);
      return;
  }
}

void read_array(Cursor& cursor, GgufValue& out, std::uint64_t& elements_left, const std::string& what) {
  out.element_type = cursor.number<std::uint32_t>(what);
  if (out.element_type == kArray) cursor.refuse("{}: arrays inside of arrays are not allowed", what);
  if (out.element_type >= kValueTypes) cursor.refuse("{}: unknown element type {}", what, out.element_type);
  const auto count = cursor.number<std::uint64_t>(what);
  if (count > cursor.left() / kTypeBytes[out.element_type]) {
    cursor.refuse("{}: an array length of {}, but only {} bytes are left in the file", what, count, cursor.left());
  }
  if (count > elements_left) {
    cursor.refuse("{}: an array length of {}; all arrays together may have {}", what, count, kMaxArrayElements);
  }
  elements_left -= count;
  using U = std::uint64_t;
  using I = std::int64_t;
  switch (out.element_type) {
    case kU8:
    case kBool:
      out.value = read_numbers<std::uint8_t, U>(cursor, count, what);
      return;
    case kU16:
      out.value = read_numbers<std::uint16_t, U>(cursor, count, what);
      return;
    case kU32:
      out.value = read_numbers<std::uint32_t, U>(cursor, count, what);
      return;
    case kU64:
      out.value = read_numbers<U, U>(cursor, count, what);
      return;
    case kI8:
      out.value = read_numbers<std::int8_t, I>(cursor, count, what);
      return;
    case kI16:
      out.value = read_numbers<std::int16_t, I>(cursor, count, what);
      return;
    case kI32:
      out.value = read_numbers<std::int32_t, I>(cursor, count, what);
      return;
    case kI64:
      out.value = read_numbers<I, I>(cursor, count, what);
      return;
    case kF32:
      out.value = read_numbers<float, double>(cursor, count, what);
      return;
    case kF64:
      out.value = read_numbers<double, double>(cursor, count, what);
      return;
    default:
      break;
  }
  std::vector<std::string> texts;
  for (std::uint64_t i = 0; i < count; ++i) texts.push_back(cursor.string(kMaxStringBytes, what));
  out.value = std::move(texts);
}

std::uint32_t read_version(Cursor& cursor) {
  std::array<char, 4> magic{};
  for (char& c : magic) c = cursor.number<char>("the magic 'GGUF'");
  if (std::string_view(magic.data(), 4) != "GGUF") {
    cursor.refuse("the file begins with '{}', not with 'GGUF': not a GGUF file", printable({magic.data(), 4}));
  }
  const auto version = cursor.number<std::uint32_t>("the version");
  if (version != 0 && (version & 0xFFFFU) == 0) {
    cursor.unsupported("a big-endian GGUF file; only little-endian ones can be read: convert it");
  }
  if (version == 0) cursor.refuse("GGUF version 0 does not exist: the file is damaged");
  if (version != 2 && version != 3) {
    cursor.unsupported("GGUF version {}; versions 2 and 3 can be read: convert the file", version);
  }
  return version;
}

void check_known_key(const Cursor& cursor, const std::string& key, const GgufValue& value) {
  for (const KnownKey& known : kKnownKeys) {
    if (known.key != key) continue;
    if (value.type == known.type && (known.type != kArray || value.element_type == known.element_type)) return;
    // Some converters store token types unsigned; the values are the same.
    if (key == "tokenizer.ggml.token_type" && value.type == kArray && value.element_type == kU32) return;
    cursor.refuse("metadata key '{}' must be of type {}, found {}", key, type_text(known.type, known.element_type),
                  type_text(value.type, value.element_type));
  }
}

// Reads name, dims and type of one tensor and works out its bytes; the offset is left to the caller.
TensorInfo read_tensor(Cursor& cursor, std::uint64_t position) {
  TensorInfo info;
  info.name = cursor.string(kMaxNameBytes, fmt::format("name of tensor {}", position));
  const std::string what = fmt::format("tensor '{}'", printable(info.name));
  const auto dimensions = cursor.number<std::uint32_t>(what);
  if (dimensions > kMaxDimensions)
    cursor.refuse("{}: n_dims is {}, at most {} are allowed", what, dimensions, kMaxDimensions);
  std::uint64_t elements = 1;  // of the dimensions that are not zero: rows() and cols() take parts of the product
  bool empty = false;
  for (std::uint32_t d = 0; d < dimensions; ++d) {
    const auto size = cursor.number<std::uint64_t>(what);
    if (size > kInt64Max) cursor.refuse("{}: dimension {} is negative or does not fit 63 bits", what, d);
    info.shape.push_back(static_cast<std::int64_t>(size));
    if (size == 0) {
      empty = true;
      continue;
    }
    const auto product = checked_multiply(elements, size);
    if (!product || *product > kInt64Max)
      cursor.refuse("{}: overflow: the product of its dimensions does not fit 63 bits", what);
    elements = *product;
  }
  std::reverse(info.shape.begin(), info.shape.end());  // the file gives the contiguous dimension first

  const auto id = cursor.number<std::uint32_t>(what);
  const GgmlTypeInfo* type = find_ggml_type(id);
  if (type == nullptr) {
    for (const RemovedType& removed : kRemovedTypes) {
      if (removed.id == id) {
        cursor.unsupported("{}: type {} ({}) was removed from the format: convert the model again", what, id,
                           removed.name);
      }
    }
    cursor.refuse("{}: unknown tensor type {}", what, id);
  }
  const auto block = static_cast<std::uint64_t>(type->block_elements);
  const auto row = static_cast<std::uint64_t>(info.cols());
  if (row % block != 0) {
    cursor.refuse("{}: rows of {} values are not a multiple of the {} values of a {} block", what, row, block,
                  type->name);
  }
  // Of the tensor without its zero dimensions, so that no part of the product can wrap.
  const auto bytes = checked_multiply(elements / block, static_cast<std::uint64_t>(type->block_bytes));
  if (!bytes || *bytes > kInt64Max) cursor.refuse("{}: overflow: its size in bytes does not fit 63 bits", what);
  info.bytes = empty ? 0 : *bytes;
  switch (type->type) {
    case GgmlType::f32:
      info.dtype = DType::f32;
      break;
    case GgmlType::f16:
      info.dtype = DType::f16;
      break;
    case GgmlType::bf16:
      info.dtype = DType::bf16;
      break;
    case GgmlType::f64:
      info.dtype = DType::f64;
      break;
    case GgmlType::i8:
      info.dtype = DType::i8;
      break;
    case GgmlType::i16:
      info.dtype = DType::i16;
      break;
    case GgmlType::i32:
      info.dtype = DType::i32;
      break;
    case GgmlType::i64:
      info.dtype = DType::i64;
      break;
    default:
      info.dtype = DType::ggml_block;
      info.ggml = type->type;
  }
  return info;
}

std::optional<std::uint64_t> padded(std::uint64_t size, std::uint64_t alignment) {
  const auto sum = checked_add(size, alignment - 1);
  if (!sum) return std::nullopt;
  return *sum / alignment * alignment;
}

}  // namespace

GgufFile::GgufFile(const std::filesystem::path& path) : file_(std::make_shared<MappedFile>(path)) {
  const std::span<const std::byte> content = file_->bytes();
  refuse_lookalike(path, content, "GGUF");
  Cursor cursor(content, path.string());
  version_ = read_version(cursor);
  const auto tensor_count = cursor.number<std::uint64_t>("tensor_count");
  const auto pair_count = cursor.number<std::uint64_t>("kv_count");
  // The least that a pair (empty key's length, key of one byte, type, one byte) and a tensor take.
  constexpr std::uint64_t kPairBytes = 8 + 1 + 4 + 1, kTensorBytes = 8 + 4 + 4 + 8;
  if (pair_count > cursor.left() / kPairBytes || pair_count > kMaxPairs) {
    cursor.refuse("kv_count is {}, the limit is {} and {} bytes follow: damaged or cut short: download it again",
                  pair_count, kMaxPairs, cursor.left());
  }
  if (tensor_count > (cursor.left() - pair_count * kPairBytes) / kTensorBytes || tensor_count > kMaxTensors) {
    cursor.refuse("tensor_count is {}, the limit is {} and {} bytes follow: damaged or cut short: download it again",
                  tensor_count, kMaxTensors, cursor.left());
  }

  std::uint64_t elements_left = kMaxArrayElements;
  for (std::uint64_t i = 0; i < pair_count; ++i) {
    std::string key = cursor.string(kMaxKeyBytes, fmt::format("key {}", i));
    if (key.empty()) cursor.refuse("key {} is empty", i);
    const std::string what = fmt::format("metadata key '{}'", printable(key));
    GgufValue value;
    value.type = cursor.number<std::uint32_t>(what);
    if (value.type >= kValueTypes) cursor.refuse("{}: unknown value type {}", what, value.type);
    if (value.type == kArray) {
      read_array(cursor, value, elements_left, what);
    } else {
      read_scalar(cursor, value, what);
    }
    check_known_key(cursor, key, value);
    if (!metadata_.emplace(std::move(key), std::move(value)).second) cursor.refuse("{} is there twice", what);
  }

  const std::uint64_t alignment = unsigned_integer("general.alignment").value_or(kDefaultAlignment);
  if (!std::has_single_bit(alignment) || alignment > kMaxAlignment) {
    cursor.refuse("general.alignment is {}; it must be a power of two of at most {}", alignment, kMaxAlignment);
  }
  if (const auto count = metadata_.find("split.count"); count != metadata_.end()) {
    const std::uint64_t parts = unsigned_integer("split.count").value_or(0);
    if (parts > 1) {
      const std::uint64_t part = unsigned_integer("split.no").value_or(0);
      cursor.unsupported("part {} of a model split into {} files (split.count): join them into one file first",
                         checked_add(part, 1).value_or(part), parts);
    }
  }

  // Offsets must be the running sum of padded sizes: no gaps, no other order, no two tensors in one place.
  std::uint64_t offset = 0;
  for (std::uint64_t i = 0; i < tensor_count; ++i) {
    TensorInfo info = read_tensor(cursor, i);
    info.file = path.filename().string();
    const std::string name = printable(info.name);
    const auto declared = cursor.number<std::uint64_t>(fmt::format("offset of tensor '{}'", name));
    if (declared != offset) {
      cursor.refuse("tensor '{}': its offset is {}, but the tensors before it end at {}", name, declared, offset);
    }
    const auto size = padded(info.bytes, alignment);
    const auto next = size ? checked_add(offset, *size) : std::nullopt;
    if (!next || *next > kInt64Max)
      cursor.refuse("tensor '{}': overflow: the offset after it does not fit 63 bits", name);
    if (!index_.emplace(info.name, tensors_.size()).second) cursor.refuse("tensor '{}' is there twice", name);
    offsets_.push_back(offset);
    tensors_.push_back(std::move(info));
    offset = *next;
  }

  const std::uint64_t data_start = padded(cursor.position(), alignment).value_or(kInt64Max);
  std::uint64_t expected = 0;
  const TensorInfo* lost = nullptr;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    offsets_[i] += data_start;
    if (tensors_[i].bytes == 0) continue;
    expected = offsets_[i] + tensors_[i].bytes;
    if (expected > content.size() && lost == nullptr) lost = &tensors_[i];
  }
  if (lost != nullptr) {
    cursor.refuse(
        "expected {} bytes, the file has {}: it is cut short, the first lost tensor is '{}': download it again",
        expected, content.size(), printable(lost->name));
  }
}

std::span<const std::byte> GgufFile::rows(const TensorInfo& info, std::int64_t first, std::int64_t count,
                                          std::vector<std::byte>&) const {
  const auto found = index_.find(info.name);
  HT_CHECK(found != index_.end());
  const TensorInfo& mine = tensors_[found->second];
  HT_CHECK(first >= 0 && count >= 0 && first <= mine.rows() && count <= mine.rows() - first);
  if (mine.bytes == 0 || count == 0) return {};
  const std::uint64_t row = mine.row_bytes();
  return file_->bytes().subspan(offsets_[found->second] + static_cast<std::uint64_t>(first) * row,
                                static_cast<std::uint64_t>(count) * row);
}

void GgufFile::forget(const TensorInfo& info) const {
  const auto found = index_.find(info.name);
  HT_CHECK(found != index_.end());
  const TensorInfo& mine = tensors_[found->second];
  if (mine.bytes > 0) file_->forget(file_->bytes().subspan(offsets_[found->second], mine.bytes));
}

const GgufValue* GgufFile::value(std::string_view key) const {
  const auto found = metadata_.find(std::string(key));
  return found == metadata_.end() ? nullptr : &found->second;
}

void GgufFile::wrong_type(std::string_view key, const GgufValue& value, std::string_view wanted) const {
  fail(ErrorKind::bad_input, "{}: metadata key '{}' must be {}, found {}", file_->path().string(), printable(key),
       wanted, type_text(value.type, value.element_type));
}

std::optional<std::string> GgufFile::string(std::string_view key) const {
  const GgufValue* found = value(key);
  if (found == nullptr) return std::nullopt;
  if (const auto* text = std::get_if<std::string>(&found->value)) return *text;
  wrong_type(key, *found, "a string");
}

std::optional<std::uint64_t> GgufFile::unsigned_integer(std::string_view key) const {
  const GgufValue* found = value(key);
  if (found == nullptr) return std::nullopt;
  if (const auto* number = std::get_if<std::uint64_t>(&found->value)) return *number;
  if (const auto* number = std::get_if<std::int64_t>(&found->value); number != nullptr && *number >= 0) {
    return static_cast<std::uint64_t>(*number);
  }
  wrong_type(key, *found, "an integer that is not negative");
}

std::optional<double> GgufFile::number(std::string_view key) const {
  const GgufValue* found = value(key);
  if (found == nullptr) return std::nullopt;
  if (const auto* real = std::get_if<double>(&found->value)) return *real;
  if (const auto* natural = std::get_if<std::uint64_t>(&found->value)) return static_cast<double>(*natural);
  if (const auto* integer = std::get_if<std::int64_t>(&found->value)) return static_cast<double>(*integer);
  wrong_type(key, *found, "a number");
}

std::optional<bool> GgufFile::boolean(std::string_view key) const {
  const GgufValue* found = value(key);
  if (found == nullptr) return std::nullopt;
  if (const auto* truth = std::get_if<bool>(&found->value)) return *truth;
  wrong_type(key, *found, "a boolean");
}

const std::vector<std::string>* GgufFile::strings(std::string_view key) const {
  const GgufValue* found = value(key);
  if (found == nullptr) return nullptr;
  if (const auto* texts = std::get_if<std::vector<std::string>>(&found->value)) return texts;
  wrong_type(key, *found, "an array of strings");
}

std::optional<std::vector<double>> GgufFile::numbers(std::string_view key) const {
  const GgufValue* found = value(key);
  if (found == nullptr) return std::nullopt;
  if (const auto* reals = std::get_if<std::vector<double>>(&found->value)) return *reals;
  if (const auto* naturals = std::get_if<std::vector<std::uint64_t>>(&found->value)) {
    return std::vector<double>(naturals->begin(), naturals->end());
  }
  if (const auto* whole = std::get_if<std::vector<std::int64_t>>(&found->value)) {
    return std::vector<double>(whole->begin(), whole->end());
  }
  wrong_type(key, *found, "an array of numbers");
}

std::optional<std::vector<std::int64_t>> GgufFile::integers(std::string_view key) const {
  const GgufValue* found = value(key);
  if (found == nullptr) return std::nullopt;
  if (const auto* whole = std::get_if<std::vector<std::int64_t>>(&found->value)) return *whole;
  if (const auto* naturals = std::get_if<std::vector<std::uint64_t>>(&found->value)) {
    std::vector<std::int64_t> out;
    out.reserve(naturals->size());
    for (const std::uint64_t natural : *naturals) {
      if (natural > kInt64Max) wrong_type(key, *found, "an array of integers below 2^63");
      out.push_back(static_cast<std::int64_t>(natural));
    }
    return out;
  }
  wrong_type(key, *found, "an array of integers");
}

}  // namespace halftone
