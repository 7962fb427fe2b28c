#include "text/jinja/parser.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <initializer_list>

#include "text/jinja/filters.h"

namespace halftone::jinja {

namespace {

constexpr int kMaxNesting = 100;    // of parentheses and blocks in the source
constexpr int kMaxTreeDepth = 300;  // of an expression; long chains of operators count too

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Body run() { return body({}); }

 private:
  const Token& current() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& take() {
    const Token& token = tokens_[at_];
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }

  static std::string describe(const Token& token) {
    switch (token.kind) {
      case TokenKind::end:
        return "the end of the template";
      case TokenKind::block_end:
        return "'%}'";
      case TokenKind::variable_end:
        return "'}}'";
      case TokenKind::string:
        return "a string";
      default:
        return "'" + token.text + "'";
    }
  }

  [[noreturn]] void syntax_error(const Token& token, const std::string& message) const {
    fail_at(ErrorKind::bad_input, token.where, message);
  }

  bool is_symbol(std::string_view text) const { return current().kind == TokenKind::symbol && current().text == text; }
  bool is_word(std::string_view text) const { return current().kind == TokenKind::name && current().text == text; }
  bool skip_symbol(std::string_view text) {
    if (!is_symbol(text)) return false;
    take();
    return true;
  }
  bool skip_word(std::string_view text) {
    if (!is_word(text)) return false;
    take();
    return true;
  }
  void expect_symbol(std::string_view text) {
    if (!skip_symbol(text)) syntax_error(current(), fmt::format("expected '{}', got {}", text, describe(current())));
  }
  void expect_word(std::string_view text) {
    if (!skip_word(text)) syntax_error(current(), fmt::format("expected '{}', got {}", text, describe(current())));
  }
  const Token& expect(TokenKind kind, std::string_view what) {
    if (current().kind != kind) syntax_error(current(), fmt::format("expected {}, got {}", what, describe(current())));
    return take();
  }
  void end_block() { expect(TokenKind::block_end, "'%}'"); }

  class Nesting {
   public:
    Nesting(Parser& parser) : parser_(parser) {
      if (++parser_.nesting_ > kMaxNesting) {
        parser_.syntax_error(parser_.current(), fmt::format("nested deeper than the limit of {}", kMaxNesting));
      }
    }
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    Parser& parser_;
  };

  // Statements up to a tag whose name is in `ends`, which is left as the current token (its "{%" is taken).
  Body body(std::initializer_list<std::string_view> ends) {
    const Nesting nesting(*this);
    Body out;
    for (;;) {
      const Token& token = current();
      if (token.kind == TokenKind::end) {
        if (ends.size() != 0) {
          syntax_error(token, fmt::format("the template ends before '{}'", *(ends.end() - 1)));
        }
        return out;
      }
      if (token.kind == TokenKind::data) {
        auto stmt = make(StmtKind::data, token);
        stmt->text = take().text;
        out.push_back(std::move(stmt));
      } else if (token.kind == TokenKind::variable_begin) {
        auto stmt = make(StmtKind::print, take());
        stmt->exprs.push_back(tuple(true));
        expect(TokenKind::variable_end, "'}}'");
        out.push_back(std::move(stmt));
      } else {
        take();
        const Token& tag = current();
        if (tag.kind != TokenKind::name) syntax_error(tag, "expected the name of a statement, got " + describe(tag));
        if (std::find(ends.begin(), ends.end(), tag.text) != ends.end()) return out;
        out.push_back(statement());
      }
    }
  }

  static std::unique_ptr<Stmt> make(StmtKind kind, const Token& token) {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->where = token.where;
    return stmt;
  }

