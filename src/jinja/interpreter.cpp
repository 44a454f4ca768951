#include "jinja/interpreter.h"

#include <algorithm>

#include "jinja/loop.h"

namespace inlay::jinja {

// A macro, and the scope in which it was defined.
class Macro final : public Object {
 public:
  Macro(Interpreter& interpreter, const MacroDefinition& definition, Scope* scope)
      : interpreter_(interpreter), definition_(definition), scope_(scope) {}

  std::string_view type() const override { return "jinja2.runtime.Macro"; }
  void show(Builder& out) const override { out.append(fmt::format("<Macro '{}'>", definition_.name)); }
  bool callable() const override { return true; }
  Value call(Runtime&, const Arguments& arguments) override {
    return interpreter_.call_macro(definition_, scope_, arguments);
  }
  std::optional<Value> attribute(Runtime& runtime, std::string_view name) override {
    if (name == "name") return runtime.string(definition_.name);
    return std::nullopt;
  }

 private:
  Interpreter& interpreter_;
  const MacroDefinition& definition_;
  Scope* scope_;  // kept by the interpreter
};

namespace {

// Puts a variable back at the end, whatever happens.
template <class T>
class Restore {
 public:
  Restore(T& variable, T value) : variable_(variable), before_(std::exchange(variable, std::move(value))) {}
  ~Restore() { variable_ = std::move(before_); }
  Restore(const Restore&) = delete;
  Restore& operator=(const Restore&) = delete;

