#include "text/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja/unicode.h"

namespace halftone::jinja {

void Text::append(std::string_view bytes, bool from_content) {
  if (bytes.empty()) return;
  if (bytes.size() > kMaxTextBytes - bytes_.size()) {
    problem("a text grows beyond the limit of {} bytes", kMaxTextBytes);
  }
  const std::size_t begin = bytes_.size();
  bytes_.append(bytes);
  if (!from_content) return;
  if (!marks_.empty() && marks_.back().end == begin) {
    marks_.back().end = bytes_.size();
  } else {
    marks_.push_back({begin, bytes_.size()});
  }
}

void Text::append(const Text& other) {
  append(other, 0, other.size());
}

void Text::append(const Text& other, std::size_t begin, std::size_t end) {
  const std::string_view all = other.bytes_;
  std::size_t at = begin;
  auto mark = std::lower_bound(other.marks_.begin(), other.marks_.end(), begin,
                               [](const Mark& m, std::size_t value) { return m.end <= value; });
  for (; mark != other.marks_.end() && mark->begin < end; ++mark) {
    const std::size_t from = std::max(mark->begin, at), to = std::min(mark->end, end);
    append(all.substr(at, from - at), false);
    append(all.substr(from, to - from), true);
    at = to;
  }
  append(all.substr(at, end - at), false);
}

Text Text::slice(std::size_t begin, std::size_t end) const {
  Text out;
  out.append(*this, begin, end);
  return out;
}

bool Text::content_at(std::size_t byte) const {
  auto mark = std::lower_bound(marks_.begin(), marks_.end(), byte,
                               [](const Mark& m, std::size_t value) { return m.end <= value; });
  return mark != marks_.end() && mark->begin <= byte;
}

std::string_view function_name(Function function) {
  switch (function) {
    case Function::range:
      return "range";
    case Function::dict:
      return "dict";
    case Function::namespace_:
      return "namespace";
    case Function::raise_exception:
      return "raise_exception";
    case Function::strftime_now:
      return "strftime_now";
  }
  return "";
}

Value Value::undefined(std::string message) {
  Value value;
  value.storage_ = std::make_shared<const Undefined>(Undefined{std::move(message)});
  return value;
}

namespace {

int depth_of(const Value& value) {
  if (value.is_list()) return value.list().depth;
  if (value.is_dict()) return value.dict().depth;
  if (value.holds<std::shared_ptr<const Method>>()) {
    return 1 + depth_of(value.get<std::shared_ptr<const Method>>()->receiver);
  }
  // Its items would have to be looked through for their depth, every time.
  if (value.holds<std::shared_ptr<const Loop>>()) unsupported("'loop' inside a list or dictionary is not supported");
  return 0;
}

template <class Container>
void count(Container& container, const Value& child) {
  container.depth = std::max(container.depth, 1 + depth_of(child));
  container.weight += weight_of(child);
  container.from_content = container.from_content || carries_content(child);
  if (container.depth > kMaxValueDepth) problem("values are nested deeper than the limit of {}", kMaxValueDepth);
  if (container.weight > kMaxItems) problem("a list or dictionary grows beyond the limit of {} values", kMaxItems);
}

}  // namespace

std::int64_t weight_of(const Value& value) {
  if (value.is_text()) return 1 + static_cast<std::int64_t>(value.text().size() / 64);
  if (value.is_list()) return value.list().weight;
  if (value.is_dict()) return value.dict().weight;
  return 1;
}

bool carries_content(const Value& value) {
  if (value.is_text()) return value.text().from_content();
  if (value.is_list()) return value.list().from_content;
  if (value.is_dict()) return value.dict().from_content;
  if (value.holds<std::shared_ptr<Namespace>>())
    return value.get<std::shared_ptr<Namespace>>()->attributes.from_content;
  if (value.holds<std::shared_ptr<const Method>>()) {
    return carries_content(value.get<std::shared_ptr<const Method>>()->receiver);
  }
  return false;
}

Value make_list(Values items, ListKind kind) {
  auto list = std::make_shared<List>();
  list->kind = kind;
  for (const Value& item : items) count(*list, item);
  list->items = std::move(items);
  return Value(std::shared_ptr<const List>(std::move(list)));
}

Value make_dict(Dict dict) {
  return Value(std::make_shared<const Dict>(std::move(dict)));
}

const Value* Dict::find(const Value& key) const {
  const auto found = index.find(hash_key(key));
  return found == index.end() ? nullptr : &items[found->second].second;
}

const Value* Dict::find(std::string_view key) const {
  const auto found = index.find("s" + std::string(key));
  return found == index.end() ? nullptr : &items[found->second].second;
}

void Dict::set(const Value& key, Value value) {
  count(*this, value);
  from_content = from_content || carries_content(key);
  const auto [found, added] = index.try_emplace(hash_key(key), items.size());
  if (added) {
    items.emplace_back(key, std::move(value));
    weight += weight_of(key);
  } else {
    items[found->second].second = std::move(value);
  }
}

namespace {

Value convert(const nlohmann::ordered_json& json, bool from_content, int depth) {
  if (depth > kMaxValueDepth) {
    fail(ErrorKind::bad_input, "a template variable is nested deeper than {} levels", kMaxValueDepth);
  }
  using Type = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Type::boolean:
      return json.get<bool>();
    case Type::number_integer:
      return json.get<std::int64_t>();
    case Type::number_unsigned: {
      const auto number = json.get<std::uint64_t>();
      if (number > static_cast<std::uint64_t>(INT64_MAX)) {
        fail(ErrorKind::unsupported, "a template variable holds {}, which is beyond 64-bit integers", number);
      }
      return static_cast<std::int64_t>(number);
    }
    case Type::number_float:
      return json.get<double>();
    case Type::string:
      return Value::text(json.get_ref<const std::string&>(), from_content);
    case Type::array: {
      Values items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(convert(item, from_content, depth + 1));
      return make_list(std::move(items));
    }
    case Type::object: {
      Dict dict;
      for (const auto& [key, item] : json.items()) {
        dict.set(Value::text(key, from_content), convert(item, from_content, depth + 1));
      }
      return make_dict(std::move(dict));
    }
    default:
      return {};
  }
}

}  // namespace

