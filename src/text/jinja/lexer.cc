#include "text/jinja/lexer.h"

#include <algorithm>

#include "text/jinja/unicode.h"

namespace halftone::jinja {

void fail_at(ErrorKind kind, Position where, std::string_view message) {
  fail(kind, "chat template, line {}, column {}: {}", where.line, where.column, message);
}

namespace {

// Line ends become "\n", and one at the very end of the template is dropped.
std::string normalize(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      out += '\n';
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool is_digit_char(char c) {
  return c >= '0' && c <= '9';
}

int hex_value(char c) {
  if (is_digit_char(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) root();
    add(TokenKind::end, "");
    return std::move(tokens_);
  }

 private:
  bool starts(std::string_view what, std::size_t at) const { return source_.compare(at, what.size(), what) == 0; }
  char char_at(std::size_t at) const { return at < source_.size() ? source_[at] : '\0'; }

  // Where `at` is; positions are asked for in rising order.
  Position position(std::size_t at) {
    for (; counted_ < at; ++counted_) {
      if (source_[counted_] == '\n') {
        ++here_.line;
        here_.column = 1;
      } else if ((static_cast<unsigned char>(source_[counted_]) & 0xC0) != 0x80) {
        ++here_.column;
      }
    }
    return here_;
  }

  void add(TokenKind kind, std::string text) {
    const std::size_t at = std::min(begin_, source_.size());
    tokens_.push_back({kind, std::move(text), position(at)});
  }

  [[noreturn]] void error(ErrorKind kind, std::size_t at, std::string_view message) {
    counted_ = 0;  // `at` may lie before what was counted last
    here_ = {};
    fail_at(kind, position(at), message);
  }
  [[noreturn]] void syntax_error(std::size_t at, std::string_view message) { error(ErrorKind::bad_input, at, message); }

  std::size_t skip_space(std::size_t at) const {
    while (at < source_.size()) {
      const CodePoint point = decode_at(source_, at);
      if (!is_space(point.value)) break;
      at += point.size;
    }
    return at;
  }

  std::size_t rstrip(std::size_t begin, std::size_t end) const {
    while (end > begin) {
      const CodePoint point = decode_before(source_, end);
      if (!is_space(point.value)) break;
      end -= point.size;
    }
    return end;
  }

  // The end of the text before a tag, after lstrip_blocks or a sign has taken away white space.
  std::size_t text_end(std::size_t begin, std::size_t tag, char sign, bool variable) const {
    if (sign == '-') return rstrip(begin, tag);
    if (sign == '+' || variable) return tag;
    const std::size_t newline = tag > begin ? source_.rfind('\n', tag - 1) : std::string::npos;
    const bool newline_inside = newline != std::string::npos && newline >= begin;
    const std::size_t line = newline_inside ? newline + 1 : begin;
    const bool line_start = newline_inside || begin == 0 || source_[begin - 1] == '\n';
    return line_start && skip_space(line) >= tag ? line : tag;
  }

  void add_data(std::size_t begin, std::size_t end) {
    if (begin >= end) return;
    begin_ = begin;
    add(TokenKind::data, source_.substr(begin, end - begin));
  }

  void root() {
    std::size_t tag = at_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos) {
        add_data(at_, source_.size());
        at_ = source_.size();
        return;
      }
      const char next = char_at(tag + 1);
      if (next == '{' || next == '%' || next == '#') break;
    }
    const char what = source_[tag + 1];
    char sign = char_at(tag + 2);
    if (sign != '-' && sign != '+') sign = '\0';
    add_data(at_, text_end(at_, tag, sign, what == '{'));
    const std::size_t inside = tag + (sign != '\0' ? 3 : 2);
    if (what == '#') return comment(tag, inside);
    if (what == '%' && raw(tag, inside)) return;
    begin_ = tag;
    add(what == '{' ? TokenKind::variable_begin : TokenKind::block_begin, "");
    at_ = inside;
    expression(what == '{', tag);
  }

