// The syntax tree of a template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/lexer.h"
#include "text/jinja/value.h"

namespace halftone::jinja {

struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<Expr>;
using Body = std::vector<std::unique_ptr<Stmt>>;

enum class ExprKind {
  constant,     // value
  name,         // text
  list,         // parts
  tuple,        // parts
  dict,         // parts: key, value, key, value, ...
  attribute,    // parts[0].text
  item,         // parts[0][parts[1]]
  slice,        // parts[0][parts[1]:parts[2]:parts[3]], null where left out
  call,         // parts[0](parts[1..], named)
  filter,       // parts[0] | text(parts[1..], named); parts[0] is null in a filter block
  test,         // parts[0] is text(parts[1..], named)
  negate,       // -parts[0]
  plus,         // +parts[0]
  not_,         // not parts[0]
  binary,       // parts[0] text parts[1]
  and_,         // parts[0] and parts[1]
  or_,          // parts[0] or parts[1]
  concat,       // str(parts[0]) + str(parts[1]) + ...
  compare,      // parts[0] operators[0] parts[1] operators[1] parts[2] ...
  conditional,  // parts[1] if parts[0] else parts[2] (null: undefined)
};

struct Expr {
  ExprKind kind = ExprKind::constant;
  Position where;
  std::string text;
  Value value;
  std::vector<ExprPtr> parts;
  std::vector<std::pair<std::string, ExprPtr>> named;
  std::vector<std::string> operators;
  int depth = 1;
};

// Where an assignment goes: a name, an attribute of a namespace, or a tuple of targets.
struct Target {
  Position where;
  std::string name, attribute;
  std::vector<Target> parts;
  bool tuple = false;
};

struct Parameter {
  std::string name;
  ExprPtr fallback;  // null if there is none
};

enum class StmtKind {
  data,       // text
  print,      // exprs
  if_,        // exprs[i] -> bodies[i]; one more body is the else
  for_,       // target in exprs[0] if exprs[1] (null): bodies[0], else bodies[1]
  set,        // target = exprs[0]
  set_block,  // target = bodies[0] through the filter exprs[0] (null)
  macro,      // text, parameters, bodies[0]
  filter,     // bodies[0] through exprs[0]
  with,       // targets of assignments in exprs: bodies[0]
  scope,      // bodies[0] (generation)
  break_,
  continue_,
};

struct Stmt {
  StmtKind kind = StmtKind::data;
  Position where;
  std::string text;
  std::vector<ExprPtr> exprs;
  std::vector<Body> bodies;
  Target target;
  std::vector<Target> targets;
  std::vector<Parameter> parameters;
  bool takes_varargs = false, takes_kwargs = false;  // the macro's body names them
};

}  // namespace halftone::jinja