Value from_json(const nlohmann::ordered_json& json, bool from_content) {
  try {
    return convert(json, from_content, 1);
  } catch (const Problem& caught) {
    throw Error(caught.kind, "a template variable is too large: " + caught.message);
  }
}

std::string type_name(const Value& value) {
  struct Visitor {
    std::string operator()(const NoneValue&) { return "NoneType"; }
    std::string operator()(const std::shared_ptr<const Undefined>&) { return "Undefined"; }
    std::string operator()(bool) { return "bool"; }
    std::string operator()(std::int64_t) { return "int"; }
    std::string operator()(double) { return "float"; }
    std::string operator()(const std::shared_ptr<const Text>&) { return "str"; }
    std::string operator()(const std::shared_ptr<const List>& list) {
      switch (list->kind) {
        case ListKind::list:
          return "list";
        case ListKind::tuple:
          return "tuple";
        case ListKind::range:
          return "range";
        case ListKind::keys:
          return "dict_keys";
        case ListKind::values:
          return "dict_values";
        case ListKind::items:
          return "dict_items";
        case ListKind::generator:
          return "generator";
      }
      return "";
    }
    std::string operator()(const std::shared_ptr<const Dict>&) { return "dict"; }
    std::string operator()(const std::shared_ptr<Namespace>&) { return "Namespace"; }
    std::string operator()(const std::shared_ptr<const Macro>&) { return "Macro"; }
    std::string operator()(const std::shared_ptr<const Loop>&) { return "LoopContext"; }
    std::string operator()(const std::shared_ptr<const Method>&) { return "builtin_function_or_method"; }
    std::string operator()(Function) { return "function"; }
  };
  return std::visit(Visitor{}, value.storage());
}

bool truth(const Value& value) {
  if (value.is_none() || value.is_undefined()) return false;
  if (value.is_int()) return value.integer() != 0;
  if (value.is_float()) return value.number() != 0;
  if (value.is_text()) return value.text().size() != 0;
  if (value.is_list()) return value.list().kind == ListKind::generator || !value.list().items.empty();
  if (value.is_dict()) return !value.dict().items.empty();
  return true;
}