  // After the closing characters of a block or comment: trim_blocks takes one line end.
  std::size_t after_block(std::size_t end, char sign) const {
    if (sign == '-') return skip_space(end);
    if (sign != '+' && char_at(end) == '\n') return end + 1;
    return end;
  }

  void comment(std::size_t tag, std::size_t inside) {
    const std::size_t close = source_.find("#}", inside);
    if (close == std::string::npos) syntax_error(tag, "a comment is not closed");
    const char before = close > inside ? source_[close - 1] : '\0';
    at_ = after_block(close + 2, before);
  }

  // "{% raw %}": everything up to "{% endraw %}" is text. False if the tag is another one.
  bool raw(std::size_t tag, std::size_t inside) {
    std::size_t at = skip_space(inside);
    if (!starts("raw", at)) return false;
    at = skip_space(at + 3);
    const bool strip = char_at(at) == '-';
    if (strip) ++at;
    if (!starts("%}", at)) return false;
    std::size_t body = at + 2;
    if (strip) body = skip_space(body);
    for (std::size_t end = source_.find("{%", body); end != std::string::npos; end = source_.find("{%", end + 1)) {
      std::size_t p = end + 2;
      char sign = char_at(p);
      if (sign == '-' || sign == '+') {
        ++p;
      } else {
        sign = '\0';
      }
      p = skip_space(p);
      if (!starts("endraw", p)) continue;
      p = skip_space(p + 6);
      const char close_sign = char_at(p);
      if (close_sign == '-' || close_sign == '+') ++p;
      if (!starts("%}", p)) continue;
      add_data(body, text_end(body, end, sign, false));
      at_ = after_block(p + 2, close_sign);
      return true;
    }
    syntax_error(tag, "a raw block is not closed");
  }

  bool tag_end(bool variable) {
    const std::string_view close = variable ? "}}" : "%}";
    if (starts(close, at_)) {
      add(variable ? TokenKind::variable_end : TokenKind::block_end, "");
      at_ = variable ? at_ + 2 : after_block(at_ + 2, '\0');
      return true;
    }
    const char sign = source_[at_];
    if ((sign == '-' || (sign == '+' && !variable)) && starts(close, at_ + 1)) {
      add(variable ? TokenKind::variable_end : TokenKind::block_end, "");
      at_ = after_block(at_ + 3, sign);
      return true;
    }
    return false;
  }

  void expression(bool variable, std::size_t tag) {
    std::string open;
    for (;;) {
      at_ = skip_space(at_);
      begin_ = at_;
      if (at_ >= source_.size()) syntax_error(tag, "a tag is not closed");
      if (open.empty() && tag_end(variable)) return;
      const char c = source_[at_];
      if (is_digit_char(c)) {
        number();
      } else if (c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                 static_cast<unsigned char>(c) >= 0x80) {
        name();
      } else if (c == '\'' || c == '"') {
        string(c);
      } else {
        symbol(open);
      }
    }
  }

  std::size_t digits(std::size_t at) const {
    while (is_digit_char(char_at(at)) || (char_at(at) == '_' && is_digit_char(char_at(at + 1)))) ++at;
    return at;
  }

  void number() {
    std::size_t end = at_;
    bool real = false;
    const char second = static_cast<char>(char_at(at_ + 1) | 0x20);
    if (source_[at_] == '0' && (second == 'x' || second == 'b' || second == 'o')) {
      end = at_ + 2;
      const int base = second == 'x' ? 16 : second == 'o' ? 8 : 2;
      const auto fits = [&](char c) { return hex_value(c) >= 0 && hex_value(c) < base; };
      while (fits(char_at(end)) || (char_at(end) == '_' && fits(char_at(end + 1)))) ++end;
      if (end == at_ + 2) syntax_error(at_, "a number has no digits");
    } else {
      end = digits(at_);
      const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';  // the 0 of "x.0" is an attribute, not a fraction
      if (!after_dot && char_at(end) == '.' && is_digit_char(char_at(end + 1))) {
        real = true;
        end = digits(end + 1);
      }
      std::size_t exponent = end;
      if (!after_dot && (char_at(exponent) | 0x20) == 'e') {
        ++exponent;
        if (char_at(exponent) == '+' || char_at(exponent) == '-') ++exponent;
        if (is_digit_char(char_at(exponent))) {
          real = true;
          end = digits(exponent);
        }
      }
    }
    std::string text = source_.substr(at_, end - at_);
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    add(real ? TokenKind::real : TokenKind::integer, std::move(text));
    at_ = end;
  }

