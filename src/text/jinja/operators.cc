#include "text/jinja/operators.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "text/jinja/unicode.h"

namespace halftone::jinja {

namespace {

[[noreturn]] void overflow() {
  unsupported("an integer beyond 64 bits");
}

[[noreturn]] void no_operation(std::string_view op, const Value& a, const Value& b) {
  if (a.is_undefined()) problem("{}", a.undefined_message());
  if (b.is_undefined()) problem("{}", b.undefined_message());
  problem("'{}' cannot be applied to values of types '{}' and '{}'", op, type_name(a), type_name(b));
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  if (b == -1) {
    if (a == INT64_MIN) overflow();
    return -a;
  }
  const std::int64_t quotient = a / b;
  return a % b != 0 && ((a < 0) != (b < 0)) ? quotient - 1 : quotient;
}

std::int64_t floor_modulo(std::int64_t a, std::int64_t b) {
  if (b == -1) return 0;
  const std::int64_t rest = a % b;
  return rest != 0 && ((rest < 0) != (b < 0)) ? rest + b : rest;
}

double floor_modulo(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest != 0) {
    if ((b < 0) != (rest < 0)) rest += b;
  } else {
    rest = std::copysign(0.0, b);
  }
  return rest;
}

double floor_divide(double a, double b) {
  const double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && ((b < 0) != (rest < 0))) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

Value integer_power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) problem("zero cannot be raised to a negative power");
    return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  }
  std::int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) overflow();
  }
  return result;
}

Value integer_operation(std::string_view op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (op == "+") {
    if (__builtin_add_overflow(a, b, &result)) overflow();
    return result;
  }
  if (op == "-") {
    if (__builtin_sub_overflow(a, b, &result)) overflow();
    return result;
  }
  if (op == "*") {
    if (__builtin_mul_overflow(a, b, &result)) overflow();
    return result;
  }
  if (op == "**") return integer_power(a, b);
  if (b == 0) problem("division by zero");
  if (op == "/") return static_cast<double>(a) / static_cast<double>(b);
  if (op == "//") return floor_divide(a, b);
  return floor_modulo(a, b);
}

Value float_operation(std::string_view op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "**") {
    if (a == 0 && b < 0) problem("zero cannot be raised to a negative power");
    if (a < 0 && b != std::floor(b)) unsupported("a complex number");
    const double result = std::pow(a, b);
    if (std::isinf(result) && !std::isinf(a) && !std::isinf(b)) problem("the result of '**' is too large");
    return result;
  }
  if (b == 0) problem("division by zero");
  if (op == "/") return a / b;
  if (op == "//") return floor_divide(a, b);
  return floor_modulo(a, b);
}

bool plain_sequence(const Value& value) {
  return value.is_list() && (value.list().kind == ListKind::list || value.list().kind == ListKind::tuple);
}

Value repeat(const Value& value, std::int64_t times) {
  const std::int64_t size =
      value.is_text() ? static_cast<std::int64_t>(value.text().size()) : std::max<std::int64_t>(value.list().weight, 1);
  const std::int64_t limit = value.is_text() ? static_cast<std::int64_t>(kMaxTextBytes) : kMaxItems;
  if (times > 0 && size > limit / times) {
    if (size != 0) problem("a repetition grows beyond the limit of {}", limit);
  }
  if (value.is_text()) {
    Text out;
    if (size > 0) {
      for (std::int64_t i = 0; i < times; ++i) out.append(value.text());
    }
    return out;
  }
  Values items;
  for (std::int64_t i = 0; i < times; ++i) {
    items.insert(items.end(), value.list().items.begin(), value.list().items.end());
  }
  return make_list(std::move(items), value.list().kind);
}

}  // namespace

Value binary(std::string_view op, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_int() && b.is_int()) return integer_operation(op, a.integer(), b.integer());
    return float_operation(op, a.number(), b.number());
  }
  if (op == "+") {
    if (a.is_text() && b.is_text()) {
      Text out = a.text();
      out.append(b.text());
      return out;
    }
    if (plain_sequence(a) && plain_sequence(b) && a.list().kind == b.list().kind) {
      Values items = a.list().items;
      items.insert(items.end(), b.list().items.begin(), b.list().items.end());
      return make_list(std::move(items), a.list().kind);
    }
  }
  if (op == "*") {
    if ((a.is_text() || plain_sequence(a)) && b.is_int()) return repeat(a, b.integer());
    if ((b.is_text() || plain_sequence(b)) && a.is_int()) return repeat(b, a.integer());
  }
  if (op == "%" && a.is_text()) return percent_format(a.text(), b);
  no_operation(op, a, b);
}