std::string hash_key(const Value& value) {
  if (value.is_text()) return "s" + value.bytes();
  if (value.is_none()) return "n";
  if (value.is_int()) return fmt::format("i{}", value.integer());
  if (value.is_float()) {
    const double number = value.number();
    if (number == std::floor(number) && std::abs(number) < 9.0e18) {
      return fmt::format("i{}", static_cast<std::int64_t>(number));
    }
    return fmt::format("f{}", number);
  }
  if (value.is_list() && value.list().kind == ListKind::tuple) {
    std::string key = "t";
    for (const Value& item : value.list().items) {
      const std::string part = hash_key(item);
      key += fmt::format("{}:", part.size()) + part;
    }
    return key;
  }
  if (value.is_list() || value.is_dict()) problem("unhashable type: '{}'", type_name(value));
  if (value.is_undefined()) return "u";
  unsupported("a value of type '{}' as a dictionary key", type_name(value));
}

namespace {

bool same_sequence(const List& a, const List& b) {
  if (a.kind != b.kind || a.items.size() != b.items.size()) return false;
  for (std::size_t i = 0; i < a.items.size(); ++i) {
    if (!equal(a.items[i], b.items[i])) return false;
  }
  return true;
}

bool less_number(const Value& a, const Value& b) {
  if (a.is_int() && b.is_int()) return a.integer() < b.integer();
  return a.number() < b.number();
}

}  // namespace

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_int() && b.is_int()) return a.integer() == b.integer();
    return a.number() == b.number();
  }
  if (a.storage().index() != b.storage().index()) return false;
  if (a.is_none() || a.is_undefined()) return true;
  if (a.is_text()) return a.bytes() == b.bytes();
  if (a.is_list()) {
    if (&a.list() == &b.list()) return true;
    if (a.list().kind == ListKind::generator || a.list().kind == ListKind::values) return false;
    return same_sequence(a.list(), b.list());
  }
  if (a.is_dict()) {
    if (&a.dict() == &b.dict()) return true;
    if (a.dict().items.size() != b.dict().items.size()) return false;
    for (const auto& [key, item] : a.dict().items) {
      const Value* other = b.dict().find(key);
      if (other == nullptr || !equal(item, *other)) return false;
    }
    return true;
  }
  if (a.holds<Function>()) return a.get<Function>() == b.get<Function>();
  if (a.holds<std::shared_ptr<Namespace>>()) {
    return a.get<std::shared_ptr<Namespace>>() == b.get<std::shared_ptr<Namespace>>();
  }
  if (a.holds<std::shared_ptr<const Macro>>()) {
    return a.get<std::shared_ptr<const Macro>>() == b.get<std::shared_ptr<const Macro>>();
  }
  return false;
}

bool less(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return less_number(a, b);
  if (a.is_text() && b.is_text()) return a.bytes() < b.bytes();  // UTF-8 sorts as code points do
  if (a.is_list() && b.is_list() && a.list().kind == b.list().kind &&
      (a.list().kind == ListKind::list || a.list().kind == ListKind::tuple)) {
    const Values &x = a.list().items, &y = b.list().items;
    for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(x[i], y[i])) return less(x[i], y[i]);
    }
    return x.size() < y.size();
  }
  if (a.is_undefined()) problem("{}", a.undefined_message());
  if (b.is_undefined()) problem("{}", b.undefined_message());
  problem("values of types '{}' and '{}' cannot be ordered", type_name(a), type_name(b));
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view shortest(buffer, static_cast<std::size_t>(end - buffer));
  const std::size_t e = shortest.find('e');
  const int exponent = std::stoi(std::string(shortest.substr(e + 1)));
  const bool negative = shortest[0] == '-';
  std::string digits;
  for (const char c : shortest.substr(0, e)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  std::string out = negative ? "-" : "";
  // Python writes an exponent below 1e-4 and from 1e16 on.
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) out += "." + digits.substr(1);
    out += fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  } else if (exponent < 0) {
    out += "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  } else {
    const auto whole = static_cast<std::size_t>(exponent) + 1;
    if (digits.size() <= whole) {
      out += digits + std::string(whole - digits.size(), '0') + ".0";
    } else {
      out += digits.substr(0, whole) + "." + digits.substr(whole);
    }
  }
  return out;
}

