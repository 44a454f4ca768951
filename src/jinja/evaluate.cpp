#include <algorithm>

#include "jinja/interpreter.h"

namespace inlay::jinja {

Value Interpreter::evaluate(const Expression& expression) {
  const Level level(runtime_.budget());
  runtime_.budget().spend(1);
  try {
    return std::visit([this](const auto& node) { return value_of(node); }, expression.node);
  } catch (Failure& failure) {
    if (!failure.at) failure.at = expression.at;
    throw;
  }
}

Value Interpreter::lookup(std::string_view name) {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent()) {
    if (const Value* found = scope->find(name)) return *found;
  }
  if (const auto found = globals_.find(name); found != globals_.end()) return found->second;
  if (const Function function = find_function(name)) return runtime_.object<Builtin>(name, function);
  return runtime_.undefined(fmt::format("'{}' is undefined", name));
}

Value Interpreter::value_of(const ListDisplay& node) {
  std::vector<Value> items;
  items.reserve(node.items.size());
  for (const ExpressionPtr& item : node.items) items.push_back(evaluate(*item));
  return node.tuple ? runtime_.tuple(std::move(items)) : runtime_.list(std::move(items));
}

Value Interpreter::value_of(const DictDisplay& node) {
  Dict dict;
  for (const auto& [key, value] : node.entries) {
    Value name = evaluate(*key);
    dict.set(&runtime_.budget(), std::move(name), evaluate(*value));
  }
  return runtime_.dict(std::move(dict));
}

Value Interpreter::value_of(const AttributeOf& node) {
  return get_attribute(runtime_, evaluate(*node.object), node.name);
}

Value Interpreter::value_of(const ItemOf& node) {
  const Value object = evaluate(*node.object);
  return get_item(runtime_, object, evaluate(*node.key));
}

Value Interpreter::value_of(const SliceOf& node) {
  const Value object = evaluate(*node.object);
  const Value start = evaluate_or_none(node.start), stop = evaluate_or_none(node.stop);
  return slice(runtime_, object, start, stop, evaluate_or_none(node.step));
}

Arguments Interpreter::arguments_of(const CallArguments& node) {
  Arguments arguments;
  for (const ExpressionPtr& value : node.positional) arguments.positional.push_back(evaluate(*value));
  if (node.more_positional != nullptr) {
    const Value more = evaluate(*node.more_positional);
    if (!is_iterable(more)) fail("argument after * must be an iterable, not {}", more.type());
    for (Value& value : items_of(runtime_, more)) arguments.positional.push_back(std::move(value));
  }
  for (const auto& [name, value] : node.named) arguments.named.emplace_back(name, evaluate(*value));
  if (node.more_named != nullptr) {
    const Value more = evaluate(*node.more_named);
    if (more.dict() == nullptr) fail("argument after ** must be a mapping, not {}", more.type());
    for (const Dict::Entry& entry : more.dict()->entries()) {
      if (entry.first.string() == nullptr) fail("keywords must be strings");
      const std::string& name = entry.first.string()->text;
      runtime_.budget().spend(1 + arguments.named.size());
      const auto same = [&](const auto& given) { return given.first == name; };
      if (std::ranges::any_of(arguments.named, same)) fail("got multiple values for keyword argument '{}'", name);
      arguments.named.emplace_back(name, entry.second);
    }
  }
  return arguments;
}

Value Interpreter::call(const CallOf& node, const Value* caller) {
  const Value callee = evaluate(*node.callee);
  Arguments arguments = arguments_of(node.arguments);
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  return jinja::call(runtime_, callee, arguments);
}

Value Interpreter::value_of(const FilterOf& node) {
  if (node.filter == nullptr) fail("No filter named '{}' found.", node.name);
  const Value input = node.input != nullptr ? evaluate(*node.input) : *block_text_;
  return node.filter(runtime_, input, arguments_of(node.arguments));
}

Value Interpreter::value_of(const TestOf& node) {
  if (node.test == nullptr) fail("No test named '{}' found.", node.name);
  const Value input = evaluate(*node.input);
  return Value::boolean(node.test(runtime_, input, arguments_of(node.arguments)));
}

Value Interpreter::value_of(const Unary& node) {
  const Value operand = evaluate(*node.operand);
  switch (node.operation) {
    case Unary::Operation::negate: return negate(operand);
    case Unary::Operation::affirm: return affirm(operand);
    case Unary::Operation::invert: break;
  }
  return Value::boolean(!operand.truth());
}

Value Interpreter::value_of(const Binary& node) {
  const Value left = evaluate(*node.left);
  return arithmetic(runtime_, node.operation, left, evaluate(*node.right));
}

Value Interpreter::value_of(const Logical& node) {
  Value left = evaluate(*node.left);
  return left.truth() == node.both ? evaluate(*node.right) : left;
}

Value Interpreter::value_of(const Concatenation& node) {
  Builder out(runtime_.budget());
  for (const ExpressionPtr& piece : node.pieces) append_text(out, evaluate(*piece));
  return out.finish();
}

Value Interpreter::value_of(const ComparisonChain& node) {
  Value left = evaluate(*node.first);
  for (const auto& [comparison, expression] : node.rest) {
    Value right = evaluate(*expression);
    if (!compare(runtime_, comparison, left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::value_of(const Conditional& node) {
  if (evaluate(*node.condition).truth()) return evaluate(*node.value);
  if (node.otherwise != nullptr) return evaluate(*node.otherwise);
  return runtime_.undefined(fmt::format(
      "the inline if-expression on line {} evaluated to false and no else section was defined.", node.line));
}

}  // namespace inlay::jinja
