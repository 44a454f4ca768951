#include "ops/attention/rules/parse.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/text.h"

namespace inlay::ops::rules {

namespace {

constexpr std::size_t longest_text = 4096;
constexpr int deepest = 64;

enum class Kind { number, truth };

struct Value {
  Term term;
  Kind kind;
};

struct Function {
  std::string_view name;
  Op op;
};
constexpr std::array functions = {Function{"min", Op::minimum},  Function{"max", Op::maximum},
                                  Function{"abs", Op::absolute}, Function{"floor", Op::floor},
                                  Function{"tanh", Op::tanh},    Function{"exp", Op::exp},
                                  Function{"log", Op::log}};
constexpr std::array variables = {Function{"q", Op::query},        Function{"k", Op::key},
                                  Function{"h", Op::head},         Function{"heads", Op::heads},
                                  Function{"q_doc", Op::document}, Function{"k_doc", Op::document},
                                  Function{"length", Op::length},  Function{"prefix_length", Op::prefix_length},
                                  Function{"bias", Op::bias}};
constexpr auto other_names = std::to_array<std::string_view>(
    {"s", "causal", "window", "document", "prefix", "true", "false", "softcap", "alibi", "head_bias", "where"});
constexpr auto connectives = std::to_array<std::string_view>({"and", "or", "not", "then"});

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Parser {
 public:
  Parser(Expressions& into, std::string_view what, std::string_view text, bool scores)
      : into_(into), what_(what), text_(text), scores_(scores) {
    if (text.size() > longest_text) fail("is longer than {} characters", longest_text);
    if (scores) score_ = into.make(Op::score);
    next();
  }

  Term mask() {
    const Value value = truth(expression());
    end();
    return value.term;
  }

  // Every stage sees the score as the one before it left it.
  Term score() {
    do {
      score_ = number(expression()).term;
    } while (take("then"));
    end();
    return score_;
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    user_error("attention {} \"{}\", column {}: {}", what_, text_.substr(0, 200), begin_ + 1,
               fmt::format(format, std::forward<Args>(args)...));
  }

  // ---- words ----

  void next() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n')) ++at_;
    begin_ = at_;
    if (at_ == text_.size()) {
      word_ = {};
      return;
    }
    const char c = text_[at_];
    if (is_letter(c)) {
      while (at_ < text_.size() && (is_letter(text_[at_]) || is_digit(text_[at_]))) ++at_;
    } else if (is_digit(c) || c == '.') {
      skip_number();
    } else {
      ++at_;
      const char second = at_ < text_.size() ? text_[at_] : '\0';
      if ((std::string_view("<>=!").find(c) != std::string_view::npos && second == '=') ||
          (c == '/' && second == '/')) {
        ++at_;
      }
    }
    word_ = text_.substr(begin_, at_ - begin_);
  }
  void skip_number() {
    const auto digits = [&] {
      while (at_ < text_.size() && (is_digit(text_[at_]) || text_[at_] == '.')) ++at_;
    };
    digits();
    if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
      ++at_;
      if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) ++at_;
      digits();
    }
  }
  bool take(std::string_view word) {
    if (word_ != word || word_.empty()) return false;
    next();
    return true;
  }
  void expect(std::string_view word) {
    if (!take(word)) fail("expected \"{}\", found {}", word, found());
  }
  void end() const {
    if (!word_.empty()) fail("expected an operator or the end, found {}", found());
  }
  std::string found() const { return word_.empty() ? "the end" : fmt::format("\"{}\"", word_); }

  // ---- types ----

  Value number(const Value& value) const {
    if (value.kind != Kind::number) fail("expected a number before this, found what is true or false");
    return value;
  }
  Value truth(const Value& value) const {
    if (value.kind != Kind::truth) fail("expected a comparison or a mask before this, found a number");
    return value;
  }
  Value numeric(Op op, const Value& a, const Value& b) { return {into_.make(op, a.term, b.term), Kind::number}; }

  // ---- grammar ----

  struct Deeper {
    explicit Deeper(Parser& parser) : parser(parser) {
      if (++parser.depth_ > deepest) parser.fail("nested deeper than {}", deepest);
    }
    ~Deeper() { --parser.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;
    Parser& parser;
  };

  Value expression() {
    const Deeper deeper(*this);
    Value left = conjunction();
    while (word_ == "or") {
      truth(left);
      next();
      left.term = into_.either(left.term, truth(conjunction()).term);
    }
    return left;
  }
  Value conjunction() {
    Value left = negation();
    while (word_ == "and") {
      truth(left);
      next();
      left.term = into_.both(left.term, truth(negation()).term);
    }
    return left;
  }
  Value negation() {
    if (word_ != "not") return comparison();
    const Deeper deeper(*this);
    next();
    return {into_.negation(truth(negation()).term), Kind::truth};
  }

  // a < b <= c means a < b and b <= c.
  Value comparison() {
    Value left = sum();
    if (!is_comparison()) return left;
    number(left);
    Value all{into_.truth(true), Kind::truth};
    while (is_comparison()) {
      const std::string_view sign = word_;
      next();
      const Value right = number(sum());
      all.term = into_.both(all.term, compare(sign, left.term, right.term));
      left = right;
    }
    return all;
  }
  bool is_comparison() const {
    return word_ == "<" || word_ == "<=" || word_ == ">" || word_ == ">=" || word_ == "==" || word_ == "!=";
  }
  Term compare(std::string_view sign, Term a, Term b) {
    if (sign == "<") return into_.make(Op::less, a, b);
    if (sign == "<=") return into_.make(Op::less_equal, a, b);
    if (sign == ">") return into_.make(Op::less, b, a);
    if (sign == ">=") return into_.make(Op::less_equal, b, a);
    const Term equal = into_.make(Op::equal, a, b);
    return sign == "==" ? equal : into_.negation(equal);
  }

  Value sum() {
    Value left = product();
    while (word_ == "+" || word_ == "-") {
      const Op op = word_ == "+" ? Op::add : Op::subtract;
      number(left);
      next();
      left = numeric(op, left, number(product()));
    }
    return left;
  }
  Value product() {
    Value left = sign();
    while (word_ == "*" || word_ == "/" || word_ == "//" || word_ == "%") {
      const Op op = word_ == "*"    ? Op::multiply
                    : word_ == "/"  ? Op::divide
                    : word_ == "//" ? Op::floor_divide
                                    : Op::modulo;
      number(left);
      next();
      left = numeric(op, left, number(sign()));
    }
    return left;
  }
  Value sign() {
    if (word_ != "-") return primary();
    const Deeper deeper(*this);
    next();
    return {into_.make(Op::negate, number(sign()).term), Kind::number};
  }

  Value primary() {
    if (word_.empty()) fail("expected a number, a name or \"(\", found the end");
    if (is_digit(word_[0]) || word_[0] == '.') return literal();
    const bool connective = std::find(connectives.begin(), connectives.end(), word_) != connectives.end();
    if (is_letter(word_[0]) && !connective) return named();
    if (take("(")) {
      const Value inner = expression();
      expect(")");
      return inner;
    }
    fail("expected a number, a name or \"(\", found {}", found());
  }

  Value literal() {
    float value = 0;
    const auto [stop, error] = std::from_chars(word_.data(), word_.data() + word_.size(), value);
    if (error != std::errc() || stop != word_.data() + word_.size()) fail("\"{}\" is not a number", word_);
    next();
    return {into_.number(value), Kind::number};
  }

  Value named() {
    const std::string_view name = word_;
    for (const Function& variable : variables) {
      if (name == variable.name) {
        next();
        return {into_.make(variable.op), Kind::number};
      }
    }
    for (const Function& function : functions) {
      if (name == function.name) return call(function.op);
    }
    if (name == "where") return where();
    return scores_ ? score_name(name) : mask_name(name);
  }

  Value call(Op op) {
    next();
    expect("(");
    Value first = number(expression());
    if (arity(op) == 1) {
      expect(")");
      return {into_.make(op, first.term), Kind::number};
    }
    if (word_ != ",") fail("expected \",\" and another number, found {}", found());
    while (take(",")) first = numeric(op, first, number(expression()));
    expect(")");
    return first;
  }
  Value where() {
    next();
    expect("(");
    const Value condition = truth(expression());
    expect(",");
    const Value yes = number(expression());
    expect(",");
    const Value no = number(expression());
    expect(")");
    return {into_.make(Op::select, condition.term, yes.term, no.term), Kind::number};
  }

  // The one number in parentheses that a name wants.
  Term argument() {
    expect("(");
    const Value value = number(expression());
    expect(")");
    return value.term;
  }

  Value mask_name(std::string_view name) {
    if (name == "s") fail("a mask cannot depend on the score s");
    if (take("causal")) return {into_.causal(), Kind::truth};
    if (take("document")) return {into_.document(), Kind::truth};
    if (take("prefix")) return {into_.prefix(), Kind::truth};
    if (take("true")) return {into_.truth(true), Kind::truth};
    if (take("false")) return {into_.truth(false), Kind::truth};
    if (take("window")) return {into_.window(argument()), Kind::truth};
    unknown(name);
  }

  Value score_name(std::string_view name) {
    if (take("s")) return {score_, Kind::number};
    if (take("softcap")) return {into_.softcap(score_, positive("softcap's limit", argument())), Kind::number};
    if (take("alibi")) {
      return {into_.alibi(score_, word_ == "(" ? argument() : into_.alibi_slope()), Kind::number};
    }
    if (take("head_bias")) return {into_.make(Op::add, score_, into_.make(Op::bias)), Kind::number};
    // Masks are good conditions: where(causal, s, s - 1).
    if (name == "causal" || name == "document" || name == "prefix" || name == "true" || name == "false" ||
        name == "window") {
      return mask_name(name);
    }
    unknown(name);
  }

  Term positive(std::string_view what, Term term) const {
    const Node& node = into_[term];
    if (node.op == Op::constant && !(node.value > 0)) fail("{} is {}, expected more than 0", what, node.value);
    return term;
  }

  [[noreturn]] void unknown(std::string_view name) const {
    std::vector<std::string_view> known(other_names.begin(), other_names.end());
    for (const Function& f : functions) known.push_back(f.name);
    for (const Function& f : variables) known.push_back(f.name);
    const std::string near = nearest(name, known);
    if (near.empty()) fail("unknown name \"{}\"", name);
    fail("unknown name \"{}\"; did you mean \"{}\"?", name, near);
  }

  Expressions& into_;
  std::string_view what_, text_, word_;
  std::size_t at_ = 0, begin_ = 0;
  int depth_ = 0;
  bool scores_;
  Term score_ = 0;
};

}  // namespace

Term parse_mask(Expressions& into, std::string_view text) { return Parser(into, "mask", text, false).mask(); }
Term parse_score(Expressions& into, std::string_view text) { return Parser(into, "score", text, true).score(); }

}  // namespace inlay::ops::rules