Value negate(const Value& value, bool negative) {
  if (value.is_float()) return negative ? -value.number() : value.number();
  if (value.is_int()) {
    if (!negative) return value.integer();
    if (value.integer() == INT64_MIN) overflow();
    return -value.integer();
  }
  if (value.is_undefined()) problem("{}", value.undefined_message());
  problem("a value of type '{}' has no sign", type_name(value));
}

bool contains(const Value& needle, const Value& where) {
  if (where.is_text()) {
    if (needle.is_undefined()) problem("{}", needle.undefined_message());
    if (!needle.is_text())
      problem("'in' looks for a string in a string, not for a value of type '{}'", type_name(needle));
    return find_bytes(where.bytes(), needle.bytes()) != std::string::npos;
  }
  if (where.is_dict()) return where.dict().find(needle) != nullptr;
  if (where.is_list() || where.is_undefined()) {
    for (const Value& item : iterate(where)) {
      if (equal(item, needle)) return true;
    }
    return false;
  }
  problem("'in' cannot look into a value of type '{}'", type_name(where));
}

bool compare(std::string_view op, const Value& a, const Value& b) {
  if (op == "==") return equal(a, b);
  if (op == "!=") return !equal(a, b);
  if (op == "in") return contains(a, b);
  if (op == "not in") return !contains(a, b);
  if (op == "<") return less(a, b);
  if (op == ">") return less(b, a);
  const bool nan = (a.is_float() && std::isnan(a.number())) || (b.is_float() && std::isnan(b.number()));
  if (nan && a.is_number() && b.is_number()) return false;
  return op == "<=" ? !less(b, a) : !less(a, b);
}

namespace {

std::optional<std::int64_t> slice_bound(const Value& value) {
  if (value.is_none()) return std::nullopt;
  if (value.is_undefined()) problem("{}", value.undefined_message());
  if (!value.is_int()) problem("a slice takes integers or none, not a value of type '{}'", type_name(value));
  return value.integer();
}

// The positions that value[start:stop:step] takes, as slice.indices(size) gives them.
std::vector<std::int64_t> slice_positions(std::int64_t size, std::optional<std::int64_t> start,
                                          std::optional<std::int64_t> stop, std::int64_t step) {
  const std::int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
  const auto bound = [&](std::optional<std::int64_t> given, std::int64_t otherwise) {
    if (!given) return otherwise;
    std::int64_t at = *given;
    if (at < 0) at = at < -size ? low : at + size;
    return std::clamp(at, low, high);
  };
  const std::int64_t from = bound(start, step > 0 ? low : high), to = bound(stop, step > 0 ? high : low);
  std::vector<std::int64_t> out;
  if (step > 0) {
    for (std::int64_t i = from; i<to; i = step> to - i ? to : i + step) out.push_back(i);
  } else {
    for (std::int64_t i = from; i > to; i = step < to - i ? to : i + step) out.push_back(i);
  }
  return out;
}

// Where each character begins, and the end.
std::vector<std::size_t> character_starts(std::string_view text) {
  std::vector<std::size_t> starts;
  for (std::size_t at = 0; at < text.size(); at += decode_at(text, at).size) starts.push_back(at);
  starts.push_back(text.size());
  return starts;
}

}  // namespace

Value slice(const Value& value, const Value& start, const Value& stop, const Value& step) {
  const auto from = slice_bound(start), to = slice_bound(stop), by = slice_bound(step);
  if (by && *by == 0) problem("the step of a slice is zero");
  if (value.is_text()) {
    const Text& text = value.text();
    const auto starts = character_starts(text.bytes());
    const auto positions = slice_positions(static_cast<std::int64_t>(starts.size()) - 1, from, to, by.value_or(1));
    if (by.value_or(1) == 1) {
      if (positions.empty()) return Text();
      return text.slice(starts[static_cast<std::size_t>(positions.front())],
                        starts[static_cast<std::size_t>(positions.back()) + 1]);
    }
    Text out;
    for (const std::int64_t at : positions) {
      out.append(text, starts[static_cast<std::size_t>(at)], starts[static_cast<std::size_t>(at) + 1]);
    }
    return out;
  }
  if (value.is_list() && (plain_sequence(value) || value.list().kind == ListKind::range)) {
    const Values& items = value.list().items;
    Values out;
    for (const std::int64_t at : slice_positions(static_cast<std::int64_t>(items.size()), from, to, by.value_or(1))) {
      out.push_back(items[static_cast<std::size_t>(at)]);
    }
    return make_list(std::move(out), value.list().kind);
  }
  if (value.is_undefined()) problem("{}", value.undefined_message());
  problem("a value of type '{}' cannot be sliced", type_name(value));
}

