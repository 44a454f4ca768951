#include "jinja/expression_parser.h"

#include <algorithm>

namespace inlay::jinja {
namespace {

void deepen(int& depth, const ExpressionPtr& child) {
  if (child != nullptr) depth = std::max(depth, child->depth);
}
void deepen(int& depth, const std::vector<ExpressionPtr>& children) {
  for (const ExpressionPtr& child : children) deepen(depth, child);
}
void deepen(int& depth, const CallArguments& arguments) {
  deepen(depth, arguments.positional);
  for (const auto& [name, value] : arguments.named) deepen(depth, value);
  deepen(depth, arguments.more_positional);
  deepen(depth, arguments.more_named);
}

void deepen(int&, const Literal&) {}
void deepen(int&, const Name&) {}
void deepen(int& depth, const ListDisplay& node) { deepen(depth, node.items); }
void deepen(int& depth, const DictDisplay& node) {
  for (const auto& [key, value] : node.entries) deepen(depth, key), deepen(depth, value);
}
void deepen(int& depth, const AttributeOf& node) { deepen(depth, node.object); }
void deepen(int& depth, const ItemOf& node) { deepen(depth, node.object), deepen(depth, node.key); }
void deepen(int& depth, const SliceOf& node) {
  for (const ExpressionPtr* child : {&node.object, &node.start, &node.stop, &node.step}) deepen(depth, *child);
}
void deepen(int& depth, const CallOf& node) { deepen(depth, node.callee), deepen(depth, node.arguments); }
void deepen(int& depth, const FilterOf& node) { deepen(depth, node.input), deepen(depth, node.arguments); }
void deepen(int& depth, const TestOf& node) { deepen(depth, node.input), deepen(depth, node.arguments); }
void deepen(int& depth, const Unary& node) { deepen(depth, node.operand); }
void deepen(int& depth, const Binary& node) { deepen(depth, node.left), deepen(depth, node.right); }
void deepen(int& depth, const Logical& node) { deepen(depth, node.left), deepen(depth, node.right); }
void deepen(int& depth, const Concatenation& node) { deepen(depth, node.pieces); }
void deepen(int& depth, const ComparisonChain& node) {
  deepen(depth, node.first);
  for (const auto& [comparison, value] : node.rest) deepen(depth, value);
}
void deepen(int& depth, const Conditional& node) {
  for (const ExpressionPtr* child : {&node.condition, &node.value, &node.otherwise}) deepen(depth, *child);
}

std::optional<Comparison> comparison_of(std::string_view symbol) {
  constexpr std::string_view symbols[] = {"==", "!=", "<", "<=", ">", ">="};
  const auto found = std::ranges::find(symbols, symbol);
  if (found == std::end(symbols)) return std::nullopt;
  return static_cast<Comparison>(found - std::begin(symbols));
}

}  // namespace

std::string described(const Token& token) {
  switch (token.kind) {
    case TokenKind::text: return "template data / text";
    case TokenKind::print_begin: return "begin of print statement";
    case TokenKind::print_end: return "end of print statement";
    case TokenKind::tag_begin: return "begin of statement block";
    case TokenKind::tag_end: return "end of statement block";
    case TokenKind::string: return "string";
    case TokenKind::integer: return "integer";
    case TokenKind::real: return "float";
    case TokenKind::end: return "end of template";
    default: return token.text;
  }
}

template <class Node>
ExpressionPtr ExpressionParser::make(std::size_t at, Node node) {
  int depth = 0;
  deepen(depth, node);
  if (depth >= max_expression_depth) fail_at(at, "the expression is too long, or nested too deep");
  return std::make_unique<const Expression>(Expression{at, depth + 1, std::move(node)});
}

bool ExpressionParser::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  next();
  return true;
}

bool ExpressionParser::skip_symbol(std::string_view symbol) {
  if (!current().is_symbol(symbol)) return false;
  next();
  return true;
}

const Token& ExpressionParser::expect(TokenKind kind, std::string_view what) {
  if (current().is(kind)) return next();
  if (current().is(TokenKind::end)) fail(fmt::format("unexpected end of template, expected '{}'.", what));
  fail(fmt::format("expected token '{}', got '{}'", what, described(current())));
}

void ExpressionParser::expect_symbol(std::string_view symbol) {
  if (!skip_symbol(symbol)) expect(TokenKind::text, symbol);  // which it is not
}

void ExpressionParser::expect_name(std::string_view name) {
  if (!skip_name(name)) expect(TokenKind::text, name);
}

