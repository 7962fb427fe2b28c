// The values that templates compute with: Python's, as far as Jinja2 templates can see them. Values are immutable
// (transformers' sandbox forbids changing lists and dictionaries); only the attributes of a namespace change.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"

namespace halftone::jinja {

// Limits that keep a hostile template from taking the process down.
inline constexpr std::size_t kMaxTextBytes = std::size_t{16} << 20;  // one string, and the whole output
inline constexpr std::int64_t kMaxItems = std::int64_t{1}
                                          << 20;  // weight of one list: its values, nested ones too, and their text
inline constexpr int kMaxValueDepth = 100;
inline constexpr std::int64_t kMaxSteps = 10'000'000;

// What goes wrong inside an operation, before the place in the template is known; the evaluator turns it into an Error.
struct Problem {
  ErrorKind kind;
  std::string message;
};
template <class... Args>
[[noreturn]] void problem(fmt::format_string<Args...> format, Args&&... args) {
  throw Problem{ErrorKind::bad_input, fmt::format(format, std::forward<Args>(args)...)};
}
template <class... Args>
[[noreturn]] void unsupported(fmt::format_string<Args...> format, Args&&... args) {
  throw Problem{ErrorKind::unsupported, fmt::format(format, std::forward<Args>(args)...)};
}

// Bytes with their origin: ranges of bytes that came from message content are marked. Slicing and joining keep the
// marks; an operation that cannot keep them marks its whole result.
class Text {
 public:
  Text() = default;
  explicit Text(std::string bytes, bool from_content = false) { append(bytes, from_content); }

  const std::string& bytes() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }
  bool from_content() const { return !marks_.empty(); }  // any part of it

  void append(std::string_view bytes, bool from_content = false);  // Problem beyond kMaxTextBytes
  void append(const Text& other);
  void append(const Text& other, std::size_t begin, std::size_t end);
  Text slice(std::size_t begin, std::size_t end) const;
  bool content_at(std::size_t byte) const;

  // Calls visit(bytes, from_content) for the stretches of one origin, in order.
  template <class Visit>
  void each_piece(Visit&& visit) const {
    const std::string_view all = bytes_;
    std::size_t at = 0;
    for (const Mark& mark : marks_) {
      if (mark.begin > at) visit(all.substr(at, mark.begin - at), false);
      visit(all.substr(mark.begin, mark.end - mark.begin), true);
      at = mark.end;
    }
    if (at < all.size()) visit(all.substr(at), false);
  }

 private:
  struct Mark {
    std::size_t begin, end;
  };
  std::string bytes_;
  std::vector<Mark> marks_;  // disjoint, in order, never touching
};

class Value;
struct List;
struct Dict;
struct Namespace;
struct Macro;
struct Loop;
struct Method;

struct Undefined {
  std::string message;  // what to say when it is used
};
struct NoneValue {};

// Functions that every template can call.
enum class Function { range, dict, namespace_, raise_exception, strftime_now };
std::string_view function_name(Function function);

class Value {
 public:
  using Storage =
      std::variant<NoneValue, std::shared_ptr<const Undefined>, bool, std::int64_t, double, std::shared_ptr<const Text>,
                   std::shared_ptr<const List>, std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
                   std::shared_ptr<const Macro>, std::shared_ptr<const Loop>, std::shared_ptr<const Method>, Function>;

  Value() = default;  // None
  Value(bool value) : storage_(value) {}
  Value(std::int64_t value) : storage_(value) {}
  Value(double value) : storage_(value) {}
  Value(Text value) : storage_(std::make_shared<const Text>(std::move(value))) {}
  Value(std::shared_ptr<const List> value) : storage_(std::move(value)) {}
  Value(std::shared_ptr<const Dict> value) : storage_(std::move(value)) {}
  Value(std::shared_ptr<Namespace> value) : storage_(std::move(value)) {}
  Value(std::shared_ptr<const Macro> value) : storage_(std::move(value)) {}
  Value(std::shared_ptr<const Loop> value) : storage_(std::move(value)) {}
  Value(std::shared_ptr<const Method> value) : storage_(std::move(value)) {}
  Value(Function value) : storage_(value) {}
  static Value undefined(std::string message);
  static Value text(std::string bytes, bool from_content = false) {
    return Value(Text(std::move(bytes), from_content));
  }