  void name() {
    std::size_t end = at_;
    while (end < source_.size()) {
      const CodePoint point = decode_at(source_, end);
      if (point.value != '_' && !is_alpha(point.value) && !is_digit(point.value)) break;
      end += point.size;
    }
    if (end == at_) syntax_error(at_, "unexpected character");
    add(TokenKind::name, source_.substr(at_, end - at_));
    at_ = end;
  }

  void string(char mark) {
    std::size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != mark) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) syntax_error(at_, "a string is not closed");
    add(TokenKind::string, unescape(at_ + 1, end));
    at_ = end + 1;
  }

  // Python's escapes.
  std::string unescape(std::size_t at, std::size_t end) {
    std::string out;
    while (at < end) {
      if (source_[at] != '\\') {
        out += source_[at++];
        continue;
      }
      const char c = char_at(at + 1);
      const std::size_t start = at;
      at += 2;
      switch (c) {
        case 'n':
          out += '\n';
          break;
        case 't':
          out += '\t';
          break;
        case 'r':
          out += '\r';
          break;
        case 'a':
          out += '\a';
          break;
        case 'b':
          out += '\b';
          break;
        case 'f':
          out += '\f';
          break;
        case 'v':
          out += '\v';
          break;
        case '\\':
        case '\'':
        case '"':
          out += c;
          break;
        case '\n':
          break;
        case 'x':
          at = hex_escape(out, start, at, end, 2);
          break;
        case 'u':
          at = hex_escape(out, start, at, end, 4);
          break;
        case 'U':
          at = hex_escape(out, start, at, end, 8);
          break;
        case 'N':
          error(ErrorKind::unsupported, start, "a character named by \\N{...} in a string");
        default:
          if (c >= '0' && c <= '7') {
            std::int32_t value = c - '0';
            for (int i = 0; i < 2 && at < end && source_[at] >= '0' && source_[at] <= '7'; ++i) {
              value = value * 8 + (source_[at++] - '0');
            }
            append_utf8(out, value);
          } else {
            out += '\\';
            --at;
          }
      }
    }
    return out;
  }

  std::size_t hex_escape(std::string& out, std::size_t start, std::size_t at, std::size_t end, int count) {
    std::int64_t value = 0;
    for (int i = 0; i < count; ++i, ++at) {
      const int digit = at < end ? hex_value(source_[at]) : -1;
      if (digit < 0) syntax_error(start, "an escape in a string has too few digits");
      value = value * 16 + digit;
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
      syntax_error(start, "an escape in a string is not a Unicode character");
    }
    append_utf8(out, static_cast<std::int32_t>(value));
    return at;
  }

  void symbol(std::string& open) {
    static constexpr std::string_view kSymbols[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                    "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                    ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    for (const std::string_view symbol : kSymbols) {
      if (!starts(symbol, at_)) continue;
      const char c = symbol[0];
      if (c == '(') open += ')';
      if (c == '[') open += ']';
      if (c == '{') open += '}';
      if (c == ')' || c == ']' || c == '}') {
        if (open.empty()) syntax_error(at_, std::string("unexpected '") + c + "'");
        if (open.back() != c) {
          syntax_error(at_, std::string("unexpected '") + c + "', expected '" + open.back() + "'");
        }
        open.pop_back();
      }
      add(TokenKind::symbol, std::string(symbol));
      at_ += symbol.size();
      return;
    }
    syntax_error(at_, "unexpected character '" + source_.substr(at_, decode_at(source_, at_).size) + "'");
  }

  std::string source_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0, begin_ = 0, counted_ = 0;
  Position here_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  return Lexer(normalize(source)).run();
}

}  // namespace halftone::jinja
