#pragma once

#include <unordered_map>

#include "jinja/ast.h"
#include "jinja/source.h"

namespace inlay::jinja {

// The variables of a for's turn, a macro's call, a block. An if has none of its own.
class Scope : public std::enable_shared_from_this<Scope> {
 public:
  Scope(Budget& budget, Scope* parent) : budget_(budget), parent_(parent) {}
  ~Scope() { budget_.give(variables_.size() * sizeof(variables_[0])); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  Scope* parent() const { return parent_; }
  const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);  // the name must outlive the scope
  void clear() { variables_.clear(); }

  bool kept = false;

 private:
  Budget& budget_;
  Scope* parent_;
  std::vector<std::pair<std::string_view, Value>> variables_;
};

using Variables = std::unordered_map<std::string_view, Value>;

// What a template made of its variables.
struct Output {
  std::string text;
  std::vector<std::pair<std::size_t, std::size_t>> generation;  // bytes of the text that generation blocks wrote
  // A generation block stood inside a macro, set, call or filter block: where its text came to stand is not known.
  bool generation_lost = false;
};

// Runs a template once.
class Interpreter {
 public:
  Interpreter(const Source& source, Runtime& runtime, Variables variables)
      : source_(source), runtime_(runtime), globals_(std::move(variables)), root_(runtime.budget()), out_(&root_) {}
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  Output run(const Block& body);

 private:
  friend class Macro;
  enum class Flow { next, break_loop, continue_loop };

  // interpreter.cpp: statements
  Flow execute(const Block& block);
  Flow execute(const Statement& statement);
  Flow run(const Text& node);
  Flow run(const Print& node);
  Flow run(const If& node);
  Flow run(const For& node);
  Flow run(const Set& node);
  Flow run(const SetBlock& node);
  Flow run(const With& node);
  Flow run(const std::unique_ptr<MacroDefinition>& node);
  Flow run(const std::unique_ptr<CallBlock>& node);
  Flow run(const FilterBlock& node);
  Flow run(const Generation& node);
  Flow run(const Break&) { return Flow::break_loop; }
  Flow run(const Continue&) { return Flow::continue_loop; }

  // Runs in a scope of its own, and its text goes into the value.
  Flow capture(const Block& body, Scope& scope, Value& text);
  void assign(const Target& target, Value value);
  Value make_macro(const MacroDefinition& definition);
  Value call_macro(const MacroDefinition& definition, Scope* scope, const Arguments& arguments);
  void bind(const MacroDefinition& definition, Scope& scope, const Arguments& arguments);

  // evaluate.cpp: expressions
  Value evaluate(const Expression& expression);
  Value evaluate_or_none(const ExpressionPtr& expression) { return expression ? evaluate(*expression) : Value(); }
  Value value_of(const Literal& node) { return node.value; }
  Value value_of(const Name& node) { return lookup(node.name); }
  Value value_of(const ListDisplay& node);
  Value value_of(const DictDisplay& node);
  Value value_of(const AttributeOf& node);
  Value value_of(const ItemOf& node);
  Value value_of(const SliceOf& node);
  Value value_of(const CallOf& node) { return call(node, nullptr); }
  Value value_of(const FilterOf& node);
  Value value_of(const TestOf& node);
  Value value_of(const Unary& node);
  Value value_of(const Binary& node);
  Value value_of(const Logical& node);
  Value value_of(const Concatenation& node);
  Value value_of(const ComparisonChain& node);
  Value value_of(const Conditional& node);
  Value call(const CallOf& node, const Value* caller);
  Arguments arguments_of(const CallArguments& node);
  Value lookup(std::string_view name);

  const Source& source_;
  Runtime& runtime_;
  Variables globals_;
  Builder root_;  // what is not caught by a macro or a block
  Builder* out_;
  Scope* scope_ = nullptr;
  std::optional<Value> block_text_;           // what the filter of a block is applied to
  std::vector<std::shared_ptr<Scope>> kept_;  // those that macros look into
  std::vector<std::pair<std::size_t, std::size_t>> generation_;
  bool in_generation_ = false, generation_lost_ = false;
};

}  // namespace inlay::jinja