  bool is_undefined() const { return holds<std::shared_ptr<const Undefined>>(); }
  bool is_none() const { return holds<NoneValue>(); }
  bool is_bool() const { return holds<bool>(); }
  bool is_int() const { return holds<std::int64_t>() || is_bool(); }  // Python's bool is an int
  bool is_float() const { return holds<double>(); }
  bool is_number() const { return is_int() || is_float(); }
  bool is_text() const { return holds<std::shared_ptr<const Text>>(); }
  bool is_list() const { return holds<std::shared_ptr<const List>>(); }
  bool is_dict() const { return holds<std::shared_ptr<const Dict>>(); }

  const std::string& undefined_message() const { return std::get<std::shared_ptr<const Undefined>>(storage_)->message; }
  std::int64_t integer() const { return is_bool() ? std::get<bool>(storage_) : std::get<std::int64_t>(storage_); }
  double number() const { return is_float() ? std::get<double>(storage_) : static_cast<double>(integer()); }
  const Text& text() const { return *std::get<std::shared_ptr<const Text>>(storage_); }
  const std::string& bytes() const { return text().bytes(); }
  const List& list() const { return *std::get<std::shared_ptr<const List>>(storage_); }
  const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(storage_); }

  template <class T>
  bool holds() const {
    return std::holds_alternative<T>(storage_);
  }
  template <class T>
  const T& get() const {
    return std::get<T>(storage_);
  }
  const Storage& storage() const { return storage_; }

 private:
  Storage storage_;
};

using Values = std::vector<Value>;

// Everything that is iterated by position. A generator (what most filters give) can be gone through once.
enum class ListKind { list, tuple, range, keys, values, items, generator };

struct List {
  ListKind kind = ListKind::list;
  Values items;
  int depth = 1;
  std::int64_t weight = 1;  // values in it, nested ones too; a text counts one more for every 64 bytes
  bool from_content = false;
  std::string range_text;  // ListKind::range: how it prints
  mutable bool consumed = false;
};

struct Dict {
  std::vector<std::pair<Value, Value>> items;          // in order of insertion
  std::unordered_map<std::string, std::size_t> index;  // hash_key of the key -> place in items
  int depth = 1;
  std::int64_t weight = 1;
  bool from_content = false;

  const Value* find(const Value& key) const;  // Problem if the key is unhashable
  const Value* find(std::string_view key) const;
  void set(const Value& key, Value value);  // only while the dictionary is being made
};

struct Namespace {
  Dict attributes;
};

struct Method {
  Value receiver;
  std::string name;
};

struct Loop {
  std::shared_ptr<const Values> items;
  std::size_t index = 0;
  std::shared_ptr<std::optional<Value>> last_changed;  // of loop.changed
};

Value make_list(Values items, ListKind kind = ListKind::list);  // Problem beyond kMaxItems or kMaxValueDepth
Value make_dict(Dict dict);

// Deeper than kMaxValueDepth is Error(bad_input). Strings below `from_content` are marked.
Value from_json(const nlohmann::ordered_json& json, bool from_content = false);

std::string type_name(const Value& value);  // Python's name of its type
bool truth(const Value& value);
bool carries_content(const Value& value);  // any string in it is marked
std::int64_t weight_of(const Value& value);

std::string hash_key(const Value& value);  // equal for values that are equal as dictionary keys; Problem if unhashable
bool equal(const Value& a, const Value& b);
bool less(const Value& a, const Value& b);  // Problem if Python cannot order them

std::string float_text(double value);      // repr(float)
std::string quote(std::string_view text);  // repr(str)
std::string repr(const Value& value);
Text to_text(const Value& value);  // str(value); undefined gives ""

struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false;
  std::optional<std::string> indent;
  std::string item_separator = ", ", key_separator = ": ";
};
std::string to_json(const Value& value, const JsonStyle& style);  // json.dumps

std::int64_t length(const Value& value);  // len(value)
Values iterate(const Value& value);       // list(value); uses a generator up

}  // namespace halftone::jinja
