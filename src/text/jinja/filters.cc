#include "text/jinja/filters.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "text/jinja/unicode.h"

namespace halftone::jinja {

namespace {

using Filter = Value (*)(const Value&, const Arguments&);

// The value at a dotted path ("function.name", "0"); items come before attributes.
Value at_path(const Value& object, const Value& path) {
  if (path.is_int()) return get_item(object, path);
  if (!path.is_text()) problem("an attribute is named by a string, not by a value of type '{}'", type_name(path));
  Value out = object;
  const std::string& bytes = path.bytes();
  for (std::size_t at = 0; at <= bytes.size();) {
    const std::size_t dot = std::min(bytes.find('.', at), bytes.size());
    const std::string part = bytes.substr(at, dot - at);
    const bool digits = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    out = get_item(out, digits ? Value(parse_integer(part, 10).value_or(0)) : Value::text(part));
    at = dot + 1;
  }
  return out;
}

Value lowered(const Value& value) {
  return value.is_text() ? Value::text(change_case(value.bytes(), Case::lower), value.text().from_content()) : value;
}

// What sorting and comparing look at: an attribute or several ("a,b"), lower case unless told otherwise.
Value sort_key(const Value& item, const Value* attribute, bool case_sensitive) {
  if (attribute == nullptr || attribute->is_none()) return case_sensitive ? item : lowered(item);
  if (attribute->is_text() && attribute->bytes().find(',') != std::string::npos) {
    Values parts;
    std::string_view rest = attribute->bytes();
    for (;;) {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      const Value part = at_path(item, Value::text(std::string(rest.substr(0, comma))));
      parts.push_back(case_sensitive ? part : lowered(part));
      if (comma == rest.size()) return make_list(std::move(parts));
      rest.remove_prefix(comma + 1);
    }
  }
  const Value part = at_path(item, *attribute);
  return case_sensitive ? part : lowered(part);
}

void sort_values(Values& items, bool reverse, bool case_sensitive, const Value* attribute) {
  std::vector<std::pair<Value, Value>> keyed;
  keyed.reserve(items.size());
  for (Value& item : items) {
    Value key = sort_key(item, attribute, case_sensitive);
    keyed.emplace_back(std::move(key), std::move(item));
  }
  // NaN breaks the order that the algorithm relies on; Python's result with it is arbitrary too.
  for (const auto& [key, item] : keyed) {
    if (key.is_float() && std::isnan(key.number())) problem("not-a-number cannot be sorted");
  }
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? less(b.first, a.first) : less(a.first, b.first);
  });
  for (std::size_t i = 0; i < items.size(); ++i) items[i] = std::move(keyed[i].second);
}

Value plain_text(const Value& value, std::string bytes) {
  return Value::text(std::move(bytes), carries_content(value));
}

Value filter_abs(const Value& value, const Arguments& arguments) {
  const Bound none("abs", arguments, {});
  if (value.is_float()) return std::abs(value.number());
  if (!value.is_int()) problem("'abs' takes a number, not a value of type '{}'", type_name(value));
  return negate(value.integer(), value.integer() < 0);
}

Value filter_capitalize(const Value& value, const Arguments& arguments) {
  const Bound none("capitalize", arguments, {});
  return plain_text(value, capitalize(to_text(value).bytes()));
}

Value filter_default(const Value& value, const Arguments& arguments) {
  const Bound bound("default", arguments, {"default_value", "boolean"});
  const bool use = value.is_undefined() || (bound.flag(1, false) && !truth(value));
  return use ? bound.get(0, Text()) : value;
}

