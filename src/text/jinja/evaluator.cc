#include "text/jinja/evaluator.h"

#include <algorithm>
#include <ctime>
#include <map>

#include "text/jinja/filters.h"
#include "text/jinja/operators.h"

namespace halftone::jinja {

// Variables of a loop pass, a macro call or another body with names of its own.
struct Scope {
  std::shared_ptr<Scope> outer;
  std::map<std::string, Value, std::less<>> variables;
};

struct Macro {
  const Stmt* definition = nullptr;
  std::shared_ptr<Scope> scope;
};

namespace {

constexpr std::size_t kBytesPerStep = 16;  // of text that an operation handles
constexpr int kMaxRecursion = 600;  // of nested expressions, statements and macro calls; about 4 MiB of stack at worst
constexpr std::int64_t kMaxRange = 100'000;  // as in Jinja2's sandbox

enum class Flow { next, break_, continue_ };

class Evaluator {
 public:
  Evaluator(const std::vector<std::pair<std::string, Value>>& variables, std::int64_t max_steps)
      : scope_(std::make_shared<Scope>()), max_steps_(max_steps) {
    for (const auto& [name, value] : variables) scope_->variables[name] = value;
    scope_ = inner();
  }

  // Namespaces and the scopes of macros can hold each other; taking their contents away lets go of all of them.
  ~Evaluator() {
    for (const auto& scope : captured_) scope->variables.clear();
    for (const auto& space : namespaces_) {
      space->attributes.items.clear();
      space->attributes.index.clear();
    }
  }
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  Text run(const Body& program) {
    Text out;
    out_ = &out;
    body(program);
    return out;
  }

 private:
  // Replaces a member for the life of a block.
  template <class T>
  class Restore {
   public:
    Restore(T& place, T value) : place_(place), old_(std::exchange(place, std::move(value))) {}
    ~Restore() { place_ = std::move(old_); }
    Restore(const Restore&) = delete;
    Restore& operator=(const Restore&) = delete;

   private:
    T& place_;
    T old_;
  };

  std::shared_ptr<Scope> inner() const { return inner_of(scope_); }
  static std::shared_ptr<Scope> inner_of(std::shared_ptr<Scope> outer) {
    auto scope = std::make_shared<Scope>();
    scope->outer = std::move(outer);
    return scope;
  }

  void spend(std::int64_t steps) {
    steps_ += steps;
    if (steps_ > max_steps_) problem("the template takes more than {} steps", max_steps_);
  }

  // What handling a value costs, on top of the step of its expression.
  static std::int64_t cost(const Value& value) {
    if (value.is_text()) return static_cast<std::int64_t>(value.text().size() / kBytesPerStep);
    return weight_of(value) / 8;
  }

  // Filters that go through the text of every element cost as much as the text does.
  static std::int64_t filter_cost(std::string_view name, const Value& value) {
    static constexpr std::string_view kThorough[] = {"dictsort", "join", "map", "max", "min", "sort", "sum", "unique"};
    const bool thorough = std::find(std::begin(kThorough), std::end(kThorough), name) != std::end(kThorough);
    return thorough && !value.is_text() ? 4 * weight_of(value) : cost(value);
  }

  void enter() {
    if (++depth_ > kMaxRecursion) problem("the template recurses deeper than the limit of {}", kMaxRecursion);
    spend(1);
  }

  class Entered {
   public:
    explicit Entered(Evaluator& evaluator) : evaluator_(evaluator) {}
    ~Entered() { --evaluator_.depth_; }
    Entered(const Entered&) = delete;
    Entered& operator=(const Entered&) = delete;

   private:
    Evaluator& evaluator_;
  };

  Flow body(const Body& statements) {
    for (const auto& stmt : statements) {
      const Flow flow = statement(*stmt);
      if (flow != Flow::next) return flow;
    }
    return Flow::next;
  }

  Flow statement(const Stmt& stmt) {
    const Entered entered(*this);
    try {
      enter();
      return execute(stmt);
    } catch (const Problem& caught) {
      fail_at(caught.kind, stmt.where, caught.message);
    }
  }