namespace {

struct Conversion {
  bool left = false, zero = false, sign = false, space = false, alternate = false;
  int width = 0, precision = -1;
  char type = 's';
};

Text pad(Text text, const Conversion& conversion) {
  const std::int64_t missing = conversion.width - count_code_points(text.bytes());
  if (missing <= 0) return text;
  const std::string spaces(static_cast<std::size_t>(missing), ' ');
  Text out;
  if (!conversion.left) out.append(spaces);
  out.append(text);
  if (conversion.left) out.append(spaces);
  return out;
}

Text format_number(const Value& value, const Conversion& conversion) {
  std::string spec = "%";
  if (conversion.left) spec += '-';
  if (conversion.zero) spec += '0';
  if (conversion.sign) spec += '+';
  if (conversion.space) spec += ' ';
  if (conversion.alternate) spec += '#';
  spec += fmt::format("{}", conversion.width);
  if (conversion.width == 0) spec.pop_back();
  if (conversion.precision >= 0) spec += fmt::format(".{}", conversion.precision);
  const bool whole = conversion.type == 'd' || conversion.type == 'i' || conversion.type == 'u';
  const bool hex = conversion.type == 'x' || conversion.type == 'X' || conversion.type == 'o';
  if (!value.is_number() || (hex && !value.is_int())) {
    problem("'%{}' takes a number, not a value of type '{}'", conversion.type, type_name(value));
  }
  if (hex && (value.integer() < 0 || conversion.alternate)) unsupported("'%{}' of this number", conversion.type);
  char buffer[2048];
  int size = 0;
  if (whole || hex) {
    const double number = value.number();
    if (value.is_float() && !(std::abs(number) < 9.0e18)) unsupported("'%d' of this number");
    const long long integer = value.is_int() ? value.integer() : static_cast<long long>(number);
    spec += "ll";
    spec += whole ? 'd' : conversion.type;
    size = std::snprintf(buffer, sizeof buffer, spec.c_str(), integer);
  } else {
    spec += conversion.type;
    size = std::snprintf(buffer, sizeof buffer, spec.c_str(), value.number());
  }
  HT_CHECK(size >= 0 && size < static_cast<int>(sizeof buffer));
  return Text(std::string(buffer, static_cast<std::size_t>(size)));
}

class PercentFormatter {
 public:
  PercentFormatter(const Text& format, const Value& arguments) : format_(format), arguments_(arguments) {}

  Text run() {
    const std::string& text = format_.bytes();
    for (at_ = 0; at_ < text.size();) {
      const std::size_t percent = std::min(text.find('%', at_), text.size());
      out_.append(format_, at_, percent);
      at_ = percent;
      if (at_ < text.size()) conversion();
    }
    const bool tuple = is_tuple();
    const bool all_used = tuple ? used_ == arguments_.list().items.size() : used_ == 1 || arguments_.is_dict();
    if (!all_used && !(arguments_.is_list() && !tuple)) problem("not all arguments were used by the format string");
    return std::move(out_);
  }

 private:
  bool is_tuple() const { return arguments_.is_list() && arguments_.list().kind == ListKind::tuple; }

  char take() {
    if (at_ >= format_.size()) problem("a format string ends in the middle of a conversion");
    return format_.bytes()[at_++];
  }
  char peek() const { return at_ < format_.size() ? format_.bytes()[at_] : '\0'; }

  const Value& next_argument() {
    if (is_tuple()) {
      if (used_ >= arguments_.list().items.size()) problem("a format string takes more arguments than it got");
      return arguments_.list().items[used_++];
    }
    if (used_++ > 0) problem("a format string takes more arguments than it got");
    return arguments_;
  }

  int number() {
    if (peek() == '*') unsupported("'*' in a format string");
    int value = 0;
    while (peek() >= '0' && peek() <= '9') {
      value = value * 10 + (take() - '0');
      if (value > 1000) unsupported("a width or precision above 1000 in a format string");
    }
    return value;
  }