Value filter_dictsort(const Value& value, const Arguments& arguments) {
  const Bound bound("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  if (!value.is_dict()) problem("'dictsort' takes a dictionary, not a value of type '{}'", type_name(value));
  const std::string by = bound[1] != nullptr ? bound.text(1).bytes() : "key";
  if (by != "key" && by != "value") problem("'dictsort' sorts by 'key' or 'value'");
  Values items;
  for (const auto& [key, item] : value.dict().items) items.push_back(make_list({key, item}, ListKind::tuple));
  const Value place = static_cast<std::int64_t>(by == "key" ? 0 : 1);
  sort_values(items, bound.flag(2, false), bound.flag(0, false), &place);
  return make_list(std::move(items));
}

Value filter_first(const Value& value, const Arguments& arguments) {
  const Bound none("first", arguments, {});
  Values items = iterate(value);
  return items.empty() ? Value::undefined("no first item, the sequence was empty") : items.front();
}

Value filter_last(const Value& value, const Arguments& arguments) {
  const Bound none("last", arguments, {});
  if (value.is_list() && value.list().kind == ListKind::generator) problem("a generator has no last item; add 'list'");
  Values items = iterate(value);
  return items.empty() ? Value::undefined("no last item, the sequence was empty") : items.back();
}

Value filter_float(const Value& value, const Arguments& arguments) {
  const Bound bound("float", arguments, {"default"});
  if (value.is_undefined()) problem("{}", value.undefined_message());
  if (value.is_number()) return value.number();
  if (value.is_text()) {
    if (const auto number = parse_float(value.bytes())) return *number;
  }
  return bound.get(0, 0.0);
}

Value filter_int(const Value& value, const Arguments& arguments) {
  const Bound bound("int", arguments, {"default", "base"});
  if (value.is_undefined()) problem("{}", value.undefined_message());
  if (value.is_int()) return value.integer();
  double number = std::nan("");
  if (value.is_text()) {
    if (const auto integer =
            parse_integer(value.bytes(), static_cast<int>(std::clamp<std::int64_t>(bound.integer(1, 10), -1, 37)))) {
      return *integer;
    }
    number = parse_float(value.bytes()).value_or(number);
  } else if (value.is_float()) {
    number = value.number();
  }
  if (!std::isfinite(number)) return bound.get(0, std::int64_t{0});
  if (std::abs(number) >= 9.2e18) unsupported("an integer beyond 64 bits");
  return static_cast<std::int64_t>(number);
}

Value filter_format(const Value& value, const Arguments& arguments) {
  if (!arguments.named.empty() && !arguments.positional.empty()) {
    problem("'format' takes positional or named arguments, not both");
  }
  const Text format = to_text(value);
  if (arguments.named.empty()) return percent_format(format, make_list(arguments.positional, ListKind::tuple));
  Dict dict;
  for (const auto& [name, item] : arguments.named) dict.set(Value::text(name), item);
  return percent_format(format, make_dict(std::move(dict)));
}

Value filter_indent(const Value& value, const Arguments& arguments) {
  const Bound bound("indent", arguments, {"width", "first", "blank"});
  Text indention;
  if (bound[0] != nullptr && bound[0]->is_text()) {
    indention = bound.text(0);
  } else {
    const std::int64_t width = std::max<std::int64_t>(bound.integer(0, 4), 0);
    if (width > 100000) problem("'indent' takes a width of at most 100000");
    indention.append(std::string(static_cast<std::size_t>(width), ' '));
  }
  Text text = to_text(value);
  text.append("\n");
  const bool blank = bound.flag(2, false);
  const std::vector<Text> lines = split_lines(text);
  Text out;
  if (bound.flag(1, false)) out.append(indention);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) {
      out.append("\n");
      if (blank || lines[i].size() > 0) out.append(indention);
    }
    out.append(lines[i]);
  }
  return out;
}

Value filter_items(const Value& value, const Arguments& arguments) {
  const Bound none("items", arguments, {});
  Values items;
  if (value.is_dict()) {
    for (const auto& [key, item] : value.dict().items) items.push_back(make_list({key, item}, ListKind::tuple));
  } else if (!value.is_undefined()) {
    problem("'items' takes a dictionary, not a value of type '{}'", type_name(value));
  }
  return make_list(std::move(items), ListKind::generator);
}