  std::unique_ptr<Stmt> statement() {
    const Token tag = take();
    if (tag.text == "if") return if_statement(tag);
    if (tag.text == "for") return for_statement(tag);
    if (tag.text == "set") return set_statement(tag);
    if (tag.text == "macro") return macro_statement(tag);
    if (tag.text == "filter") return filter_statement(tag);
    if (tag.text == "with") return with_statement(tag);
    if (tag.text == "print") {
      auto stmt = make(StmtKind::print, tag);
      while (current().kind != TokenKind::block_end) {
        if (!stmt->exprs.empty()) expect_symbol(",");
        stmt->exprs.push_back(expression());
      }
      end_block();
      return stmt;
    }
    if (tag.text == "generation") {
      auto stmt = make(StmtKind::scope, tag);
      end_block();
      stmt->bodies.push_back(inside_own_loops({"endgeneration"}));
      take();
      end_block();
      return stmt;
    }
    if (tag.text == "break" || tag.text == "continue") {
      if (loops_ == 0) syntax_error(tag, "'" + tag.text + "' outside a loop");
      end_block();
      return make(tag.text == "break" ? StmtKind::break_ : StmtKind::continue_, tag);
    }
    if (tag.text.starts_with("end") || tag.text == "else" || tag.text == "elif") {
      syntax_error(tag, "unexpected '" + tag.text + "'");
    }
    fail_at(ErrorKind::unsupported, tag.where, "the statement '" + tag.text + "' is not supported");
  }

  // A body that break and continue cannot leave.
  Body inside_own_loops(std::initializer_list<std::string_view> ends) {
    const int outer = std::exchange(loops_, 0);
    Body out = body(ends);
    loops_ = outer;
    return out;
  }

  std::unique_ptr<Stmt> if_statement(const Token& tag) {
    auto stmt = make(StmtKind::if_, tag);
    stmt->exprs.push_back(tuple(false));
    for (;;) {
      end_block();
      stmt->bodies.push_back(body({"elif", "else", "endif"}));
      const Token word = take();
      if (word.text == "elif") {
        stmt->exprs.push_back(tuple(false));
        continue;
      }
      end_block();
      if (word.text == "else") {
        stmt->bodies.push_back(body({"endif"}));
        take();
        end_block();
      }
      return stmt;
    }
  }

  std::unique_ptr<Stmt> for_statement(const Token& tag) {
    auto stmt = make(StmtKind::for_, tag);
    stmt->target = target(false);
    expect_word("in");
    stmt->exprs.push_back(tuple(false));
    stmt->exprs.push_back(skip_word("if") ? expression() : nullptr);
    if (is_word("recursive")) fail_at(ErrorKind::unsupported, current().where, "a recursive loop is not supported");
    end_block();
    ++loops_;
    stmt->bodies.push_back(body({"else", "endfor"}));
    --loops_;
    const bool has_else = take().text == "else";
    end_block();
    if (has_else) {
      stmt->bodies.push_back(body({"endfor"}));
      take();
      end_block();
    }
    return stmt;
  }

  std::unique_ptr<Stmt> set_statement(const Token& tag) {
    auto stmt = make(StmtKind::set, tag);
    stmt->target = target(true);
    if (skip_symbol("=")) {
      stmt->exprs.push_back(tuple(true));
      end_block();
      return stmt;
    }
    stmt->kind = StmtKind::set_block;
    stmt->exprs.push_back(is_symbol("|") ? filters(nullptr) : nullptr);
    end_block();
    stmt->bodies.push_back(inside_own_loops({"endset"}));
    take();
    end_block();
    return stmt;
  }