std::string quote(std::string_view text) {
  const bool single = text.find('\'') == std::string_view::npos || text.find('"') != std::string_view::npos;
  const char mark = single ? '\'' : '"';
  std::string out(1, mark);
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = decode_at(text, at);
    const std::int32_t c = point.value;
    if (c == mark || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c < 0) {
      out += text[at];
    } else if (is_printable(c)) {
      out += text.substr(at, point.size);
    } else if (c <= 0xFF) {
      out += fmt::format("\\x{:02x}", c);
    } else if (c <= 0xFFFF) {
      out += fmt::format("\\u{:04x}", c);
    } else {
      out += fmt::format("\\U{:08x}", c);
    }
    at += point.size;
  }
  out += mark;
  return out;
}

namespace {

void check_size(const std::string& out) {
  if (out.size() > kMaxTextBytes) problem("a text grows beyond the limit of {} bytes", kMaxTextBytes);
}

void append_repr(std::string& out, const Value& value);

void append_repr_dict(std::string& out, const Dict& dict) {
  out += '{';
  bool first = true;
  for (const auto& [key, item] : dict.items) {
    if (!first) out += ", ";
    first = false;
    append_repr(out, key);
    out += ": ";
    append_repr(out, item);
  }
  out += '}';
}

void append_repr_list(std::string& out, const List& list) {
  switch (list.kind) {
    case ListKind::range:
      out += list.range_text;
      return;
    case ListKind::generator:
      unsupported("printing a generator (add the list filter)");
      return;
    case ListKind::keys:
      out += "dict_keys(";
      break;
    case ListKind::values:
      out += "dict_values(";
      break;
    case ListKind::items:
      out += "dict_items(";
      break;
    default:
      break;
  }
  const bool tuple = list.kind == ListKind::tuple;
  const bool view = list.kind != ListKind::tuple && list.kind != ListKind::list;
  out += tuple ? '(' : '[';
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out += ", ";
    append_repr(out, list.items[i]);
  }
  if (tuple && list.items.size() == 1) out += ',';
  out += tuple ? ')' : ']';
  if (view) out += ')';
}

void append_repr(std::string& out, const Value& value) {
  check_size(out);
  if (value.is_none()) {
    out += "None";
  } else if (value.is_undefined()) {
    out += "Undefined";
  } else if (value.is_bool()) {
    out += value.integer() != 0 ? "True" : "False";
  } else if (value.is_int()) {
    out += std::to_string(value.integer());
  } else if (value.is_float()) {
    out += float_text(value.number());
  } else if (value.is_text()) {
    out += quote(value.bytes());
  } else if (value.is_list()) {
    append_repr_list(out, value.list());
  } else if (value.is_dict()) {
    append_repr_dict(out, value.dict());
  } else {
    unsupported("printing a value of type '{}'", type_name(value));
  }
}

}  // namespace

std::string repr(const Value& value) {
  std::string out;
  append_repr(out, value);
  check_size(out);
  return out;
}

Text to_text(const Value& value) {
  if (value.is_text()) return value.text();
  if (value.is_undefined()) return {};
  return Text(repr(value), carries_content(value));
}

namespace {

void append_json_text(std::string& out, std::string_view text, bool ascii) {
  out += '"';
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = decode_at(text, at);
    const std::int32_t c = point.value;
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\b':
        out += "\\b";
        break;
      default:
        if ((c >= 0 && c < 0x20) || (ascii && c >= 0x7F && c <= 0xFFFF && c != 0x7F)) {
          out += fmt::format("\\u{:04x}", c);
        } else if (ascii && c > 0xFFFF) {
          const std::int32_t rest = c - 0x10000;
          out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
        } else {
          out += text.substr(at, point.size);
        }
    }
    at += point.size;
  }
  out += '"';
}

std::string json_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return float_text(value);
}