Value filter_join(const Value& value, const Arguments& arguments) {
  const Bound bound("join", arguments, {"d", "attribute"});
  const Text separator = bound[0] != nullptr ? to_text(*bound[0]) : Text();
  Text out;
  bool first = true;
  for (const Value& item : iterate(value)) {
    if (!first) out.append(separator);
    first = false;
    const bool whole = bound[1] == nullptr || bound[1]->is_none();
    out.append(to_text(whole ? item : at_path(item, *bound[1])));
  }
  return out;
}

Value filter_length(const Value& value, const Arguments& arguments) {
  const Bound none("length", arguments, {});
  return length(value);
}

Value filter_list(const Value& value, const Arguments& arguments) {
  const Bound none("list", arguments, {});
  return make_list(iterate(value));
}

Value filter_lower(const Value& value, const Arguments& arguments) {
  const Bound none("lower", arguments, {});
  return plain_text(value, change_case(to_text(value).bytes(), Case::lower));
}

Value filter_upper(const Value& value, const Arguments& arguments) {
  const Bound none("upper", arguments, {});
  return plain_text(value, change_case(to_text(value).bytes(), Case::upper));
}

Value filter_map(const Value& value, const Arguments& arguments) {
  Values out;
  if (arguments.positional.empty()) {
    const Bound bound("map", arguments, {"attribute", "default"}, 1);
    for (const Value& item : iterate(value)) {
      Value found = at_path(item, *bound[0]);
      if (found.is_undefined() && bound[1] != nullptr) found = *bound[1];
      out.push_back(std::move(found));
    }
    return make_list(std::move(out), ListKind::generator);
  }
  const Value& name = arguments.positional[0];
  if (!name.is_text()) problem("'map' takes the name of a filter");
  if (!is_filter(name.bytes())) unsupported("the filter '{}' is not supported", name.bytes());
  const Arguments rest{Values(arguments.positional.begin() + 1, arguments.positional.end()), arguments.named};
  for (const Value& item : iterate(value)) out.push_back(apply_filter(name.bytes(), item, rest));
  return make_list(std::move(out), ListKind::generator);
}

Value extreme(const char* name, const Value& value, const Arguments& arguments, bool largest) {
  const Bound bound(name, arguments, {"case_sensitive", "attribute"});
  std::optional<Value> best, best_key;
  for (const Value& item : iterate(value)) {
    Value key = sort_key(item, bound[1], bound.flag(0, false));
    if (best && !(largest ? less(*best_key, key) : less(key, *best_key))) continue;
    best = item;
    best_key = std::move(key);
  }
  return best ? *best : Value::undefined("no item, the sequence was empty");
}

Value filter_max(const Value& value, const Arguments& arguments) {
  return extreme("max", value, arguments, true);
}
Value filter_min(const Value& value, const Arguments& arguments) {
  return extreme("min", value, arguments, false);
}

Value filter_replace(const Value& value, const Arguments& arguments) {
  const Bound bound("replace", arguments, {"old", "new", "count"}, 2);
  const std::int64_t count = bound[2] != nullptr && bound[2]->is_none() ? -1 : bound.integer(2, -1);
  return replace(to_text(value), to_text(*bound[0]), to_text(*bound[1]), count);
}

Value filter_reverse(const Value& value, const Arguments& arguments) {
  const Bound none("reverse", arguments, {});
  if (value.is_text()) return slice(value, {}, {}, std::int64_t{-1});
  Values items = iterate(value);
  std::reverse(items.begin(), items.end());
  return make_list(std::move(items), ListKind::generator);
}

// Python's round(value, precision): the nearest decimal to the exact binary value, ties to even.
double round_decimal(double value, std::int64_t precision) {
  if (!std::isfinite(value) || precision > 330) return value;
  if (precision < -310) return std::copysign(0.0, value);
  if (precision >= 0) return std::strtod(fmt::format("{:.{}f}", value, precision).c_str(), nullptr);
  const long double unit = std::pow(10.0L, static_cast<long double>(-precision));
  return static_cast<double>(std::nearbyint(static_cast<long double>(value) / unit) * unit);
}

