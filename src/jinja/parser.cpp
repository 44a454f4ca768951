#include "jinja/parser.h"

#include <algorithm>
#include <initializer_list>

#include "jinja/expression_parser.h"

namespace inlay::jinja {
namespace {

using Names = std::initializer_list<std::string_view>;

class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Block run() {
    Block body = statements({});
    if (!unknown_.empty()) fail_at(unknown_.front().at, unknown_.front().message);
    return body;
  }

 private:
  // Everything up to a tag of one of the names, which is left as the current token; or up to the end.
  Block statements(Names ends) {
    const Nested nested(*this);
    Block block;
    while (!current().is(TokenKind::end)) {
      const Token& token = next();
      if (token.is(TokenKind::text)) {
        block.push_back({token.at, Text{token.text}});
      } else if (token.is(TokenKind::print_begin)) {
        block.push_back({current().at, Print{tuple_or_expression()}});
        expect(TokenKind::print_end, "end of print statement");
      } else {
        const auto ends_here = [&](std::string_view name) { return current().is_name(name); };
        if (std::ranges::any_of(ends, ends_here)) return block;
        block.push_back(statement());
        expect(TokenKind::tag_end, "end of statement block");
      }
    }
    if (ends.size() > 0) fail_end(ends);
    return block;
  }

  // The body of a tag, from the end of the tag on. The name that ends it is taken.
  Block body(std::string_view end) {
    Block block = body_until({end});
    next();
    return block;
  }
  Block body_until(Names ends) {
    skip_symbol(":");
    expect(TokenKind::tag_end, "end of statement block");
    return statements(ends);
  }

  [[noreturn]] void fail_end(Names ends) const {
    std::string wanted;
    for (const std::string_view end : ends) wanted += fmt::format("{}'{}'", wanted.empty() ? "" : " or ", end);
    const Token& open = *open_.back();
    fail_at(open.at, fmt::format("Unexpected end of template: the block '{}' that begins here is not closed by {}.",
                                 open.text, wanted));
  }

  Statement statement() {
    const Token& tag = current();
    if (!tag.is(TokenKind::name)) fail("tag name expected");
    open_.push_back(&tag);
    Statement result{tag.at, statement_of(tag.text)};
    open_.pop_back();
    return result;
  }

  Statement::Node statement_of(const std::string& name) {
    if (name == "if") return if_statement();
    if (name == "for") return for_statement();
    if (name == "set") return set_statement();
    if (name == "macro") return macro();
    if (name == "generation") return generation();
    if (name == "break" || name == "continue") return loop_control();
    if (name == "call") return call_block();
    if (name == "filter") return filter_block();
    if (name == "with") return with_statement();
    if (name == "print") return print_statement();
    for (const std::string_view other : {"autoescape", "block", "extends", "from", "import", "include"}) {
      if (name == other) fail(fmt::format("the tag '{}' is not supported in chat templates", name));
    }
    fail_unknown(name);
  }

  [[noreturn]] void fail_unknown(const std::string& name) const {
    std::string message = fmt::format("Encountered unknown tag '{}'.", name);
    if (open_.size() > 1) {
      message += fmt::format(" The innermost block that needs to be closed is '{}'.", open_[open_.size() - 2]->text);
    }
    fail(message);
  }

  If if_statement() {
    const std::size_t unknown = unknown_.size();
    If result;
    for (;;) {
      next();  // if, elif
      ExpressionPtr condition = tuple_or_expression(false);
      result.branches.push_back({std::move(condition), body_until({"elif", "else", "endif"})});
      if (current().is_name("elif")) continue;
      if (next().text == "else") result.branches.push_back({nullptr, body("endif")});
      unknown_.resize(unknown);
      return result;
    }
  }

  For for_statement() {
    next();
    ++loops_;
    For result{.target = target_list("in", false)};
    expect_name("in");
    result.items = tuple_or_expression(false, "recursive");
    if (skip_name("if")) result.condition = expression();
    if (current().is_name("recursive")) fail("recursive loops are not supported");
    result.body = body_until({"endfor", "else"});
    --loops_;
    if (next().text == "else") result.otherwise = body("endfor");
    return result;
  }

  Statement::Node set_statement() {
    next();
    Target target = target_list({}, true);
    if (skip_symbol("=")) return Set{std::move(target), tuple_or_expression()};
    ExpressionPtr filter = current().is_symbol("|") ? filter_chain(nullptr, false) : nullptr;
    SetBlock result{std::move(target), std::move(filter), {}};
    result.body = body("endset");
    return result;
  }