  std::unique_ptr<Stmt> macro_statement(const Token& tag) {
    auto stmt = make(StmtKind::macro, tag);
    stmt->text = expect(TokenKind::name, "the name of the macro").text;
    expect_symbol("(");
    while (!is_symbol(")")) {
      if (!stmt->parameters.empty()) expect_symbol(",");
      if (is_symbol(")")) break;
      Parameter parameter;
      const Token name = expect(TokenKind::name, "the name of a parameter");
      parameter.name = name.text;
      if (skip_symbol("=")) {
        parameter.fallback = expression();
      } else if (!stmt->parameters.empty() && stmt->parameters.back().fallback != nullptr) {
        syntax_error(name, "a parameter without a default follows one that has a default");
      }
      stmt->parameters.push_back(std::move(parameter));
    }
    expect_symbol(")");
    end_block();
    const bool outer_varargs = std::exchange(saw_varargs_, false), outer_kwargs = std::exchange(saw_kwargs_, false);
    stmt->bodies.push_back(inside_own_loops({"endmacro"}));
    stmt->takes_varargs = std::exchange(saw_varargs_, outer_varargs);
    stmt->takes_kwargs = std::exchange(saw_kwargs_, outer_kwargs);
    take();
    end_block();
    return stmt;
  }

  std::unique_ptr<Stmt> filter_statement(const Token& tag) {
    auto stmt = make(StmtKind::filter, tag);
    stmt->exprs.push_back(filters(nullptr, true));
    end_block();
    stmt->bodies.push_back(inside_own_loops({"endfilter"}));
    take();
    end_block();
    return stmt;
  }

  std::unique_ptr<Stmt> with_statement(const Token& tag) {
    auto stmt = make(StmtKind::with, tag);
    while (current().kind != TokenKind::block_end) {
      if (!stmt->targets.empty()) expect_symbol(",");
      stmt->targets.push_back(single_target(false));
      expect_symbol("=");
      stmt->exprs.push_back(expression());
    }
    end_block();
    stmt->bodies.push_back(body({"endwith"}));
    take();
    end_block();
    return stmt;
  }

  Target single_target(bool namespaces) {
    const Nesting nesting(*this);
    Target out;
    out.where = current().where;
    if (skip_symbol("(")) {
      out = target(namespaces);
      expect_symbol(")");
      return out;
    }
    const Token& name = expect(TokenKind::name, "the name of a variable");
    static constexpr std::string_view kReserved[] = {"true", "false", "none", "True", "False", "None"};
    if (std::find(std::begin(kReserved), std::end(kReserved), name.text) != std::end(kReserved)) {
      syntax_error(name, "cannot assign to '" + name.text + "'");
    }
    out.name = name.text;
    if (namespaces && skip_symbol(".")) out.attribute = expect(TokenKind::name, "the name of an attribute").text;
    return out;
  }

  Target target(bool namespaces) {
    Target first = single_target(namespaces);
    if (!is_symbol(",")) return first;
    Target out;
    out.where = first.where;
    out.tuple = true;
    out.parts.push_back(std::move(first));
    while (skip_symbol(",")) {
      if (is_word("in") || is_symbol("=") || is_symbol(")") || current().kind == TokenKind::block_end) break;
      out.parts.push_back(single_target(namespaces));
    }
    return out;
  }

  ExprPtr finish(ExprPtr expr) const {
    int deepest = 0;
    for (const ExprPtr& part : expr->parts) {
      if (part) deepest = std::max(deepest, part->depth);
    }
    for (const auto& [name, part] : expr->named) deepest = std::max(deepest, part->depth);
    expr->depth = deepest + 1;
    if (expr->depth > kMaxTreeDepth) {
      fail_at(ErrorKind::bad_input, expr->where,
              fmt::format("an expression is longer than {} operations", kMaxTreeDepth));
    }
    return expr;
  }

  template <class... Parts>
  ExprPtr node(ExprKind kind, Position where, std::string text, Parts... parts) const {
    auto expr = std::make_unique<Expr>();
    expr->kind = kind;
    expr->where = where;
    expr->text = std::move(text);
    (expr->parts.push_back(std::move(parts)), ...);
    return finish(std::move(expr));
  }

  ExprPtr constant(Position where, Value value) const {
    ExprPtr expr = node(ExprKind::constant, where, "");
    expr->value = std::move(value);
    return expr;
  }

  bool at_tuple_end() const {
    return current().kind == TokenKind::variable_end || current().kind == TokenKind::block_end || is_symbol(")");
  }