  Flow execute(const Stmt& stmt) {
    switch (stmt.kind) {
      case StmtKind::data:
        out_->append(stmt.text);
        break;
      case StmtKind::print:
        for (const ExprPtr& expr : stmt.exprs) print(*expr);
        break;
      case StmtKind::if_:
        return if_statement(stmt);
      case StmtKind::for_:
        return for_statement(stmt);
      case StmtKind::set:
        assign(stmt.target, evaluate(*stmt.exprs[0]));
        break;
      case StmtKind::set_block: {
        Value value = capture(stmt.bodies[0]);
        if (stmt.exprs[0] != nullptr) value = filter(*stmt.exprs[0], &value);
        assign(stmt.target, value);
        break;
      }
      case StmtKind::macro:
        define_macro(stmt);
        break;
      case StmtKind::filter: {
        const Value value = capture(stmt.bodies[0]);
        out_->append(to_text(filter(*stmt.exprs[0], &value)));
        break;
      }
      case StmtKind::with:
        return with_statement(stmt);
      case StmtKind::scope: {
        const Restore<std::shared_ptr<Scope>> scope(scope_, inner());
        return body(stmt.bodies[0]);
      }
      case StmtKind::break_:
        return Flow::break_;
      case StmtKind::continue_:
        return Flow::continue_;
    }
    return Flow::next;
  }

  void print(const Expr& expr) {
    const Value value = evaluate(expr);
    if (value.is_text()) {
      out_->append(value.text());
    } else {
      out_->append(to_text(value));
    }
    spend(cost(value));
  }

  // The text that a body writes.
  Value capture(const Body& statements) {
    Text text;
    const Restore<Text*> out(out_, &text);
    const Restore<std::shared_ptr<Scope>> scope(scope_, inner());
    body(statements);
    spend(static_cast<std::int64_t>(text.size() / kBytesPerStep));
    return text;
  }

  Flow if_statement(const Stmt& stmt) {
    for (std::size_t i = 0; i < stmt.exprs.size(); ++i) {
      if (truth(evaluate(*stmt.exprs[i]))) return body(stmt.bodies[i]);
    }
    return stmt.bodies.size() > stmt.exprs.size() ? body(stmt.bodies.back()) : Flow::next;
  }

  Flow with_statement(const Stmt& stmt) {
    auto scope = inner();
    Values values;
    for (const ExprPtr& expr : stmt.exprs) values.push_back(evaluate(*expr));
    const Restore<std::shared_ptr<Scope>> restore(scope_, std::move(scope));
    for (std::size_t i = 0; i < values.size(); ++i) assign(stmt.targets[i], values[i]);
    return body(stmt.bodies[0]);
  }

  Values loop_items(const Stmt& stmt) {
    const Value all = evaluate(*stmt.exprs[0]);
    if (all.holds<std::shared_ptr<const Loop>>()) unsupported("a loop over 'loop' is not supported");
    spend(cost(all));
    Values items = iterate(all);
    if (stmt.exprs[1] == nullptr) return items;
    Values kept;
    for (Value& item : items) {
      const Restore<std::shared_ptr<Scope>> scope(scope_, inner());
      assign(stmt.target, item);
      if (truth(evaluate(*stmt.exprs[1]))) kept.push_back(std::move(item));
    }
    return kept;
  }

  Flow for_statement(const Stmt& stmt) {
    const auto items = std::make_shared<const Values>(loop_items(stmt));
    const auto changed = std::make_shared<std::optional<Value>>();
    const Restore<std::shared_ptr<Scope>> restore(scope_, scope_);
    const std::shared_ptr<Scope> outer = scope_;
    for (std::size_t i = 0; i < items->size(); ++i) {
      spend(1);
      scope_ = inner_of(outer);
      assign(stmt.target, (*items)[i]);
      scope_->variables["loop"] = Value(std::make_shared<const Loop>(Loop{items, i, changed}));
      if (body(stmt.bodies[0]) == Flow::break_) break;
    }
    changed->reset();
    if (items->empty() && stmt.bodies.size() > 1) {
      scope_ = inner_of(outer);
      return body(stmt.bodies[1]);
    }
    return Flow::next;
  }

  void assign(const Target& target, const Value& value) {
    if (target.tuple) {
      const Values items = iterate(value);
      if (items.size() != target.parts.size()) {
        fail_at(ErrorKind::bad_input, target.where,
                fmt::format("{} values cannot be unpacked into {} names", items.size(), target.parts.size()));
      }
      for (std::size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i]);
      return;
    }
    if (target.attribute.empty()) {
      scope_->variables[target.name] = value;
      return;
    }
    const Value* space = find(target.name);
    if (space == nullptr || !space->holds<std::shared_ptr<Namespace>>()) {
      fail_at(ErrorKind::bad_input, target.where,
              "attributes can be set on a namespace only, and '" + target.name + "' is not one");
    }
    set_attribute(*space->get<std::shared_ptr<Namespace>>(), target.attribute, value);
  }