bool ExpressionParser::at_tuple_end(std::string_view extra_end) const {
  return current().is(TokenKind::print_end) || current().is(TokenKind::tag_end) || current().is_symbol(")") ||
         (!extra_end.empty() && current().is_name(extra_end));
}

ExpressionPtr ExpressionParser::tuple_or_expression(bool with_if, std::string_view extra_end) {
  const std::size_t at = current().at;
  if (at_tuple_end(extra_end)) fail(fmt::format("Expected an expression, got '{}'", described(current())));
  ExpressionPtr first = with_if ? expression() : expression_without_if();
  if (!current().is_symbol(",")) return first;
  ListDisplay tuple{.items = {}, .tuple = true};
  tuple.items.push_back(std::move(first));
  while (skip_symbol(",") && !at_tuple_end(extra_end)) {
    tuple.items.push_back(with_if ? expression() : expression_without_if());
  }
  return make(at, std::move(tuple));
}

ExpressionPtr ExpressionParser::conditional() {
  const Nested nested(*this);
  const std::size_t unknown = unknown_.size();
  ExpressionPtr value = disjunction();
  while (current().is_name("if")) {
    const std::size_t at = next().at;
    ExpressionPtr condition = disjunction(), otherwise;
    if (skip_name("else")) otherwise = conditional();
    unknown_.resize(unknown);
    value = make(at, Conditional{std::move(condition), std::move(value), std::move(otherwise), source_.line_of(at)});
  }
  return value;
}

ExpressionPtr ExpressionParser::disjunction() {
  ExpressionPtr left = conjunction();
  while (current().is_name("or")) {
    const std::size_t at = next().at;
    ExpressionPtr right = conjunction();
    left = make(at, Logical{false, std::move(left), std::move(right)});
  }
  return left;
}

ExpressionPtr ExpressionParser::conjunction() {
  ExpressionPtr left = negation();
  while (current().is_name("and")) {
    const std::size_t at = next().at;
    ExpressionPtr right = negation();
    left = make(at, Logical{true, std::move(left), std::move(right)});
  }
  return left;
}

ExpressionPtr ExpressionParser::negation() {
  if (!current().is_name("not")) return comparison();
  const Nested nested(*this);
  const std::size_t at = next().at;
  return make(at, Unary{Unary::Operation::invert, negation()});
}

std::optional<Comparison> ExpressionParser::take_comparison() {
  if (current().is(TokenKind::symbol)) {
    const auto comparison = comparison_of(current().text);
    if (comparison) next();
    return comparison;
  }
  if (skip_name("in")) return Comparison::in;
  if (current().is_name("not") && following().is_name("in")) {
    next();
    next();
    return Comparison::not_in;
  }
  return std::nullopt;
}

ExpressionPtr ExpressionParser::comparison() {
  ExpressionPtr first = sum();
  const std::size_t at = current().at;
  std::vector<std::pair<Comparison, ExpressionPtr>> rest;
  while (const auto comparison = take_comparison()) rest.emplace_back(*comparison, sum());
  return rest.empty() ? std::move(first) : make(at, ComparisonChain{std::move(first), std::move(rest)});
}

ExpressionPtr ExpressionParser::sum() {
  ExpressionPtr left = concatenation();
  while (current().is_symbol("+") || current().is_symbol("-")) {
    const auto operation = current().text == "+" ? Arithmetic::add : Arithmetic::subtract;
    const std::size_t at = next().at;
    ExpressionPtr right = concatenation();
    left = make(at, Binary{operation, std::move(left), std::move(right)});
  }
  return left;
}

ExpressionPtr ExpressionParser::concatenation() {
  ExpressionPtr first = product();
  if (!current().is_symbol("~")) return first;
  const std::size_t at = current().at;
  Concatenation pieces;
  pieces.pieces.push_back(std::move(first));
  while (skip_symbol("~")) pieces.pieces.push_back(product());
  return make(at, std::move(pieces));
}

ExpressionPtr ExpressionParser::product() {
  ExpressionPtr left = power();
  for (;;) {
    std::optional<Arithmetic> operation;
    if (current().is_symbol("*")) operation = Arithmetic::multiply;
    if (current().is_symbol("/")) operation = Arithmetic::divide;
    if (current().is_symbol("//")) operation = Arithmetic::floor_divide;
    if (current().is_symbol("%")) operation = Arithmetic::modulo;
    if (!operation) return left;
    const std::size_t at = next().at;
    ExpressionPtr right = power();
    left = make(at, Binary{*operation, std::move(left), std::move(right)});
  }
}