  // One expression, or several with commas between them.
  ExprPtr tuple(bool conditional, bool parentheses = false) {
    const Position where = current().where;
    std::vector<ExprPtr> parts;
    bool comma = false;
    for (;;) {
      if (!parts.empty()) expect_symbol(",");
      if (at_tuple_end()) break;
      parts.push_back(conditional ? expression() : or_expression());
      if (!is_symbol(",")) break;
      comma = true;
    }
    if (!comma) {
      if (!parts.empty()) return std::move(parts[0]);
      if (!parentheses) syntax_error(current(), "expected an expression, got " + describe(current()));
    }
    ExprPtr out = node(ExprKind::tuple, where, "");
    out->parts = std::move(parts);
    return finish(std::move(out));
  }

  ExprPtr expression() {
    const Nesting nesting(*this);
    ExprPtr out = or_expression();
    while (is_word("if")) {
      const Position where = take().where;
      ExprPtr condition = or_expression();
      ExprPtr other = skip_word("else") ? expression() : nullptr;
      out = node(ExprKind::conditional, where, "", std::move(condition), std::move(out), std::move(other));
    }
    return out;
  }

  ExprPtr or_expression() {
    ExprPtr left = and_expression();
    while (is_word("or")) {
      const Position where = take().where;
      left = node(ExprKind::or_, where, "", std::move(left), and_expression());
    }
    return left;
  }

  ExprPtr and_expression() {
    ExprPtr left = not_expression();
    while (is_word("and")) {
      const Position where = take().where;
      left = node(ExprKind::and_, where, "", std::move(left), not_expression());
    }
    return left;
  }

  ExprPtr not_expression() {
    if (!is_word("not")) return comparison();
    const Nesting nesting(*this);
    const Position where = take().where;
    return node(ExprKind::not_, where, "", not_expression());
  }

  ExprPtr comparison() {
    const Position where = current().where;
    ExprPtr first = sum();
    std::vector<ExprPtr> parts;
    std::vector<std::string> operators;
    for (;;) {
      static constexpr std::string_view kCompare[] = {"==", "!=", "<", "<=", ">", ">="};
      if (current().kind == TokenKind::symbol &&
          std::find(std::begin(kCompare), std::end(kCompare), current().text) != std::end(kCompare)) {
        operators.push_back(take().text);
      } else if (skip_word("in")) {
        operators.push_back("in");
      } else if (is_word("not") && next().kind == TokenKind::name && next().text == "in") {
        take();
        take();
        operators.push_back("not in");
      } else {
        break;
      }
      parts.push_back(sum());
    }
    if (parts.empty()) return first;
    ExprPtr out = node(ExprKind::compare, where, "");
    out->parts.push_back(std::move(first));
    for (ExprPtr& part : parts) out->parts.push_back(std::move(part));
    out->operators = std::move(operators);
    return finish(std::move(out));
  }

  ExprPtr sum() {
    ExprPtr left = concatenation();
    while (is_symbol("+") || is_symbol("-")) {
      const Token op = take();
      left = node(ExprKind::binary, op.where, op.text, std::move(left), concatenation());
    }
    return left;
  }

  ExprPtr concatenation() {
    const Position where = current().where;
    ExprPtr first = product();
    if (!is_symbol("~")) return first;
    ExprPtr out = node(ExprKind::concat, where, "", std::move(first));
    while (skip_symbol("~")) out->parts.push_back(product());
    return finish(std::move(out));
  }

  ExprPtr product() {
    ExprPtr left = power();
    while (is_symbol("*") || is_symbol("/") || is_symbol("//") || is_symbol("%")) {
      const Token op = take();
      left = node(ExprKind::binary, op.where, op.text, std::move(left), power());
    }
    return left;
  }

  ExprPtr power() {
    ExprPtr left = unary(true);
    while (is_symbol("**")) {
      const Token op = take();
      left = node(ExprKind::binary, op.where, op.text, std::move(left), unary(true));
    }
    return left;
  }

