#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "jinja/objects.h"
#include "jinja/operators.h"

// A template as it was understood: expressions and statements. Made by the parser, never changed, shared by threads.
namespace inlay::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<const Expression>;

struct Literal {
  Value value;
};
struct Name {
  std::string name;
};
struct ListDisplay {
  std::vector<ExpressionPtr> items;
  bool tuple = false;
};
struct DictDisplay {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> entries;
};
struct AttributeOf {
  ExpressionPtr object;
  std::string name;
};
struct ItemOf {
  ExpressionPtr object, key;
};
struct SliceOf {
  ExpressionPtr object, start, stop, step;  // null bounds where they were left out
};

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr more_positional, more_named;  // *arguments and **arguments, or null
};
struct CallOf {
  ExpressionPtr callee;
  CallArguments arguments;
};
struct FilterOf {
  ExpressionPtr input;  // null in a filter block, which hands in its text
  std::string name;
  Filter filter = nullptr;  // null where there is none of that name; an error once it is reached
  CallArguments arguments;
};
struct TestOf {
  ExpressionPtr input;
  std::string name;
  Test test = nullptr;
  CallArguments arguments;
};

struct Unary {
  enum class Operation { negate, affirm, invert } operation;
  ExpressionPtr operand;
};
struct Binary {
  Arithmetic operation;
  ExpressionPtr left, right;
};
struct Logical {
  bool both;  // and, or
  ExpressionPtr left, right;
};
struct Concatenation {
  std::vector<ExpressionPtr> pieces;
};
struct ComparisonChain {
  ExpressionPtr first;
  std::vector<std::pair<Comparison, ExpressionPtr>> rest;
};
struct Conditional {
  ExpressionPtr condition, value, otherwise;  // otherwise may be null
  std::size_t line = 0;
};

struct Expression {
  using Node = std::variant<Literal, Name, ListDisplay, DictDisplay, AttributeOf, ItemOf, SliceOf, CallOf, FilterOf,
                            TestOf, Unary, Binary, Logical, Concatenation, ComparisonChain, Conditional>;
  std::size_t at;  // byte of the source that errors point at
  int depth;       // of expressions inside one another
  Node node;
};

// What a set, for or with assigns to: a name, an attribute of a namespace, or several of them.
struct Target {
  std::size_t at = 0;
  std::string name, attribute;  // attribute: of a namespace, otherwise empty
  std::vector<Target> parts;    // name is empty then
};

struct Statement;
using Block = std::vector<Statement>;

struct Text {
  std::string text;
};
struct Print {
  ExpressionPtr value;
};
struct If {
  struct Branch {
    ExpressionPtr condition;  // null for else
    Block body;
  };
  std::vector<Branch> branches;
};
struct For {
  Target target;
  ExpressionPtr items, condition;  // condition may be null
  Block body, otherwise;
};
struct Set {
  Target target;
  ExpressionPtr value;
};
struct SetBlock {
  Target target;
  ExpressionPtr filter;  // may be null
  Block body;
};
struct With {
  std::vector<std::pair<Target, ExpressionPtr>> values;
  Block body;
};
struct MacroDefinition {
  struct Parameter {
    std::string name;
    ExpressionPtr otherwise;  // may be null
  };
  std::string name;
  std::vector<Parameter> parameters;
  Block body;
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
};
struct CallBlock {
  MacroDefinition caller;
  ExpressionPtr call;  // a CallOf
};
struct FilterBlock {
  ExpressionPtr filter;
  Block body;
};
struct Generation {
  Block body;
};
struct Break {};
struct Continue {};

struct Statement {
  using Node = std::variant<Text, Print, If, For, Set, SetBlock, With, std::unique_ptr<MacroDefinition>,
                            std::unique_ptr<CallBlock>, FilterBlock, Generation, Break, Continue>;
  std::size_t at;
  Node node;
};

}  // namespace inlay::jinja