// To the left, unlike Python: 2 ** 3 ** 2 is 64.
ExpressionPtr ExpressionParser::power() {
  ExpressionPtr left = unary(true);
  while (current().is_symbol("**")) {
    const std::size_t at = next().at;
    ExpressionPtr right = unary(true);
    left = make(at, Binary{Arithmetic::power, std::move(left), std::move(right)});
  }
  return left;
}

ExpressionPtr ExpressionParser::unary(bool with_filters) {
  const Nested nested(*this);
  ExpressionPtr value;
  if (current().is_symbol("-") || current().is_symbol("+")) {
    const auto operation = current().text == "-" ? Unary::Operation::negate : Unary::Operation::affirm;
    const std::size_t at = next().at;
    value = make(at, Unary{operation, unary(false)});
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  return with_filters ? filters_and_tests(std::move(value)) : std::move(value);
}

ExpressionPtr ExpressionParser::primary() {
  const Token& token = current();
  switch (token.kind) {
    case TokenKind::name: return name_or_constant();
    case TokenKind::integer:
    case TokenKind::real: return make(token.at, Literal{next().value});
    case TokenKind::string: {
      std::string text;
      while (current().is(TokenKind::string)) text += next().text;
      return make(token.at, Literal{make_string(nullptr, std::move(text))});
    }
    default: break;
  }
  if (token.is_symbol("(")) return parenthesized();
  if (token.is_symbol("[")) return list_display();
  if (token.is_symbol("{")) return dict_display();
  if (token.is(TokenKind::end)) fail("unexpected end of template");
  fail(fmt::format("unexpected '{}'", described(token)));
}

ExpressionPtr ExpressionParser::name_or_constant() {
  const Token& token = next();
  const std::string& name = token.text;
  if (name == "true" || name == "True") return make(token.at, Literal{Value::boolean(true)});
  if (name == "false" || name == "False") return make(token.at, Literal{Value::boolean(false)});
  if (name == "none" || name == "None") return make(token.at, Literal{Value()});
  met_caller_ = met_caller_ || name == "caller";
  met_varargs_ = met_varargs_ || name == "varargs";
  met_kwargs_ = met_kwargs_ || name == "kwargs";
  return make(token.at, Name{name});
}

ExpressionPtr ExpressionParser::parenthesized() {
  const std::size_t at = next().at;
  if (skip_symbol(")")) return make(at, ListDisplay{.items = {}, .tuple = true});
  ExpressionPtr value = tuple_or_expression();
  expect_symbol(")");
  return value;
}

ExpressionPtr ExpressionParser::list_display() {
  const std::size_t at = next().at;
  ListDisplay list;
  while (!current().is_symbol("]")) {
    if (!list.items.empty()) {
      expect_symbol(",");
      if (current().is_symbol("]")) break;
    }
    list.items.push_back(expression());
  }
  expect_symbol("]");
  return make(at, std::move(list));
}

ExpressionPtr ExpressionParser::dict_display() {
  const std::size_t at = next().at;
  DictDisplay dict;
  while (!current().is_symbol("}")) {
    if (!dict.entries.empty()) {
      expect_symbol(",");
      if (current().is_symbol("}")) break;
    }
    ExpressionPtr key = expression();
    expect_symbol(":");
    dict.entries.emplace_back(std::move(key), expression());
  }
  expect_symbol("}");
  return make(at, std::move(dict));
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr value) {
  for (;;) {
    if (current().is_symbol(".")) {
      value = attribute_of(std::move(value));
    } else if (current().is_symbol("[")) {
      value = subscript_of(std::move(value));
    } else if (current().is_symbol("(")) {
      value = call_of(std::move(value));
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::filters_and_tests(ExpressionPtr value) {
  for (;;) {
    if (current().is_symbol("|")) {
      value = filter_chain(std::move(value), false);
    } else if (current().is_name("is")) {
      value = test_of(std::move(value));
    } else if (current().is_symbol("(")) {
      value = call_of(std::move(value));
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::attribute_of(ExpressionPtr object) {
  next();
  const Token& token = next();
  if (token.is(TokenKind::name)) return make(token.at, AttributeOf{std::move(object), token.text});
  if (!token.is(TokenKind::integer)) fail_at(token.at, "expected name or number");
  return make(token.at, ItemOf{std::move(object), make(token.at, Literal{token.value})});
}

ExpressionPtr ExpressionParser::subscript_of(ExpressionPtr object) {
  const std::size_t at = next().at;
  if (current().is_symbol(":")) return slice_of(std::move(object), nullptr, at);
  ListDisplay keys{.items = {}, .tuple = true};
  while (!current().is_symbol("]")) {
    if (!keys.items.empty()) expect_symbol(",");
    keys.items.push_back(expression());
    if (!current().is_symbol(":")) continue;
    if (keys.items.size() > 1) fail("a slice among several keys is not supported");
    return slice_of(std::move(object), std::move(keys.items[0]), at);
  }
  expect_symbol("]");
  ExpressionPtr key = keys.items.size() == 1 ? std::move(keys.items[0]) : make(at, std::move(keys));
  return make(at, ItemOf{std::move(object), std::move(key)});
}

ExpressionPtr ExpressionParser::slice_of(ExpressionPtr object, ExpressionPtr start, std::size_t at) {
  const auto bound = [&]() -> ExpressionPtr {
    return current().is_symbol(":") || current().is_symbol("]") ? nullptr : expression();
  };
  expect_symbol(":");
  ExpressionPtr stop = bound(), step;
  if (skip_symbol(":")) step = bound();
  if (current().is_symbol(",")) fail("a slice among several keys is not supported");
  expect_symbol("]");
  return make(at, SliceOf{std::move(object), std::move(start), std::move(stop), std::move(step)});
}

CallArguments ExpressionParser::call_arguments() {
  const std::size_t at = current().at;
  expect_symbol("(");
  CallArguments arguments;
  const auto ensure = [&](bool right) {
    if (!right) fail_at(at, "invalid syntax for function call expression");
  };
  for (bool first = true; !current().is_symbol(")"); first = false) {
    if (!first) {
      expect_symbol(",");
      if (current().is_symbol(")")) break;
    }
    const bool starred = arguments.more_positional != nullptr, twice_starred = arguments.more_named != nullptr;
    if (skip_symbol("*")) {
      ensure(!starred && !twice_starred);
      arguments.more_positional = expression();
    } else if (skip_symbol("**")) {
      ensure(!twice_starred);
      arguments.more_named = expression();
    } else if (current().is(TokenKind::name) && following().is_symbol("=")) {
      ensure(!twice_starred);
      std::string name = next().text;
      next();
      const auto same = [&](const auto& given) { return given.first == name; };
      if (std::ranges::any_of(arguments.named, same)) fail(fmt::format("the argument '{}' is given twice", name));
      arguments.named.emplace_back(std::move(name), expression());
    } else {
      ensure(!starred && !twice_starred && arguments.named.empty());
      arguments.positional.push_back(expression());
    }
  }
  expect_symbol(")");
  return arguments;
}

ExpressionPtr ExpressionParser::call_of(ExpressionPtr callee) {
  const std::size_t at = callee->at;
  CallArguments arguments = call_arguments();
  return make(at, CallOf{std::move(callee), std::move(arguments)});
}

std::string ExpressionParser::dotted_name() {
  std::string name = expect(TokenKind::name, "name").text;
  while (skip_symbol(".")) name += "." + expect(TokenKind::name, "name").text;
  return name;
}

ExpressionPtr ExpressionParser::filter_chain(ExpressionPtr input, bool begins_with_name) {
  for (; begins_with_name || current().is_symbol("|"); begins_with_name = false) {
    if (!begins_with_name) next();
    const std::size_t at = current().at;
    std::string name = dotted_name();
    const Filter filter = find_filter(name);
    if (filter == nullptr) unknown_.push_back({at, fmt::format("No filter named '{}'.", name)});
    CallArguments arguments;
    if (current().is_symbol("(")) arguments = call_arguments();
    input = make(at, FilterOf{std::move(input), std::move(name), filter, std::move(arguments)});
  }
  return input;
}

ExpressionPtr ExpressionParser::test_of(ExpressionPtr input) {
  next();
  const std::size_t negation = current().at;
  const bool negated = skip_name("not");
  const std::size_t at = current().at;
  std::string name = dotted_name();
  const Test test = find_test(name);
  if (test == nullptr) unknown_.push_back({at, fmt::format("No test named '{}'.", name)});
  CallArguments arguments;
  const Token& token = current();
  const bool value = token.is(TokenKind::name) || token.is(TokenKind::string) || token.is(TokenKind::integer) ||
                     token.is(TokenKind::real) || token.is_symbol("[") || token.is_symbol("{");
  if (token.is_symbol("(")) {
    arguments = call_arguments();
  } else if (value && !token.is_name("else") && !token.is_name("or") && !token.is_name("and")) {
    if (token.is_name("is")) fail("You cannot chain multiple tests with is");
    const Nested nested(*this);
    arguments.positional.push_back(postfix(primary()));
  }
  ExpressionPtr result = make(at, TestOf{std::move(input), std::move(name), test, std::move(arguments)});
  return negated ? make(negation, Unary{Unary::Operation::invert, std::move(result)}) : std::move(result);
}

}  // namespace inlay::jinja