  ExprPtr unary(bool with_filter) {
    ExprPtr out;
    if (is_symbol("-") || is_symbol("+")) {
      const Nesting nesting(*this);
      const Token op = take();
      out = node(op.text == "-" ? ExprKind::negate : ExprKind::plus, op.where, "", unary(false));
    } else {
      out = primary();
    }
    out = postfix(std::move(out));
    if (!with_filter) return out;
    for (;;) {
      if (is_symbol("|")) {
        out = filters(std::move(out));
      } else if (is_word("is")) {
        out = test(std::move(out));
      } else if (is_symbol("(")) {
        out = call(std::move(out));
      } else {
        return out;
      }
    }
  }

  ExprPtr primary() {
    const Nesting nesting(*this);
    const Token token = take();
    switch (token.kind) {
      case TokenKind::name:
        if (token.text == "true" || token.text == "True") return constant(token.where, true);
        if (token.text == "false" || token.text == "False") return constant(token.where, false);
        if (token.text == "none" || token.text == "None") return constant(token.where, {});
        if (token.text == "varargs") saw_varargs_ = true;
        if (token.text == "kwargs") saw_kwargs_ = true;
        return node(ExprKind::name, token.where, token.text);
      case TokenKind::string: {
        std::string text = token.text;
        while (current().kind == TokenKind::string) text += take().text;
        return constant(token.where, Value::text(std::move(text)));
      }
      case TokenKind::integer:
        return constant(token.where, integer(token));
      case TokenKind::real:
        return constant(token.where, std::strtod(token.text.c_str(), nullptr));
      case TokenKind::symbol:
        if (token.text == "(") {
          ExprPtr out = tuple(true, true);
          expect_symbol(")");
          return out;
        }
        if (token.text == "[") return list(token.where);
        if (token.text == "{") return dict(token.where);
        break;
      default:
        break;
    }
    syntax_error(token, "unexpected " + describe(token));
  }

  static Value integer(const Token& token) {
    std::string_view digits = token.text;
    int base = 10;
    if (digits.size() > 2 && digits[0] == '0') {
      const char mark = static_cast<char>(digits[1] | 0x20);
      base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
      if (base != 10) digits.remove_prefix(2);
    }
    std::int64_t value = 0;
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    if (result.ec != std::errc()) {
      fail_at(ErrorKind::unsupported, token.where, "the number " + token.text + " is beyond 64-bit integers");
    }
    return value;
  }

  ExprPtr list(Position where) {
    ExprPtr out = node(ExprKind::list, where, "");
    while (!is_symbol("]")) {
      if (!out->parts.empty()) expect_symbol(",");
      if (is_symbol("]")) break;
      out->parts.push_back(expression());
    }
    expect_symbol("]");
    return finish(std::move(out));
  }

  ExprPtr dict(Position where) {
    ExprPtr out = node(ExprKind::dict, where, "");
    while (!is_symbol("}")) {
      if (!out->parts.empty()) expect_symbol(",");
      if (is_symbol("}")) break;
      out->parts.push_back(expression());
      expect_symbol(":");
      out->parts.push_back(expression());
    }
    expect_symbol("}");
    return finish(std::move(out));
  }

  ExprPtr postfix(ExprPtr out) {
    for (;;) {
      if (is_symbol(".")) {
        take();
        const Token name = take();
        if (name.kind == TokenKind::integer) {
          out = node(ExprKind::item, name.where, "", std::move(out), constant(name.where, integer(name)));
        } else if (name.kind == TokenKind::name) {
          out = node(ExprKind::attribute, name.where, name.text, std::move(out));
        } else {
          syntax_error(name, "expected the name of an attribute, got " + describe(name));
        }
      } else if (is_symbol("[")) {
        out = subscript(std::move(out));
      } else if (is_symbol("(")) {
        out = call(std::move(out));
      } else {
        return out;
      }
    }
  }

