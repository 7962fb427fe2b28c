// Attributes, items and the methods of built-in types.
#include <algorithm>
#include <unordered_set>

#include "text/jinja/operators.h"
#include "text/jinja/unicode.h"

namespace halftone::jinja {

namespace {

using Names = std::initializer_list<std::string_view>;

bool one_of(std::string_view name, Names names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

enum class Access { method, forbidden, unknown_method, none };

// What Python has under this name on a value of this type.
Access classify(const Value& object, std::string_view name) {
  if (name.starts_with('_')) return Access::forbidden;
  if (object.is_text()) {
    if (one_of(name,
               {"strip",     "lstrip",    "rstrip",     "split",        "rsplit",       "splitlines", "startswith",
                "endswith",  "upper",     "lower",      "title",        "capitalize",   "swapcase",   "casefold",
                "replace",   "join",      "find",       "rfind",        "index",        "rindex",     "count",
                "isdigit",   "isalpha",   "isalnum",    "isspace",      "isupper",      "islower",    "isnumeric",
                "isdecimal", "partition", "rpartition", "removeprefix", "removesuffix", "zfill",      "ljust",
                "rjust",     "center"})) {
      return Access::method;
    }
    if (one_of(name, {"format", "format_map", "encode", "expandtabs", "translate", "maketrans", "isascii",
                      "isidentifier", "isprintable", "istitle"})) {
      return Access::unknown_method;
    }
  } else if (object.is_dict()) {
    if (one_of(name, {"get", "items", "keys", "values", "copy"})) return Access::method;
    if (one_of(name, {"clear", "pop", "popitem", "setdefault", "update"})) return Access::forbidden;
    if (name == "fromkeys") return Access::unknown_method;
  } else if (object.is_list()) {
    const ListKind kind = object.list().kind;
    if (kind == ListKind::list || kind == ListKind::tuple || kind == ListKind::range) {
      if (one_of(name, {"count", "index"})) return Access::method;
    }
    if (kind == ListKind::list) {
      if (name == "copy") return Access::method;
      if (one_of(name, {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"})) {
        return Access::forbidden;
      }
    }
  }
  return Access::none;
}

Value loop_attribute(const std::shared_ptr<const Loop>& loop, const std::string& name) {
  const auto at = static_cast<std::int64_t>(loop->index);
  const auto size = static_cast<std::int64_t>(loop->items->size());
  if (name == "index") return at + 1;
  if (name == "index0") return at;
  if (name == "revindex") return size - at;
  if (name == "revindex0") return size - at - 1;
  if (name == "first") return at == 0;
  if (name == "last") return at + 1 == size;
  if (name == "length") return size;
  // The depth counts the calls of recursive loops, which are not supported.
  if (name == "depth" || name == "depth0") return std::int64_t{name == "depth" ? 1 : 0};
  if (name == "previtem") {
    return at == 0 ? Value::undefined("there is no previous item") : (*loop->items)[loop->index - 1];
  }
  if (name == "nextitem") {
    return at + 1 == size ? Value::undefined("there is no next item") : (*loop->items)[loop->index + 1];
  }
  if (name == "cycle" || name == "changed") {
    return Value(std::make_shared<const Method>(Method{Value(loop), name}));
  }
  return Value::undefined("'loop' has no attribute '" + name + "'");
}

// Neither an item; what getattr() gives, or nothing.
std::optional<Value> plain_attribute(const Value& object, const std::string& name) {
  if (object.holds<std::shared_ptr<Namespace>>()) {
    const Value* found = object.get<std::shared_ptr<Namespace>>()->attributes.find(std::string_view(name));
    if (found != nullptr) return *found;
  }
  if (object.holds<std::shared_ptr<const Loop>>()) {
    return loop_attribute(object.get<std::shared_ptr<const Loop>>(), name);
  }
  switch (classify(object, name)) {
    case Access::method:
      return Value(std::make_shared<const Method>(Method{object, name}));
    case Access::forbidden:
      return Value::undefined(
          fmt::format("'{}' of a value of type '{}' is not allowed in chat templates", name, type_name(object)));
    case Access::unknown_method:
      unsupported("the method '{}' of type '{}' is not supported", name, type_name(object));
    case Access::none:
      break;
  }
  return std::nullopt;
}

Value missing(const Value& object, const std::string& name) {
  return Value::undefined(fmt::format("a value of type '{}' has no attribute '{}'", type_name(object), name));
}

}  // namespace

Value get_attribute(const Value& object, const std::string& name) {
  if (object.is_undefined()) problem("{}", object.undefined_message());
  if (auto found = plain_attribute(object, name)) return *found;
  if (object.is_dict()) {
    if (const Value* found = object.dict().find(std::string_view(name))) return *found;
  }
  return missing(object, name);
}

Value get_item(const Value& object, const Value& key) {
  if (object.is_undefined()) problem("{}", object.undefined_message());
  if (object.is_dict()) {
    const bool hashable = !key.is_dict() && !(key.is_list() && key.list().kind != ListKind::tuple);
    const Value* found = hashable ? object.dict().find(key) : nullptr;
    if (found != nullptr) return *found;
  }
  if (key.is_int()) {
    std::int64_t at = key.integer();
    if (object.is_list() && (object.list().kind == ListKind::list || object.list().kind == ListKind::tuple ||
                             object.list().kind == ListKind::range)) {
      const Values& items = object.list().items;
      if (at < 0) at += static_cast<std::int64_t>(items.size());
      if (at >= 0 && at < static_cast<std::int64_t>(items.size())) return items[static_cast<std::size_t>(at)];
    }
    if (object.is_text()) {
      const auto stop = at == -1 ? Value() : Value(at + 1);
      const Value found = slice(object, at, stop, {});
      if (at < INT64_MAX && found.text().size() != 0) return found;
    }
  }
  if (key.is_text()) {
    if (auto found = plain_attribute(object, key.bytes())) return *found;
    return missing(object, key.bytes());
  }
  return Value::undefined(fmt::format("a value of type '{}' has no such element", type_name(object)));
}

Bound::Bound(std::string_view callee, const Arguments& arguments, std::initializer_list<std::string_view> names,
             std::size_t required)
    : callee_(callee), values_(names.size(), nullptr) {
  if (arguments.positional.size() > names.size()) {
    problem("'{}' takes at most {} arguments, not {}", callee, names.size(), arguments.positional.size());
  }
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) problem("'{}' has no parameter '{}'", callee, name);
    const auto at = static_cast<std::size_t>(found - names.begin());
    if (values_[at] != nullptr) problem("'{}' got '{}' twice", callee, name);
    values_[at] = &value;
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (values_[i] == nullptr) problem("'{}' needs the argument '{}'", callee, *(names.begin() + i));
  }
}

std::int64_t Bound::integer(std::size_t i, std::int64_t fallback) const {
  if (values_[i] == nullptr) return fallback;
  if (!values_[i]->is_int()) {
    problem("'{}' takes an integer, not a value of type '{}'", callee_, type_name(*values_[i]));
  }
  return values_[i]->integer();
}

const Text& Bound::text(std::size_t i) const {
  HT_CHECK(values_[i] != nullptr);
  if (!values_[i]->is_text()) {
    problem("'{}' takes a string, not a value of type '{}'", callee_, type_name(*values_[i]));
  }
  return values_[i]->text();
}

Text strip(const Text& text, const std::string* characters, bool left, bool right) {
  const std::string& bytes = text.bytes();
  std::unordered_set<std::string_view> set;
  for (std::size_t i = 0; characters != nullptr && i < characters->size();) {
    const std::size_t size = decode_at(*characters, i).size;
    set.insert(std::string_view(*characters).substr(i, size));
    i += size;
  }
  const auto strips = [&](std::size_t at, const CodePoint& point) {
    if (characters == nullptr) return is_space(point.value);
    return set.contains(std::string_view(bytes).substr(at, point.size));
  };
  std::size_t begin = 0, end = bytes.size();
  while (left && begin < end) {
    const CodePoint point = decode_at(bytes, begin);
    if (!strips(begin, point)) break;
    begin += point.size;
  }
  while (right && end > begin) {
    const CodePoint point = decode_before(bytes, end);
    if (!strips(end - point.size, point)) break;
    end -= point.size;
  }
  return text.slice(begin, end);
}

Text replace(const Text& text, const Text& old_part, const Text& new_part, std::int64_t count) {
  const std::string &bytes = text.bytes(), &old_bytes = old_part.bytes();
  Text out;
  std::size_t at = 0;
  if (old_bytes.empty()) {
    // Between all characters, and at both ends.
    for (;;) {
      if (count-- == 0) break;
      out.append(new_part);
      if (at >= bytes.size()) break;
      const std::size_t size = decode_at(bytes, at).size;
      out.append(text, at, at + size);
      at += size;
    }
  } else {
    while (count-- != 0) {
      const std::size_t found = find_bytes(bytes, old_bytes, at);
      if (found == std::string::npos) break;
      out.append(text, at, found);
      out.append(new_part);
      at = found + old_bytes.size();
    }
  }
  out.append(text, at, bytes.size());
  return out;
}

std::vector<Text> split_lines(const Text& text, bool keep_ends) {
  std::vector<Text> out;
  const std::string& bytes = text.bytes();
  std::size_t begin = 0;
  for (std::size_t at = 0; at < bytes.size();) {
    const CodePoint point = decode_at(bytes, at);
    std::size_t after = at + point.size;
    if (is_line_end(point.value)) {
      if (point.value == '\r' && after < bytes.size() && bytes[after] == '\n') ++after;
      out.push_back(text.slice(begin, keep_ends ? after : at));
      if (static_cast<std::int64_t>(out.size()) > kMaxItems) problem("a text has more than {} lines", kMaxItems);
      begin = after;
    }
    at = after;
  }
  if (begin < bytes.size()) out.push_back(text.slice(begin, bytes.size()));
  return out;
}

namespace {

Value from_texts(std::vector<Text> parts, ListKind kind = ListKind::list) {
  Values items;
  items.reserve(parts.size());
  for (Text& part : parts) items.emplace_back(std::move(part));
  return make_list(std::move(items), kind);
}

void check_parts(const std::vector<Text>& parts) {
  if (static_cast<std::int64_t>(parts.size()) > kMaxItems)
    problem("a text is split into more than {} parts", kMaxItems);
}

// The last occurrence, or npos.
std::size_t find_last(std::string_view text, std::string_view needle) {
  const std::string text_back(text.rbegin(), text.rend()), needle_back(needle.rbegin(), needle.rend());
  const std::size_t found = find_bytes(text_back, needle_back);
  return found == std::string::npos ? found : text.size() - found - needle.size();
}

std::vector<Text> split_space(const Text& text, std::int64_t limit, bool from_right) {
  const std::string& bytes = text.bytes();
  std::vector<Text> parts;
  std::size_t begin = 0, end = bytes.size();
  const auto skip_left = [&](std::size_t at, bool space) {
    while (at < end) {
      const CodePoint point = decode_at(bytes, at);
      if (is_space(point.value) != space) break;
      at += point.size;
    }
    return at;
  };
  const auto skip_right = [&](std::size_t at, bool space) {
    while (at > begin) {
      const CodePoint point = decode_before(bytes, at);
      if (is_space(point.value) != space) break;
      at -= point.size;
    }
    return at;
  };
  begin = skip_left(begin, true);
  end = skip_right(end, true);
  while (begin < end) {
    if (limit-- == 0) {
      parts.push_back(text.slice(begin, end));
      break;
    }
    if (from_right) {
      const std::size_t word = skip_right(end, false);
      parts.push_back(text.slice(word, end));
      end = skip_right(word, true);
    } else {
      const std::size_t word = skip_left(begin, false);
      parts.push_back(text.slice(begin, word));
      begin = skip_left(word, true);
    }
    check_parts(parts);
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<Text> split(const Text& text, const Value& separator, std::int64_t limit, bool from_right) {
  if (separator.is_none()) return split_space(text, limit, from_right);
  if (!separator.is_text()) problem("'split' takes a string, not a value of type '{}'", type_name(separator));
  const std::string &bytes = text.bytes(), &mark = separator.bytes();
  if (mark.empty()) problem("'split' got an empty separator");
  std::vector<Text> parts;
  if (from_right) {
    // Found from the left in the reversed text.
    const std::string text_back(bytes.rbegin(), bytes.rend()), mark_back(mark.rbegin(), mark.rend());
    std::size_t end = bytes.size();
    while (limit-- != 0) {
      const std::size_t found = find_bytes(text_back, mark_back, bytes.size() - end);
      if (found == std::string::npos) break;
      const std::size_t after = bytes.size() - found;
      parts.push_back(text.slice(after, end));
      end = after - mark.size();
      check_parts(parts);
    }
    parts.push_back(text.slice(0, end));
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  std::size_t begin = 0;
  while (limit-- != 0) {
    const std::size_t found = find_bytes(bytes, mark, begin);
    if (found == std::string::npos) break;
    parts.push_back(text.slice(begin, found));
    begin = found + mark.size();
    check_parts(parts);
  }
  parts.push_back(text.slice(begin, bytes.size()));
  return parts;
}

// text[start:end] of the optional arguments that find, count, startswith and others take.
struct Range {
  Text text;
  std::int64_t offset = 0;  // characters before it
  bool valid = true;        // false: start lies behind the end
};

Range sub_range(const Text& text, const Bound& bound, std::size_t first) {
  if (bound[first] == nullptr && bound[first + 1] == nullptr) return {text, 0, true};
  const std::int64_t size = count_code_points(text.bytes());
  std::int64_t start = bound[first] == nullptr || bound[first]->is_none() ? 0 : bound.integer(first, 0);
  if (start < 0) start = std::max<std::int64_t>(0, start < -size ? 0 : start + size);
  const Value stop = bound.get(first + 1, {});
  return {slice(text, start, stop, {}).text(), start, start <= size};
}

bool has_affix(const Range& range, const Value& affix, bool at_end) {
  if (affix.is_list() && affix.list().kind == ListKind::tuple) {
    return std::any_of(affix.list().items.begin(), affix.list().items.end(),
                       [&](const Value& one) { return has_affix(range, one, at_end); });
  }
  if (!affix.is_text()) {
    problem("'{}' takes a string or a tuple of strings, not a value of type '{}'", at_end ? "endswith" : "startswith",
            type_name(affix));
  }
  if (!range.valid) return false;
  return at_end ? range.text.bytes().ends_with(affix.bytes()) : range.text.bytes().starts_with(affix.bytes());
}

std::int64_t find(const Range& range, const std::string& needle, bool last) {
  if (!range.valid) return -1;
  const std::string& bytes = range.text.bytes();
  const std::size_t found = last ? find_last(bytes, needle) : find_bytes(bytes, needle);
  if (found == std::string::npos) return -1;
  return range.offset + count_code_points(std::string_view(bytes).substr(0, found));
}

std::int64_t count_in(const Range& range, const std::string& needle) {
  if (!range.valid) return 0;
  if (needle.empty()) return count_code_points(range.text.bytes()) + 1;
  std::int64_t count = 0;
  const std::string& bytes = range.text.bytes();
  for (std::size_t at = find_bytes(bytes, needle); at != std::string::npos;
       at = find_bytes(bytes, needle, at + needle.size())) {
    ++count;
  }
  return count;
}

template <class Predicate>
bool all_characters(std::string_view text, Predicate&& holds) {
  if (text.empty()) return false;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = decode_at(text, at);
    if (!holds(point.value)) return false;
    at += point.size;
  }
  return true;
}

bool text_is(std::string_view name, std::string_view text) {
  if (name == "isspace") return all_characters(text, is_space);
  if (name == "isalpha") return all_characters(text, is_alpha);
  if (name == "isdigit" || name == "isdecimal" || name == "isnumeric") return all_characters(text, is_digit);
  if (name == "isalnum") return all_characters(text, [](std::int32_t c) { return is_alpha(c) || is_digit(c); });
  const bool upper = name == "isupper";
  bool cased = false;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = decode_at(text, at);
    if (upper ? is_lower(point.value) : is_upper(point.value)) return false;
    cased = cased || is_cased(point.value);
    at += point.size;
  }
  return cased;
}

Value partition(const Text& text, const Text& mark, bool last) {
  if (mark.size() == 0) problem("'partition' got an empty separator");
  const std::size_t found = last ? find_last(text.bytes(), mark.bytes()) : find_bytes(text.bytes(), mark.bytes());
  if (found == std::string::npos) {
    if (last) return from_texts({Text(), Text(), text}, ListKind::tuple);
    return from_texts({text, Text(), Text()}, ListKind::tuple);
  }
  const std::size_t after = found + mark.size();
  return from_texts({text.slice(0, found), text.slice(found, after), text.slice(after, text.size())}, ListKind::tuple);
}

Value justify(const std::string& name, const Text& text, const Arguments& arguments) {
  const bool zeros = name == "zfill";
  const Bound bound(name, arguments, {"width", "fillchar"}, 1);
  const Text fill = zeros ? Text("0") : bound[1] != nullptr ? bound.text(1) : Text(" ");
  if (count_code_points(fill.bytes()) != 1) problem("'{}' fills with exactly one character", name);
  const std::int64_t width = bound.integer(0, 0), missing = width - count_code_points(text.bytes());
  if (missing <= 0) return text;
  if (width > static_cast<std::int64_t>(kMaxTextBytes))
    problem("a text grows beyond the limit of {} bytes", kMaxTextBytes);
  std::int64_t left = 0;
  if (name == "rjust" || zeros) left = missing;
  if (name == "center") left = missing / 2 + (missing & width & 1);
  const std::size_t sign = zeros && (text.bytes().starts_with('-') || text.bytes().starts_with('+')) ? 1 : 0;
  Text out = text.slice(0, sign);
  for (std::int64_t i = 0; i < left; ++i) out.append(fill);
  out.append(text, sign, text.size());
  for (std::int64_t i = left; i < missing; ++i) out.append(fill);
  return out;
}

Value case_method(std::string_view name, const Text& text) {
  const std::string& bytes = text.bytes();
  std::string changed;
  if (name == "upper") changed = change_case(bytes, Case::upper);
  if (name == "lower") changed = change_case(bytes, Case::lower);
  if (name == "casefold")
    changed = replace(Text(change_case(bytes, Case::lower)), Text("\u00DF"), Text("ss"), -1).bytes();
  if (name == "title") changed = title_words(bytes);
  if (name == "capitalize") changed = capitalize(bytes);
  if (name == "swapcase") {
    for (std::size_t at = 0; at < bytes.size();) {
      const CodePoint point = decode_at(bytes, at);
      if (point.value < 0) {
        changed += bytes[at];
      } else {
        append_case(changed, point.value, is_upper(point.value) ? Case::lower : Case::upper);
      }
      at += point.size;
    }
  }
  return Value::text(std::move(changed), text.from_content());
}

Value join_method(const Text& text, const Value& parts) {
  Text out;
  bool first = true;
  for (const Value& part : iterate(parts)) {
    if (part.is_undefined()) problem("{}", part.undefined_message());
    if (!part.is_text()) problem("'join' takes strings, not a value of type '{}'", type_name(part));
    if (!first) out.append(text);
    first = false;
    out.append(part.text());
  }
  return out;
}

Value text_method(const std::string& name, const Text& text, const Arguments& arguments) {
  if (one_of(name, {"strip", "lstrip", "rstrip"})) {
    const Bound bound(name, arguments, {"chars"});
    const bool given = bound[0] != nullptr && !bound[0]->is_none();
    return strip(text, given ? &bound.text(0).bytes() : nullptr, name != "rstrip", name != "lstrip");
  }
  if (one_of(name, {"split", "rsplit"})) {
    const Bound bound(name, arguments, {"sep", "maxsplit"});
    return from_texts(split(text, bound.get(0, {}), bound.integer(1, -1), name == "rsplit"));
  }
  if (name == "splitlines") return from_texts(split_lines(text, Bound(name, arguments, {"keepends"}).flag(0, false)));
  if (one_of(name, {"startswith", "endswith"})) {
    const Bound bound(name, arguments, {"prefix", "start", "end"}, 1);
    return has_affix(sub_range(text, bound, 1), *bound[0], name == "endswith");
  }
  if (one_of(name, {"find", "rfind", "index", "rindex"})) {
    const Bound bound(name, arguments, {"sub", "start", "end"}, 1);
    const std::int64_t found = find(sub_range(text, bound, 1), bound.text(0).bytes(), name[0] == 'r');
    if (found < 0 && name.ends_with("index")) problem("'{}' did not find the substring", name);
    return found;
  }
  if (name == "count") {
    const Bound bound(name, arguments, {"sub", "start", "end"}, 1);
    return count_in(sub_range(text, bound, 1), bound.text(0).bytes());
  }
  if (one_of(name, {"upper", "lower", "casefold", "title", "capitalize", "swapcase"})) {
    const Bound none(name, arguments, {});
    return case_method(name, text);
  }
  if (name == "replace") {
    const Bound bound(name, arguments, {"old", "new", "count"}, 2);
    return replace(text, bound.text(0), bound.text(1), bound.integer(2, -1));
  }
  if (name == "join") return join_method(text, *Bound(name, arguments, {"iterable"}, 1)[0]);
  if (one_of(name, {"partition", "rpartition"})) {
    return partition(text, Bound(name, arguments, {"sep"}, 1).text(0), name == "rpartition");
  }
  if (name == "removeprefix") {
    const Text& affix = Bound(name, arguments, {"prefix"}, 1).text(0);
    return text.bytes().starts_with(affix.bytes()) ? text.slice(affix.size(), text.size()) : text;
  }
  if (name == "removesuffix") {
    const Text& affix = Bound(name, arguments, {"suffix"}, 1).text(0);
    return text.bytes().ends_with(affix.bytes()) ? text.slice(0, text.size() - affix.size()) : text;
  }
  if (one_of(name, {"zfill", "ljust", "rjust", "center"})) return justify(name, text, arguments);
  const Bound none(name, arguments, {});
  return text_is(name, text.bytes());
}

Value dict_method(const std::string& name, const Dict& dict, const Value& receiver, const Arguments& arguments) {
  if (name == "get") {
    const Bound bound(name, arguments, {"key", "default"}, 1);
    const Value* found = dict.find(*bound[0]);
    return found != nullptr ? *found : bound.get(1, {});
  }
  const Bound none(name, arguments, {});
  if (name == "copy") return receiver;
  Values out;
  out.reserve(dict.items.size());
  for (const auto& [key, value] : dict.items) {
    if (name == "keys") {
      out.push_back(key);
    } else if (name == "values") {
      out.push_back(value);
    } else {
      out.push_back(make_list({key, value}, ListKind::tuple));
    }
  }
  return make_list(std::move(out), name == "keys"     ? ListKind::keys
                                   : name == "values" ? ListKind::values
                                                      : ListKind::items);
}

Value list_method(const std::string& name, const List& list, const Value& receiver, const Arguments& arguments) {
  if (name == "copy") return receiver;
  const Bound bound(name, arguments, {"value"}, 1);
  std::int64_t count = 0;
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    if (!equal(list.items[i], *bound[0])) continue;
    if (name == "index") return static_cast<std::int64_t>(i);
    ++count;
  }
  if (name == "index") problem("'index' did not find the value in the list");
  return count;
}

Value loop_method(const std::string& name, const Loop& loop, const Arguments& arguments) {
  if (!arguments.named.empty()) problem("'loop.{}' takes no named arguments", name);
  if (name == "cycle") {
    if (arguments.positional.empty()) problem("'loop.cycle' got no items");
    return arguments.positional[loop.index % arguments.positional.size()];
  }
  const Value now = make_list(arguments.positional, ListKind::tuple);
  const bool changed = !loop.last_changed->has_value() || !equal(**loop.last_changed, now);
  *loop.last_changed = now;
  return changed;
}

}  // namespace

Value call_method(const Method& method, const Arguments& arguments) {
  const Value& receiver = method.receiver;
  if (receiver.is_text()) return text_method(method.name, receiver.text(), arguments);
  if (receiver.is_dict()) return dict_method(method.name, receiver.dict(), receiver, arguments);
  if (receiver.is_list()) return list_method(method.name, receiver.list(), receiver, arguments);
  return loop_method(method.name, *receiver.get<std::shared_ptr<const Loop>>(), arguments);
}

}  // namespace halftone::jinja