  static void set_attribute(Namespace& space, const std::string& name, const Value& value) {
    if (name.starts_with('_')) problem("the attribute '{}' of a namespace begins with an underscore", name);
    Dict& dict = space.attributes;
    dict.from_content = dict.from_content || carries_content(value);
    const auto [found, added] = dict.index.try_emplace("s" + name, dict.items.size());
    if (added) {
      dict.items.emplace_back(Value::text(name), value);
    } else {
      dict.items[found->second].second = value;
    }
  }

  const Value* find(std::string_view name) const {
    for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->outer.get()) {
      const auto found = scope->variables.find(name);
      if (found != scope->variables.end()) return &found->second;
    }
    return nullptr;
  }

  static Value global(const std::string& name) {
    static constexpr Function kFunctions[] = {Function::range, Function::dict, Function::namespace_,
                                              Function::raise_exception, Function::strftime_now};
    for (const Function function : kFunctions) {
      if (name == function_name(function)) return function;
    }
    if (name == "cycler" || name == "joiner" || name == "lipsum")
      unsupported("the function '{}' is not supported", name);
    return Value::undefined("'" + name + "' is undefined");
  }

  Value evaluate(const Expr& expr) {
    const Entered entered(*this);
    try {
      enter();
      return compute(expr);
    } catch (const Problem& caught) {
      fail_at(caught.kind, expr.where, caught.message);
    }
  }

  Value part(const Expr& expr, std::size_t i) { return expr.parts[i] == nullptr ? Value() : evaluate(*expr.parts[i]); }

  Value compute(const Expr& expr) {
    switch (expr.kind) {
      case ExprKind::constant:
        return expr.value;
      case ExprKind::name: {
        const Value* found = find(expr.text);
        return found != nullptr ? *found : global(expr.text);
      }
      case ExprKind::list:
      case ExprKind::tuple:
        return sequence(expr);
      case ExprKind::dict:
        return dictionary(expr);
      case ExprKind::attribute:
        return get_attribute(part(expr, 0), expr.text);
      case ExprKind::item:
        return item(expr);
      case ExprKind::slice:
        return slice_of(expr);
      case ExprKind::call:
        return call(expr);
      case ExprKind::filter:
        return filter(expr, nullptr);
      case ExprKind::test:
        return test(expr);
      case ExprKind::negate:
        return negate(part(expr, 0), true);
      case ExprKind::plus:
        return negate(part(expr, 0), false);
      case ExprKind::not_:
        return !truth(part(expr, 0));
      case ExprKind::binary:
        return operation(expr);
      case ExprKind::and_: {
        Value left = part(expr, 0);
        return truth(left) ? part(expr, 1) : left;
      }
      case ExprKind::or_: {
        Value left = part(expr, 0);
        return truth(left) ? left : part(expr, 1);
      }
      case ExprKind::concat:
        return concatenation(expr);
      case ExprKind::compare:
        return comparison(expr);
      case ExprKind::conditional:
        if (truth(part(expr, 0))) return part(expr, 1);
        if (expr.parts[2] == nullptr) return Value::undefined("the condition was false and there is no 'else'");
        return part(expr, 2);
    }
    return {};
  }

  Value sequence(const Expr& expr) {
    Values items;
    for (std::size_t i = 0; i < expr.parts.size(); ++i) items.push_back(part(expr, i));
    Value out = make_list(std::move(items), expr.kind == ExprKind::list ? ListKind::list : ListKind::tuple);
    spend(static_cast<std::int64_t>(expr.parts.size()));
    return out;
  }

  Value dictionary(const Expr& expr) {
    Dict dict;
    for (std::size_t i = 0; i + 1 < expr.parts.size(); i += 2) {
      const Value key = part(expr, i);
      dict.set(key, part(expr, i + 1));
    }
    return make_dict(std::move(dict));
  }

  Value item(const Expr& expr) {
    const Value object = part(expr, 0);
    if (object.is_text()) spend(cost(object));
    return get_item(object, part(expr, 1));
  }

  Value slice_of(const Expr& expr) {
    const Value object = part(expr, 0), start = part(expr, 1), stop = part(expr, 2), step = part(expr, 3);
    spend(cost(object));
    return slice(object, start, stop, step);
  }

  Value operation(const Expr& expr) {
    const Value left = part(expr, 0), right = part(expr, 1);
    Value out = binary(expr.text, left, right);
    spend(cost(out));
    return out;
  }