  // What a definition of a macro, or of the body of a call, looks at besides its parameters.
  Block macro_body(MacroDefinition& definition, std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    const bool caller = std::exchange(met_caller_, false), varargs = std::exchange(met_varargs_, false),
               kwargs = std::exchange(met_kwargs_, false);
    Block block = body(end);
    const auto has = [&](std::string_view name) {
      return std::ranges::any_of(definition.parameters, [&](const auto& parameter) { return parameter.name == name; });
    };
    definition.uses_caller = met_caller_ && !has("caller");
    definition.uses_varargs = met_varargs_ && !has("varargs");
    definition.uses_kwargs = met_kwargs_ && !has("kwargs");
    met_caller_ = met_caller_ || caller;
    met_varargs_ = met_varargs_ || varargs;
    met_kwargs_ = met_kwargs_ || kwargs;
    loops_ = loops;
    return block;
  }

  void signature(MacroDefinition& definition) {
    expect_symbol("(");
    while (!current().is_symbol(")")) {
      if (!definition.parameters.empty()) expect_symbol(",");
      std::string name = name_to_assign().name;
      ExpressionPtr otherwise;
      if (skip_symbol("=")) {
        otherwise = expression();
      } else if (!definition.parameters.empty() && definition.parameters.back().otherwise != nullptr) {
        fail("non-default argument follows default argument");
      }
      definition.parameters.push_back({std::move(name), std::move(otherwise)});
    }
    expect_symbol(")");
  }

  std::unique_ptr<MacroDefinition> macro() {
    next();
    auto result = std::make_unique<MacroDefinition>();
    result->name = name_to_assign().name;
    signature(*result);
    result->body = macro_body(*result, "endmacro");
    return result;
  }

  std::unique_ptr<CallBlock> call_block() {
    const std::size_t at = next().at;
    auto result = std::make_unique<CallBlock>();
    result->caller.name = "caller";
    if (current().is_symbol("(")) signature(result->caller);
    result->call = expression();
    if (!std::holds_alternative<CallOf>(result->call->node)) fail_at(at, "expected call");
    result->caller.body = macro_body(result->caller, "endcall");
    return result;
  }

  Generation generation() {
    next();
    const int loops = std::exchange(loops_, 0);
    Generation result{body("endgeneration")};
    loops_ = loops;
    return result;
  }

  Statement::Node loop_control() {
    if (loops_ == 0) fail(fmt::format("'{}' outside loop", current().text));
    if (next().text == "break") return Break{};
    return Continue{};
  }

  FilterBlock filter_block() {
    next();
    FilterBlock result{filter_chain(nullptr, true), {}};
    result.body = body("endfilter");
    return result;
  }

  With with_statement() {
    next();
    With result;
    while (!current().is(TokenKind::tag_end)) {
      if (!result.values.empty()) expect_symbol(",");
      Target target = target_list({}, false);
      expect_symbol("=");
      result.values.emplace_back(std::move(target), expression());
    }
    result.body = body("endwith");
    return result;
  }

  Print print_statement() {
    next();
    Print result{expression()};
    if (current().is_symbol(",")) fail("print with several values is not supported");
    return result;
  }

  Target name_to_assign() {
    const Token& token = expect(TokenKind::name, "name");
    for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
      if (token.text == constant) fail_at(token.at, fmt::format("can't assign to '{}'", constant));
    }
    if (loops_ > 0 && token.text == "loop")
      fail_at(token.at, "Can't assign to special loop variable in for-loop target");
    return {token.at, token.text, "", {}};
  }

  // One target, or several with commas between them. Attributes of namespaces only where they are asked for.
  Target target_list(std::string_view extra_end, bool attributes) {
    const std::size_t at = current().at;
    std::vector<Target> targets;
    bool several = false;
    const auto ends = [&] {
      return current().is_symbol("=") || current().is_symbol(")") || current().is(TokenKind::tag_end) ||
             (!extra_end.empty() && current().is_name(extra_end));
    };
    while (!ends()) {
      targets.push_back(one_target(attributes));
      if (!skip_symbol(",")) break;
      several = true;
    }
    if (targets.empty()) fail(fmt::format("Expected an expression, got '{}'", described(current())));
    if (!several) return std::move(targets[0]);
    return {at, "", "", std::move(targets)};
  }

  Target one_target(bool attributes) {
    const Nested nested(*this);
    if (current().is_symbol("(") || current().is_symbol("[")) {
      if (current().text == "[") fail("can't assign to 'list'");
      next();
      Target inner = target_list({}, attributes);
      expect_symbol(")");
      return inner;
    }
    if (!current().is(TokenKind::name)) fail(fmt::format("can't assign to '{}'", described(current())));
    Target target = name_to_assign();
    if (attributes && skip_symbol(".")) target.attribute = expect(TokenKind::name, "name").text;
    return target;
  }

  std::vector<const Token*> open_;  // tags that are being read
  int loops_ = 0;                   // that break and continue can leave
};

}  // namespace

Block parse(const Source& source) { return Parser(source).run(); }

}  // namespace inlay::jinja