  void conversion() {
    take();
    const Value* value = nullptr;
    if (peek() == '(') {
      const std::size_t close = format_.bytes().find(')', at_);
      if (close == std::string::npos) problem("a key in a format string is not closed");
      if (!arguments_.is_dict()) problem("a format string with keys takes a dictionary");
      const std::string key = format_.bytes().substr(at_ + 1, close - at_ - 1);
      value = arguments_.dict().find(std::string_view(key));
      if (value == nullptr) problem("a format string names the key '{}', which is missing", key);
      at_ = close + 1;
    }
    Conversion conversion;
    for (;; take()) {
      const char c = peek();
      if (c == '-')
        conversion.left = true;
      else if (c == '0')
        conversion.zero = true;
      else if (c == '+')
        conversion.sign = true;
      else if (c == ' ')
        conversion.space = true;
      else if (c == '#')
        conversion.alternate = true;
      else
        break;
    }
    conversion.width = number();
    if (peek() == '.') {
      take();
      conversion.precision = number();
    }
    conversion.type = take();
    if (conversion.type == '%') {
      out_.append("%");
      return;
    }
    static constexpr std::string_view kTypes = "srdiuxXoeEfFgG";
    if (kTypes.find(conversion.type) == std::string_view::npos)
      unsupported("'%{}' in a format string", conversion.type);
    if (value == nullptr) value = &next_argument();
    if (conversion.type == 's' || conversion.type == 'r') {
      Text text = conversion.type == 's' ? to_text(*value) : Text(repr(*value), carries_content(*value));
      if (conversion.precision >= 0) {
        text = slice(text, {}, static_cast<std::int64_t>(conversion.precision), {}).text();
      }
      out_.append(pad(std::move(text), conversion));
    } else {
      out_.append(format_number(*value, conversion));
    }
  }

  const Text& format_;
  const Value& arguments_;
  Text out_;
  std::size_t at_ = 0, used_ = 0;
};

}  // namespace

Text percent_format(const Text& format, const Value& arguments) {
  return PercentFormatter(format, arguments).run();
}

std::optional<std::int64_t> parse_integer(std::string_view text, int base) {
  const Text stripped = strip(Text(std::string(text)), nullptr, true, true);
  std::string digits = stripped.bytes();
  bool negative = false;
  std::size_t at = 0;
  if (at < digits.size() && (digits[at] == '-' || digits[at] == '+')) negative = digits[at++] == '-';
  digits.erase(0, at);
  const char mark = digits.size() > 2 && digits[0] == '0' ? static_cast<char>(digits[1] | 0x20) : '\0';
  const int prefix = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
  if (prefix != 0 && (base == 0 || base == prefix)) {
    digits.erase(0, 2);
    base = prefix;
    if (digits.starts_with('_')) digits.erase(0, 1);
  }
  if (base == 0) {
    base = 10;
    if (digits.size() > 1 && digits[0] == '0' && digits.find_first_not_of("0_") != std::string::npos)
      return std::nullopt;
  }
  if (base < 2 || base > 36) return std::nullopt;
  std::string clean;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (digits[i] == '_') {
      if (i == 0 || i + 1 == digits.size() || digits[i + 1] == '_') return std::nullopt;
      continue;
    }
    clean += digits[i];
  }
  if (clean.empty() || clean[0] == '-') return std::nullopt;
  if (negative) clean.insert(0, 1, '-');
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(clean.data(), clean.data() + clean.size(), value, base);
  if (end != clean.data() + clean.size()) return std::nullopt;
  if (error == std::errc::result_out_of_range) overflow();
  if (error != std::errc()) return std::nullopt;
  return value;
}

std::optional<double> parse_float(std::string_view text) {
  std::string number = strip(Text(std::string(text)), nullptr, true, true).bytes();
  if (number.starts_with('+')) {
    number.erase(0, 1);
    if (number.starts_with('-')) return std::nullopt;
  }
  const std::string lower = change_case(number, Case::lower);
  for (std::size_t i = 0; i < number.size(); ++i) {
    if (number[i] != '_') continue;
    const auto digit = [&](std::size_t at) { return at < number.size() && number[at] >= '0' && number[at] <= '9'; };
    if (i == 0 || !digit(i - 1) || !digit(i + 1)) return std::nullopt;
  }
  number.erase(std::remove(number.begin(), number.end(), '_'), number.end());
  if (number.find_first_of("(") != std::string::npos) return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (end != number.data() + number.size() || number.empty()) return std::nullopt;
  if (error == std::errc::result_out_of_range) {
    // from_chars leaves the value alone; Python gives infinity or zero.
    const bool small = lower.find("e-") != std::string::npos;
    value = small ? 0.0 : HUGE_VAL;
    return number.starts_with('-') ? -value : value;
  }
  if (error != std::errc()) return std::nullopt;
  return value;
}

}  // namespace halftone::jinja