 private:
  T& variable_;
  T before_;
};

}  // namespace

const Value* Scope::find(std::string_view name) const {
  budget_.spend(1 + variables_.size() / 8);
  for (const auto& [known, value] : variables_) {
    if (known == name) return &value;
  }
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  budget_.spend(1 + variables_.size() / 8);
  for (auto& [known, old] : variables_) {
    if (known != name) continue;
    old = std::move(value);
    return;
  }
  budget_.take(sizeof(variables_[0]));
  variables_.emplace_back(name, std::move(value));
}

Interpreter::~Interpreter() {
  for (const std::shared_ptr<Scope>& scope : kept_) scope->clear();
}

Output Interpreter::run(const Block& body) {
  try {
    const auto scope = std::make_shared<Scope>(runtime_.budget(), nullptr);
    scope_ = scope.get();
    execute(body);
  } catch (const Failure& failure) {
    source_.fail(failure.at.value_or(0), failure.message);
  }
  return {root_.release(), std::move(generation_), generation_lost_};
}

Interpreter::Flow Interpreter::execute(const Block& block) {
  const Level level(runtime_.budget());
  for (const Statement& statement : block) {
    const Flow flow = execute(statement);
    if (flow != Flow::next) return flow;
  }
  return Flow::next;
}

Interpreter::Flow Interpreter::execute(const Statement& statement) {
  runtime_.budget().spend(1);
  try {
    return std::visit([this](const auto& node) { return run(node); }, statement.node);
  } catch (Failure& failure) {
    if (!failure.at) failure.at = statement.at;
    throw;
  }
}

Interpreter::Flow Interpreter::run(const Text& node) {
  out_->append(node.text);
  return Flow::next;
}

Interpreter::Flow Interpreter::run(const Print& node) {
  append_text(*out_, evaluate(*node.value));
  return Flow::next;
}

Interpreter::Flow Interpreter::run(const If& node) {
  for (const If::Branch& branch : node.branches) {
    if (branch.condition == nullptr || evaluate(*branch.condition).truth()) return execute(branch.body);
  }
  return Flow::next;
}

Interpreter::Flow Interpreter::run(const For& node) {
  const Value items = evaluate(*node.items);
  Cursor cursor(runtime_, items);
  Scope* const outside = scope_;
  const auto draw = [&]() -> std::optional<Value> {
    while (auto item = cursor.next()) {
      if (node.condition == nullptr) return item;
      const auto scope = std::make_shared<Scope>(runtime_.budget(), outside);
      const Restore inside(scope_, scope.get());
      assign(node.target, *item);
      if (evaluate(*node.condition).truth()) return item;
    }
    return std::nullopt;
  };
  const auto loop = std::make_shared<Loop>(draw, node.condition ? std::nullopt : cursor.length(), items.depth());
  bool finished_a_turn = false;
  while (auto item = loop->next()) {
    const auto scope = std::make_shared<Scope>(runtime_.budget(), outside);
    const Restore inside(scope_, scope.get());
    scope->set("loop", Value(std::shared_ptr<Object>(loop)));
    assign(node.target, *std::move(item));
    const Flow flow = execute(node.body);
    if (flow == Flow::break_loop) break;
    finished_a_turn = finished_a_turn || flow == Flow::next;
  }
  loop->finish();
  // Jinja notes that there was a turn at the end of the body, so turns that were left by continue do not count.
  if (finished_a_turn || node.otherwise.empty()) return Flow::next;
  const auto scope = std::make_shared<Scope>(runtime_.budget(), outside);
  const Restore inside(scope_, scope.get());
  return execute(node.otherwise);
}

Interpreter::Flow Interpreter::run(const Set& node) {
  assign(node.target, evaluate(*node.value));
  return Flow::next;
}

Interpreter::Flow Interpreter::capture(const Block& body, Scope& scope, Value& text) {
  Builder caught(runtime_.budget());
  const Restore inside(scope_, &scope);
  const Restore into(out_, &caught);
  const Flow flow = execute(body);
  text = caught.finish();
  return flow;
}

Interpreter::Flow Interpreter::run(const SetBlock& node) {
  const auto scope = std::make_shared<Scope>(runtime_.budget(), scope_);
  Value text;
  if (const Flow flow = capture(node.body, *scope, text); flow != Flow::next) return flow;
  if (node.filter != nullptr) {
    const Restore inside(scope_, scope.get());
    const Restore input(block_text_, std::optional(text));
    text = evaluate(*node.filter);
  }
  assign(node.target, std::move(text));
  return Flow::next;
}

Interpreter::Flow Interpreter::run(const FilterBlock& node) {
  const auto scope = std::make_shared<Scope>(runtime_.budget(), scope_);
  Value text;
  if (const Flow flow = capture(node.body, *scope, text); flow != Flow::next) return flow;
  const Restore inside(scope_, scope.get());
  const Restore input(block_text_, std::optional(text));
  append_text(*out_, evaluate(*node.filter));
  return Flow::next;
}

Interpreter::Flow Interpreter::run(const With& node) {
  const auto scope = std::make_shared<Scope>(runtime_.budget(), scope_);
  for (const auto& [target, expression] : node.values) {
    Value value = evaluate(*expression);  // outside: one value does not see another
    const Restore inside(scope_, scope.get());
    assign(target, std::move(value));
  }
  const Restore inside(scope_, scope.get());
  return execute(node.body);
}

Interpreter::Flow Interpreter::run(const Generation& node) {
  const bool placed = out_ == &root_;
  generation_lost_ = generation_lost_ || !placed;
  const auto scope = std::make_shared<Scope>(runtime_.budget(), scope_);
  const Restore inside(scope_, scope.get());
  const bool outermost = !in_generation_;
  const Restore within(in_generation_, true);
  const std::size_t begin = out_->size();
  execute(node.body);
  if (placed && outermost) generation_.emplace_back(begin, out_->size());
  return Flow::next;
}

void Interpreter::assign(const Target& target, Value value) {
  if (target.parts.empty() && target.attribute.empty()) return scope_->set(target.name, std::move(value));
  if (target.parts.empty()) {
    auto* space = lookup(target.name).as<Namespace>();
    if (space == nullptr) throw Failure{"cannot assign attribute on non-namespace object", target.at};
    return space->set(runtime_, target.attribute, std::move(value));
  }
  if (!is_iterable(value)) {
    throw Failure{fmt::format("cannot unpack non-iterable {} object", value.type()), target.at};
  }
  std::vector<Value> items = items_of(runtime_, value);
  const std::size_t wanted = target.parts.size();
  if (items.size() < wanted) {
    throw Failure{fmt::format("not enough values to unpack (expected {}, got {})", wanted, items.size()), target.at};
  }
  if (items.size() > wanted) {
    throw Failure{fmt::format("too many values to unpack (expected {})", wanted), target.at};
  }
  for (std::size_t i = 0; i < wanted; ++i) assign(target.parts[i], std::move(items[i]));
}

Value Interpreter::make_macro(const MacroDefinition& definition) {
  for (Scope* scope = scope_; scope != nullptr && !scope->kept; scope = scope->parent()) {
    runtime_.budget().take(sizeof(Scope));
    kept_.push_back(scope->shared_from_this());
    scope->kept = true;
  }
  return runtime_.object<Macro>(*this, definition, scope_);
}

Interpreter::Flow Interpreter::run(const std::unique_ptr<MacroDefinition>& node) {
  scope_->set(node->name, make_macro(*node));
  return Flow::next;
}

Interpreter::Flow Interpreter::run(const std::unique_ptr<CallBlock>& node) {
  const Value caller = make_macro(node->caller);
  append_text(*out_, call(std::get<CallOf>(node->call->node), &caller));
  return Flow::next;
}

Value Interpreter::call_macro(const MacroDefinition& definition, Scope* outside, const Arguments& arguments) {
  const auto scope = std::make_shared<Scope>(runtime_.budget(), outside);
  const Restore inside(scope_, scope.get());
  bind(definition, *scope, arguments);
  Value text;
  capture(definition.body, *scope, text);
  return text;
}

void Interpreter::bind(const MacroDefinition& definition, Scope& scope, const Arguments& arguments) {
  const std::size_t wanted = definition.parameters.size(), given = arguments.positional.size();
  std::vector<std::pair<std::string, Value>> named = arguments.named;
  const auto take = [&](std::string_view name) -> std::optional<Value> {
    const auto found = std::ranges::find_if(named, [&](const auto& argument) { return argument.first == name; });
    if (found == named.end()) return std::nullopt;
    Value value = std::move(found->second);
    named.erase(found);
    return value;
  };
  for (std::size_t i = 0; i < wanted; ++i) {
    const auto& [name, otherwise] = definition.parameters[i];
    std::optional<Value> value = i < given ? std::optional(arguments.positional[i]) : take(name);
    if (!value) {
      value = otherwise != nullptr ? evaluate(*otherwise)
                                   : runtime_.undefined(fmt::format("parameter '{}' was not provided", name));
    }
    scope.set(name, *std::move(value));
  }
  if (definition.uses_caller) {
    auto caller = take("caller");
    scope.set("caller", caller ? *std::move(caller) : runtime_.undefined("No caller defined"));
  }
  if (definition.uses_kwargs) {
    Dict rest;
    for (auto& [name, value] : named) rest.set(&runtime_.budget(), runtime_.string(name), std::move(value));
    scope.set("kwargs", runtime_.dict(std::move(rest)));
  } else if (!named.empty()) {
    fail("macro '{}' takes no keyword argument '{}'", definition.name, named[0].first);
  }
  if (definition.uses_varargs) {
    const auto first = static_cast<std::ptrdiff_t>(std::min(given, wanted));
    scope.set("varargs", runtime_.tuple({arguments.positional.begin() + first, arguments.positional.end()}));
  } else if (given > wanted) {
    fail("macro '{}' takes not more than {} argument(s)", definition.name, wanted);
  }
}

}  // namespace inlay::jinja