Value filter_round(const Value& value, const Arguments& arguments) {
  const Bound bound("round", arguments, {"precision", "method"});
  const std::int64_t precision = bound.integer(0, 0);
  const std::string method = bound[1] != nullptr ? bound.text(1).bytes() : "common";
  if (method != "common" && method != "ceil" && method != "floor") {
    problem("'round' takes the method 'common', 'ceil' or 'floor'");
  }
  if (value.is_undefined()) problem("{}", value.undefined_message());
  if (!value.is_number()) problem("'round' takes a number, not a value of type '{}'", type_name(value));
  if (method == "common") {
    if (value.is_int() && precision >= 0) return value.integer();
    const double rounded = round_decimal(value.number(), precision);
    if (value.is_int()) return static_cast<std::int64_t>(rounded);
    return rounded;
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = value.number() * scale;
  return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale;
}

Value filter_same(const Value& value, const Arguments& arguments) {
  const Bound none("string", arguments, {});
  return to_text(value);
}

// select, reject, selectattr, rejectattr.
Value pick(const char* name, const Value& value, const Arguments& arguments, bool keep, bool by_attribute) {
  const std::size_t first = by_attribute ? 1 : 0;
  if (arguments.positional.size() < first) problem("'{}' needs the name of an attribute", name);
  std::string test;
  Arguments rest;
  if (arguments.positional.size() > first) {
    const Value& given = arguments.positional[first];
    if (!given.is_text()) problem("'{}' takes the name of a test", name);
    test = given.bytes();
    if (!is_test(test)) unsupported("the test '{}' is not supported", test);
    rest.positional.assign(arguments.positional.begin() + static_cast<std::ptrdiff_t>(first) + 1,
                           arguments.positional.end());
    rest.named = arguments.named;
  }
  Values out;
  for (const Value& item : iterate(value)) {
    const Value subject = by_attribute ? at_path(item, arguments.positional[0]) : item;
    const bool holds = test.empty() ? truth(subject) : apply_test(test, subject, rest);
    if (holds == keep) out.push_back(item);
  }
  return make_list(std::move(out), ListKind::generator);
}

Value filter_select(const Value& v, const Arguments& a) {
  return pick("select", v, a, true, false);
}
Value filter_reject(const Value& v, const Arguments& a) {
  return pick("reject", v, a, false, false);
}
Value filter_selectattr(const Value& v, const Arguments& a) {
  return pick("selectattr", v, a, true, true);
}
Value filter_rejectattr(const Value& v, const Arguments& a) {
  return pick("rejectattr", v, a, false, true);
}

Value filter_sort(const Value& value, const Arguments& arguments) {
  const Bound bound("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  Values items = iterate(value);
  sort_values(items, bound.flag(0, false), bound.flag(1, false), bound[2]);
  return make_list(std::move(items));
}

Value filter_sum(const Value& value, const Arguments& arguments) {
  const Bound bound("sum", arguments, {"attribute", "start"});
  Value total = bound.get(1, std::int64_t{0});
  if (total.is_text()) problem("'sum' cannot add strings; use 'join'");
  for (const Value& item : iterate(value)) {
    const bool whole = bound[0] == nullptr || bound[0]->is_none();
    total = binary("+", total, whole ? item : at_path(item, *bound[0]));
  }
  return total;
}

// Every word begins with a capital and goes on in lower case; words begin after white space and ( { [ < and -.
Value filter_title(const Value& value, const Arguments& arguments) {
  const Bound none("title", arguments, {});
  const std::string text = to_text(value).bytes();
  std::string out, word;
  const auto flush = [&] {
    if (word.empty()) return;
    const std::size_t first = decode_at(word, 0).size;
    out += change_case(word.substr(0, first), Case::upper) + change_case(word.substr(first), Case::lower);
    word.clear();
  };
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = decode_at(text, at);
    const bool separator =
        is_space(point.value) ||
        (point.value > 0 && point.value < 0x80 && std::string_view("-({[<").find(text[at]) != std::string_view::npos);
    if (separator) {
      flush();
      out.append(text, at, point.size);
    } else {
      word.append(text, at, point.size);
    }
    at += point.size;
  }
  flush();
  return plain_text(value, std::move(out));
}

Value filter_tojson(const Value& value, const Arguments& arguments) {
  const Bound bound("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = bound.flag(0, false);
  style.sort_keys = bound.flag(3, false);
  if (bound[1] != nullptr && !bound[1]->is_none()) {
    if (bound[1]->is_text()) {
      style.indent = bound[1]->bytes();
    } else {
      const std::int64_t width = bound.integer(1, 0);
      if (width > 1000) problem("'tojson' takes an indent of at most 1000");
      style.indent = std::string(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' ');
    }
    style.item_separator = ",";
  }
  if (bound[2] != nullptr && !bound[2]->is_none()) {
    const Values parts = iterate(*bound[2]);
    if (parts.size() != 2 || !parts[0].is_text() || !parts[1].is_text()) {
      problem("'tojson' takes two strings as separators");
    }
    style.item_separator = parts[0].bytes();
    style.key_separator = parts[1].bytes();
  }
  return plain_text(value, to_json(value, style));
}

Value filter_trim(const Value& value, const Arguments& arguments) {
  const Bound bound("trim", arguments, {"chars"});
  const bool given = bound[0] != nullptr && !bound[0]->is_none();
  return strip(to_text(value), given ? &bound.text(0).bytes() : nullptr, true, true);
}

Value filter_unique(const Value& value, const Arguments& arguments) {
  const Bound bound("unique", arguments, {"case_sensitive", "attribute"});
  std::unordered_map<std::string, bool> seen;
  Values out;
  for (const Value& item : iterate(value)) {
    if (seen.emplace(hash_key(sort_key(item, bound[1], bound.flag(0, false))), true).second) out.push_back(item);
  }
  return make_list(std::move(out), ListKind::generator);
}

const std::map<std::string_view, Filter>& filter_table() {
  static const std::map<std::string_view, Filter> table = {
      {"abs", filter_abs},         {"capitalize", filter_capitalize},
      {"count", filter_length},    {"d", filter_default},
      {"default", filter_default}, {"dictsort", filter_dictsort},
      {"first", filter_first},     {"float", filter_float},
      {"format", filter_format},   {"indent", filter_indent},
      {"int", filter_int},         {"items", filter_items},
      {"join", filter_join},       {"last", filter_last},
      {"length", filter_length},   {"list", filter_list},
      {"lower", filter_lower},     {"map", filter_map},
      {"max", filter_max},         {"min", filter_min},
      {"reject", filter_reject},   {"rejectattr", filter_rejectattr},
      {"replace", filter_replace}, {"reverse", filter_reverse},
      {"round", filter_round},     {"safe", filter_same},
      {"select", filter_select},   {"selectattr", filter_selectattr},
      {"sort", filter_sort},       {"string", filter_same},
      {"sum", filter_sum},         {"title", filter_title},
      {"tojson", filter_tojson},   {"trim", filter_trim},
      {"unique", filter_unique},   {"upper", filter_upper},
  };
  return table;
}

std::string_view comparison_of(std::string_view test) {
  static const std::map<std::string_view, std::string_view> table = {
      {"==", "=="},      {"eq", "=="}, {"equalto", "=="}, {"!=", "!="}, {"ne", "!="},         {">", ">"},
      {"gt", ">"},       {">=", ">="}, {"ge", ">="},      {"<", "<"},   {"greaterthan", ">"}, {"lt", "<"},
      {"lessthan", "<"}, {"<=", "<="}, {"le", "<="},      {"in", "in"}};
  const auto found = table.find(test);
  return found == table.end() ? std::string_view() : found->second;
}

bool same_object(const Value& a, const Value& b) {
  if (a.storage().index() != b.storage().index()) return false;
  if (a.is_list()) return &a.list() == &b.list();
  if (a.is_dict()) return &a.dict() == &b.dict();
  return equal(a, b);
}

std::int64_t test_integer(std::string_view name, const Value& value) {
  if (value.is_undefined()) problem("{}", value.undefined_message());
  if (!value.is_int()) problem("the test '{}' takes integers, not a value of type '{}'", name, type_name(value));
  return value.integer();
}

using Test = bool (*)(const Value&);

bool is_iterable(const Value& v) {
  return v.is_text() || v.is_list() || v.is_dict() || v.is_undefined() || v.holds<std::shared_ptr<const Loop>>();
}

bool is_sequence(const Value& v) {
  if (v.is_list()) {
    const ListKind kind = v.list().kind;
    return kind == ListKind::list || kind == ListKind::tuple || kind == ListKind::range;
  }
  return v.is_text() || v.is_dict() || v.is_undefined();
}

bool is_callable(const Value& v) {
  return v.holds<Function>() || v.holds<std::shared_ptr<const Macro>>() || v.holds<std::shared_ptr<const Method>>() ||
         v.holds<std::shared_ptr<const Loop>>() || v.is_undefined();
}

bool is_cased_as(const Value& v, bool upper) {
  const Method method{Value(to_text(v)), upper ? "isupper" : "islower"};
  return truth(call_method(method, {}));
}

const std::map<std::string_view, Test>& test_table() {
  static const std::map<std::string_view, Test> table = {
      {"defined", [](const Value& v) { return !v.is_undefined(); }},
      {"undefined", [](const Value& v) { return v.is_undefined(); }},
      {"none", [](const Value& v) { return v.is_none(); }},
      {"string", [](const Value& v) { return v.is_text(); }},
      {"mapping", [](const Value& v) { return v.is_dict(); }},
      {"iterable", is_iterable},
      {"sequence", is_sequence},
      {"number", [](const Value& v) { return v.is_number(); }},
      {"integer", [](const Value& v) { return v.is_int() && !v.is_bool(); }},
      {"float", [](const Value& v) { return v.is_float(); }},
      {"boolean", [](const Value& v) { return v.is_bool(); }},
      {"true", [](const Value& v) { return v.is_bool() && v.integer() == 1; }},
      {"false", [](const Value& v) { return v.is_bool() && v.integer() == 0; }},
      {"callable", is_callable},
      {"odd", [](const Value& v) { return test_integer("odd", v) % 2 != 0; }},
      {"even", [](const Value& v) { return test_integer("even", v) % 2 == 0; }},
      {"upper", [](const Value& v) { return is_cased_as(v, true); }},
      {"lower", [](const Value& v) { return is_cased_as(v, false); }},
      {"filter", [](const Value& v) { return v.is_text() && is_filter(v.bytes()); }},
      {"test", [](const Value& v) { return v.is_text() && is_test(v.bytes()); }},
  };
  return table;
}

}  // namespace

bool is_filter(std::string_view name) {
  return filter_table().contains(name);
}

Value apply_filter(std::string_view name, const Value& subject, const Arguments& arguments) {
  return filter_table().at(name)(subject, arguments);
}

bool is_test(std::string_view name) {
  return test_table().contains(name) || !comparison_of(name).empty() || name == "sameas" || name == "divisibleby";
}

bool apply_test(std::string_view name, const Value& subject, const Arguments& arguments) {
  if (const std::string_view op = comparison_of(name); !op.empty()) {
    return compare(op, subject, *Bound(name, arguments, {"other"}, 1)[0]);
  }
  if (name == "sameas") return same_object(subject, *Bound(name, arguments, {"other"}, 1)[0]);
  if (name == "divisibleby") {
    const std::int64_t by = Bound(name, arguments, {"num"}, 1).integer(0, 1);
    return test_integer("odd", binary("%", test_integer(name, subject), by)) == 0;
  }
  const Bound none(name, arguments, {});
  return test_table().at(name)(subject);
}

}  // namespace halftone::jinja