  ExprPtr subscript(ExprPtr object) {
    const Position where = take().where;
    ExprPtr parts[3];
    int colons = 0;
    bool comma = false;
    while (!is_symbol("]")) {
      if (skip_symbol(":")) {
        if (++colons > 2) syntax_error(current(), "a slice has too many parts");
      } else if (is_symbol(",")) {
        comma = true;
        break;
      } else {
        if (parts[colons] != nullptr) syntax_error(current(), "expected ']', got " + describe(current()));
        parts[colons] = expression();
      }
    }
    if (comma) fail_at(ErrorKind::unsupported, where, "several subscripts with commas between them are not supported");
    if (colons == 0 && parts[0] == nullptr) syntax_error(current(), "expected a subscript");
    expect_symbol("]");
    if (colons == 0) return node(ExprKind::item, where, "", std::move(object), std::move(parts[0]));
    return node(ExprKind::slice, where, "", std::move(object), std::move(parts[0]), std::move(parts[1]),
                std::move(parts[2]));
  }

  void arguments(Expr& out) {
    expect_symbol("(");
    bool first = true;
    while (!is_symbol(")")) {
      if (!first) expect_symbol(",");
      if (is_symbol(")")) break;
      first = false;
      if (is_symbol("*") || is_symbol("**")) {
        fail_at(ErrorKind::unsupported, current().where, "arguments unpacked with * or ** are not supported");
      }
      if (current().kind == TokenKind::name && next().kind == TokenKind::symbol && next().text == "=") {
        const std::string name = take().text;
        take();
        out.named.emplace_back(name, expression());
      } else {
        if (!out.named.empty()) syntax_error(current(), "a positional argument follows a named one");
        out.parts.push_back(expression());
      }
    }
    expect_symbol(")");
  }

  ExprPtr call(ExprPtr callee) {
    ExprPtr out = node(ExprKind::call, current().where, "", std::move(callee));
    arguments(*out);
    return finish(std::move(out));
  }

  // "| name(arguments) | ..."; in a filter block the first name stands without a bar.
  ExprPtr filters(ExprPtr out, bool inline_start = false) {
    while (is_symbol("|") || inline_start) {
      if (!inline_start) take();
      inline_start = false;
      const Token& name = expect(TokenKind::name, "the name of a filter");
      if (!is_filter(name.text)) {
        fail_at(ErrorKind::unsupported, name.where, "the filter '" + name.text + "' is not supported");
      }
      out = node(ExprKind::filter, name.where, name.text, std::move(out));
      if (is_symbol("(")) arguments(*out);
      out = finish(std::move(out));
    }
    return out;
  }

  ExprPtr test(ExprPtr value) {
    take();
    const bool negated = skip_word("not");
    const Token name = expect(TokenKind::name, "the name of a test");
    if (!is_test(name.text))
      fail_at(ErrorKind::unsupported, name.where, "the test '" + name.text + "' is not supported");
    ExprPtr out = node(ExprKind::test, name.where, name.text, std::move(value));
    const TokenKind kind = current().kind;
    if (is_symbol("(")) {
      arguments(*out);
    } else if (((kind == TokenKind::name && !is_word("else") && !is_word("or") && !is_word("and")) ||
                kind == TokenKind::string || kind == TokenKind::integer || kind == TokenKind::real || is_symbol("[") ||
                is_symbol("{"))) {
      if (is_word("is")) syntax_error(current(), "tests cannot be chained with 'is'");
      out->parts.push_back(postfix(primary()));
    }
    out = finish(std::move(out));
    return negated ? node(ExprKind::not_, name.where, "", std::move(out)) : std::move(out);
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int nesting_ = 0;
  int loops_ = 0;
  bool saw_varargs_ = false, saw_kwargs_ = false;
};

}  // namespace

Body parse(std::string_view source) {
  return Parser(tokenize(source)).run();
}

}  // namespace halftone::jinja
