#pragma once

#include "jinja/ast.h"
#include "jinja/lexer.h"

namespace inlay::jinja {

// Reads expressions off the tokens of a template, with Jinja's grammar: a method a rule.
class ExpressionParser {
 public:
  explicit ExpressionParser(const Source& source) : source_(source), tokens_(tokenize(source)) {}

 protected:
  static constexpr int max_depth = 200;             // of brackets and blocks: what is read by recursion
  static constexpr int max_expression_depth = 400;  // of operations: a + b + c + ... goes one deeper with each

  // One level deeper, for as long as it lives.
  class Nested {
   public:
    explicit Nested(ExpressionParser& parser) : parser_(parser) {
      if (++parser_.depth_ > max_depth) parser_.fail(fmt::format("nested more than {} levels deep", max_depth));
    }
    ~Nested() { --parser_.depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    ExpressionParser& parser_;
  };

  const Token& current() const { return tokens_[at_]; }
  const Token& following() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool skip_name(std::string_view name);
  bool skip_symbol(std::string_view symbol);
  const Token& expect(TokenKind kind, std::string_view what);
  void expect_symbol(std::string_view symbol);
  void expect_name(std::string_view name);
  [[noreturn]] void fail(const std::string& message) const { source_.fail(current().at, message); }
  [[noreturn]] void fail_at(std::size_t at, const std::string& message) const { source_.fail(at, message); }
  const Source& source() const { return source_; }

  ExpressionPtr expression() { return conditional(); }
  ExpressionPtr expression_without_if() { return disjunction(); }
  // Expressions with commas between them are a tuple. extra_end: a name that ends it as well.
  ExpressionPtr tuple_or_expression(bool with_if = true, std::string_view extra_end = {});
  ExpressionPtr filter_chain(ExpressionPtr input, bool begins_with_name);
  ExpressionPtr call_of(ExpressionPtr callee);

  // Filters and tests that there are not. Behind an if, that is an error only when it is reached; so those who read an
  // if drop what has come together inside it.
  struct Unknown {
    std::size_t at;
    std::string message;
  };
  std::vector<Unknown> unknown_;
  // Which of the names that a macro may be handed without asking for them have been met.
  bool met_caller_ = false, met_varargs_ = false, met_kwargs_ = false;

 private:
  template <class Node>
  ExpressionPtr make(std::size_t at, Node node);
  ExpressionPtr conditional();
  ExpressionPtr disjunction();
  ExpressionPtr conjunction();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filters);
  ExpressionPtr primary();
  ExpressionPtr name_or_constant();
  ExpressionPtr parenthesized();
  ExpressionPtr list_display();
  ExpressionPtr dict_display();
  ExpressionPtr postfix(ExpressionPtr value);
  ExpressionPtr filters_and_tests(ExpressionPtr value);
  ExpressionPtr attribute_of(ExpressionPtr object);
  ExpressionPtr subscript_of(ExpressionPtr object);
  ExpressionPtr slice_of(ExpressionPtr object, ExpressionPtr start, std::size_t at);
  ExpressionPtr test_of(ExpressionPtr input);
  CallArguments call_arguments();
  std::string dotted_name();
  bool at_tuple_end(std::string_view extra_end) const;
  std::optional<Comparison> take_comparison();

  const Source& source_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

// How a token is called in a message.
std::string described(const Token& token);

}  // namespace inlay::jinja