  Value concatenation(const Expr& expr) {
    Text out;
    for (std::size_t i = 0; i < expr.parts.size(); ++i) out.append(to_text(part(expr, i)));
    spend(static_cast<std::int64_t>(out.size() / kBytesPerStep));
    return out;
  }

  Value comparison(const Expr& expr) {
    Value left = part(expr, 0);
    for (std::size_t i = 0; i < expr.operators.size(); ++i) {
      Value right = part(expr, i + 1);
      spend(cost(left) + cost(right));
      if (!compare(expr.operators[i], left, right)) return false;
      left = std::move(right);
    }
    return true;
  }

  Arguments arguments(const Expr& expr) {
    Arguments out;
    for (std::size_t i = 1; i < expr.parts.size(); ++i) out.positional.push_back(part(expr, i));
    for (const auto& [name, value] : expr.named) out.named.emplace_back(name, evaluate(*value));
    return out;
  }

  // `subject` is what a filter block wrote, for the innermost filter of the chain.
  Value filter(const Expr& expr, const Value* subject) {
    Value value;
    if (expr.parts[0] == nullptr) {
      HT_CHECK(subject != nullptr);
      value = *subject;
    } else {
      value = subject != nullptr ? filter(*expr.parts[0], subject) : evaluate(*expr.parts[0]);
    }
    const Arguments given = arguments(expr);
    spend(filter_cost(expr.text, value));
    Value out = apply_filter(expr.text, value, given);
    spend(cost(out));
    return out;
  }

  Value test(const Expr& expr) {
    const Value subject = part(expr, 0);
    const Arguments given = arguments(expr);
    if (!given.positional.empty()) spend(cost(subject) + cost(given.positional[0]));
    return apply_test(expr.text, subject, given);
  }

  Value call(const Expr& expr) {
    const Value callee = part(expr, 0);
    if (callee.is_undefined()) problem("{}", callee.undefined_message());
    const Arguments given = arguments(expr);
    if (callee.holds<std::shared_ptr<const Method>>()) {
      const Method& method = *callee.get<std::shared_ptr<const Method>>();
      spend(cost(method.receiver));
      for (const Value& value : given.positional) spend(cost(value));
      Value out = call_method(method, given);
      spend(cost(out));
      return out;
    }
    if (callee.holds<std::shared_ptr<const Macro>>())
      return call_macro(*callee.get<std::shared_ptr<const Macro>>(), given);
    if (callee.holds<Function>()) return call_function(callee.get<Function>(), given);
    if (callee.holds<std::shared_ptr<const Loop>>()) unsupported("a recursive loop is not supported");
    problem("a value of type '{}' cannot be called", type_name(callee));
  }

  Value call_function(Function function, const Arguments& given) {
    switch (function) {
      case Function::range:
        return range(given);
      case Function::dict:
        return make_dict(make_dictionary("dict", given));
      case Function::namespace_: {
        auto space = std::make_shared<Namespace>();
        namespaces_.push_back(space);
        const Dict dict = make_dictionary("namespace", given);
        for (const auto& [key, value] : dict.items) {
          if (!key.is_text()) problem("the attributes of a namespace are named by strings");
          set_attribute(*space, key.bytes(), value);
        }
        return space;
      }
      case Function::raise_exception: {
        const Bound bound("raise_exception", given, {"message"}, 1);
        problem("the template refuses this input: {}", to_text(*bound[0]).bytes());
      }
      case Function::strftime_now:
        return strftime_now(given);
    }
    return {};
  }

  static Dict make_dictionary(const char* name, const Arguments& given) {
    if (given.positional.size() > 1) problem("'{}' takes one positional argument", name);
    Dict dict;
    if (!given.positional.empty()) {
      const Value& from = given.positional[0];
      if (from.is_dict()) {
        dict = from.dict();
      } else {
        for (const Value& pair : iterate(from)) {
          const Values parts = iterate(pair);
          if (parts.size() != 2) problem("'{}' takes pairs", name);
          dict.set(parts[0], parts[1]);
        }
      }
    }
    for (const auto& [key, value] : given.named) dict.set(Value::text(key), value);
    return dict;
  }