std::string json_key(const Value& key) {
  if (key.is_text()) return key.bytes();
  if (key.is_none()) return "null";
  if (key.is_bool()) return key.integer() != 0 ? "true" : "false";
  if (key.is_int()) return std::to_string(key.integer());
  if (key.is_float()) return json_number(key.number());
  problem("JSON keys must be strings or numbers, not {}", type_name(key));
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}
  std::string take() { return std::move(out_); }

  void write(const Value& value) {
    check_size(out_);
    if (value.is_none()) {
      out_ += "null";
    } else if (value.is_bool()) {
      out_ += value.integer() != 0 ? "true" : "false";
    } else if (value.is_int()) {
      out_ += std::to_string(value.integer());
    } else if (value.is_float()) {
      out_ += json_number(value.number());
    } else if (value.is_text()) {
      append_json_text(out_, value.bytes(), style_.ensure_ascii);
    } else if (value.is_list() && (value.list().kind == ListKind::list || value.list().kind == ListKind::tuple)) {
      write_list(value.list());
    } else if (value.is_dict()) {
      write_dict(value.dict());
    } else {
      problem("a value of type {} cannot be written as JSON", type_name(value));
    }
  }

 private:
  void line() {
    if (!style_.indent) return;
    out_ += '\n';
    for (int i = 0; i < level_; ++i) out_ += *style_.indent;
    check_size(out_);
  }

  void write_list(const List& list) {
    if (list.items.empty()) {
      out_ += "[]";
      return;
    }
    out_ += '[';
    ++level_;
    for (std::size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      line();
      write(list.items[i]);
    }
    --level_;
    line();
    out_ += ']';
  }

  void write_dict(const Dict& dict) {
    if (dict.items.empty()) {
      out_ += "{}";
      return;
    }
    std::vector<const std::pair<Value, Value>*> order;
    order.reserve(dict.items.size());
    for (const auto& item : dict.items) order.push_back(&item);
    if (style_.sort_keys) {
      std::stable_sort(order.begin(), order.end(),
                       [](const auto* a, const auto* b) { return less(a->first, b->first); });
    }
    out_ += '{';
    ++level_;
    bool first = true;
    for (const auto* item : order) {
      if (!first) out_ += style_.item_separator;
      first = false;
      line();
      append_json_text(out_, json_key(item->first), style_.ensure_ascii);
      out_ += style_.key_separator;
      write(item->second);
    }
    --level_;
    line();
    out_ += '}';
  }

  const JsonStyle& style_;
  std::string out_;
  int level_ = 0;
};

}  // namespace

std::string to_json(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  writer.write(value);
  std::string out = writer.take();
  check_size(out);
  return out;
}

std::int64_t length(const Value& value) {
  if (value.is_text()) return count_code_points(value.bytes());
  if (value.is_list() && value.list().kind != ListKind::generator) {
    return static_cast<std::int64_t>(value.list().items.size());
  }
  if (value.is_dict()) return static_cast<std::int64_t>(value.dict().items.size());
  if (value.is_undefined()) return 0;
  if (value.holds<std::shared_ptr<const Loop>>()) {
    return static_cast<std::int64_t>(value.get<std::shared_ptr<const Loop>>()->items->size());
  }
  problem("a value of type '{}' has no length", type_name(value));
}

Values iterate(const Value& value) {
  if (value.is_list()) {
    const List& list = value.list();
    if (list.kind == ListKind::generator) {
      if (list.consumed) return {};
      list.consumed = true;
    }
    return list.items;
  }
  Values out;
  if (value.is_undefined()) return out;
  if (value.is_dict()) {
    out.reserve(value.dict().items.size());
    for (const auto& item : value.dict().items) out.push_back(item.first);
    return out;
  }
  if (value.is_text()) {
    const Text& text = value.text();
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t size = decode_at(text.bytes(), at).size;
      out.emplace_back(text.slice(at, at + size));
      if (static_cast<std::int64_t>(out.size()) > kMaxItems) {
        problem("a text of more than {} characters cannot be taken apart", kMaxItems);
      }
      at += size;
    }
    return out;
  }
  problem("a value of type '{}' cannot be iterated over", type_name(value));
}

}  // namespace halftone::jinja