  Value range(const Arguments& given) {
    if (!given.named.empty()) problem("'range' takes no named arguments");
    const Bound bound("range", given, {"start", "stop", "step"}, 1);
    std::int64_t start = bound.integer(0, 0), stop = bound.integer(1, 0), step = bound.integer(2, 1);
    if (bound[1] == nullptr) stop = std::exchange(start, 0);
    if (step == 0) problem("the step of 'range' is zero");
    std::string text = fmt::format("range({}, {}", start, stop) + (step != 1 ? fmt::format(", {})", step) : ")");
    auto list = std::make_shared<List>();
    list->kind = ListKind::range;
    list->range_text = std::move(text);
    for (std::int64_t i = start; step > 0 ? i < stop : i > stop;) {
      if (static_cast<std::int64_t>(list->items.size()) >= kMaxRange) {
        problem("'range' has more than {} numbers", kMaxRange);
      }
      list->items.emplace_back(i);
      if (__builtin_add_overflow(i, step, &i)) break;
    }
    list->weight += static_cast<std::int64_t>(list->items.size());
    spend(list->weight);
    return Value(std::shared_ptr<const List>(std::move(list)));
  }

  static Value strftime_now(const Arguments& given) {
    const Bound bound("strftime_now", given, {"format"}, 1);
    const std::string& format = bound.text(0).bytes();
    if (format.size() > 4096) problem("'strftime_now' takes a format of at most 4096 bytes");
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    localtime_r(&now, &local);
    // A mark at the end tells an empty result from one that did not fit.
    const std::string marked = format + ".";
    std::string out(1024 + format.size() * 32, '\0');
    const std::size_t size = std::strftime(out.data(), out.size(), marked.c_str(), &local);
    if (size == 0) problem("'strftime_now' cannot use this format");
    out.resize(size - 1);
    return Value::text(std::move(out), bound.text(0).from_content());
  }

  void define_macro(const Stmt& stmt) {
    captured_.push_back(scope_);
    scope_->variables[stmt.text] = Value(std::make_shared<const Macro>(Macro{&stmt, scope_}));
  }

  Value call_macro(const Macro& macro, const Arguments& given) {
    const Stmt& stmt = *macro.definition;
    auto scope = inner_of(macro.scope);
    std::vector<bool> filled(stmt.parameters.size(), false);
    Values extra;
    for (std::size_t i = 0; i < given.positional.size(); ++i) {
      if (i < stmt.parameters.size()) {
        scope->variables[stmt.parameters[i].name] = given.positional[i];
        filled[i] = true;
      } else {
        extra.push_back(given.positional[i]);
      }
    }
    if (!extra.empty() && !stmt.takes_varargs) {
      problem("the macro '{}' takes at most {} arguments", stmt.text, stmt.parameters.size());
    }
    Dict extra_named;
    for (const auto& [name, value] : given.named) {
      const auto found = std::find_if(stmt.parameters.begin(), stmt.parameters.end(),
                                      [&](const Parameter& parameter) { return parameter.name == name; });
      if (found != stmt.parameters.end()) {
        const auto at = static_cast<std::size_t>(found - stmt.parameters.begin());
        if (filled[at]) problem("the macro '{}' got '{}' twice", stmt.text, name);
        filled[at] = true;
        scope->variables[name] = value;
      } else if (stmt.takes_kwargs) {
        extra_named.set(Value::text(name), value);
      } else {
        problem("the macro '{}' has no parameter '{}'", stmt.text, name);
      }
    }
    if (stmt.takes_varargs) scope->variables["varargs"] = make_list(std::move(extra), ListKind::tuple);
    if (stmt.takes_kwargs) scope->variables["kwargs"] = make_dict(std::move(extra_named));

    Text text;
    const Restore<Text*> out(out_, &text);
    const Restore<std::shared_ptr<Scope>> restore(scope_, scope);
    for (std::size_t i = 0; i < stmt.parameters.size(); ++i) {
      if (filled[i]) continue;
      const Parameter& parameter = stmt.parameters[i];
      scope->variables[parameter.name] = parameter.fallback != nullptr
                                             ? evaluate(*parameter.fallback)
                                             : Value::undefined("parameter '" + parameter.name + "' was not provided");
    }
    body(stmt.bodies[0]);
    spend(static_cast<std::int64_t>(text.size() / kBytesPerStep));
    return text;
  }

  std::shared_ptr<Scope> scope_;
  Text* out_ = nullptr;
  std::int64_t steps_ = 0;
  std::int64_t max_steps_;
  int depth_ = 0;
  std::vector<std::shared_ptr<Scope>> captured_;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
};

}  // namespace

Text run(const Body& program, const std::vector<std::pair<std::string, Value>>& variables, std::int64_t max_steps) {
  return Evaluator(variables, max_steps).run(program);
}

}  // namespace halftone::jinja
