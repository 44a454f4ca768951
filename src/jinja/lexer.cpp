#include "jinja/lexer.h"

#include <algorithm>
#include <array>

#include "jinja/literals.h"
#include "jinja/unicode.h"

namespace inlay::jinja {
namespace {

constexpr std::array<std::string_view, 26> symbols = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                      "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                      ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};

bool is_name_start(char32_t point) { return point == '_' || is_alphabetic(point); }
bool is_name_part(char32_t point) { return is_name_start(point) || is_decimal(point); }

class Lexer {
 public:
  explicit Lexer(const Source& source) : source_(source), text_(source.text()) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) text_and_tag();
    add(TokenKind::end, at_, "");
    return std::move(tokens_);
  }

 private:
  void add(TokenKind kind, std::size_t at, std::string text, Value value = {}) {
    tokens_.push_back({kind, at, std::move(text), std::move(value)});
  }
  bool looking_at(std::string_view wanted) const { return text_.substr(at_).starts_with(wanted); }
  bool take(std::string_view wanted) {
    if (!looking_at(wanted)) return false;
    at_ += wanted.size();
    return true;
  }
  void skip_spaces() {
    while (at_ < text_.size()) {
      std::size_t next = at_;
      if (!is_space(decode(text_, next))) return;
      at_ = next;
    }
  }
  // + keeps spaces that would go, - takes those that would stay.
  char take_sign() {
    const char sign = at_ < text_.size() ? text_[at_] : '\0';
    if (sign != '-' && sign != '+') return '\0';
    ++at_;
    return sign;
  }

  // The text before a tag, less the spaces that the tag takes away: with -, all of them; otherwise, unless the tag
  // prints, those between the beginning of its line and itself.
  void add_text(std::size_t begin, std::size_t end, char sign, bool prints) {
    std::string_view text = text_.substr(begin, end - begin);
    if (sign == '-') {
      while (!text.empty()) {
        std::size_t last = text.size();
        if (!is_space(decode_back(text, last))) break;
        text = text.substr(0, last);
      }
    } else if (sign != '+' && !prints) {
      const std::size_t newline = text.rfind('\n'), line = newline == std::string_view::npos ? 0 : newline + 1;
      std::size_t at = line;
      bool blank = true;
      while (blank && at < text.size()) blank = is_space(decode(text, at));
      if (blank && (line > 0 || line_starting_)) text = text.substr(0, line);
    }
    if (!text.empty()) add(TokenKind::text, begin, std::string(text));
  }

  // The end of a tag: -%} takes all spaces behind it, %} one newline, +%} nothing. A print has no newline to take.
  bool take_end(std::string_view end, bool trims) {
    const char sign = text_[at_];
    const std::size_t signs = sign == '-' || (sign == '+' && trims) ? 1 : 0;
    if (!text_.substr(at_ + signs).starts_with(end)) return false;
    at_ += signs + end.size();
    if (sign == '-') {
      skip_spaces();
    } else if (trims && signs == 0) {
      take("\n");
    }
    line_starting_ = text_[at_ - 1] == '\n';
    return true;
  }

  void text_and_tag() {
    const std::size_t begin = at_;
    std::size_t tag = begin;
    for (;; ++tag) {
      tag = text_.find('{', tag);
      if (tag == std::string_view::npos || tag + 1 == text_.size()) {
        add(TokenKind::text, begin, std::string(text_.substr(begin)));
        at_ = text_.size();
        return;
      }
      if (text_[tag + 1] == '{' || text_[tag + 1] == '%' || text_[tag + 1] == '#') break;
    }
    at_ = tag + 2;
    const char kind = text_[tag + 1], sign = take_sign();
    add_text(begin, tag, sign, kind == '{');
    if (kind == '#') {
      comment(tag);
    } else if (kind == '%' && take_raw()) {
      raw(tag);
    } else if (kind == '%') {
      add(TokenKind::tag_begin, tag, "{%");
      code("%}", TokenKind::tag_end);
    } else {
      add(TokenKind::print_begin, tag, "{{");
      code("}}", TokenKind::print_end);
    }
  }

  void comment(std::size_t tag) {
    const std::size_t close = text_.find("#}", at_);
    if (close == std::string_view::npos) source_.fail(tag, "Missing end of comment tag");
    const bool signed_end = close > at_ && (text_[close - 1] == '-' || text_[close - 1] == '+');
    at_ = signed_end ? close - 1 : close;
    take_end("#}", true);
  }

  // A tag of one word, of which the beginning has been read; false, and nothing taken, where it is another.
  bool take_word_tag(std::string_view word, bool trims) {
    const std::size_t begin = at_;
    skip_spaces();
    if (take(word)) {
      skip_spaces();
      if (at_ < text_.size() && take_end("%}", trims)) return true;
    }
    at_ = begin;
    return false;
  }
  bool take_raw() { return take_word_tag("raw", false); }

  void raw(std::size_t tag) {
    const std::size_t begin = at_;
    const bool line_starting = line_starting_;
    for (std::size_t end = begin; (end = text_.find("{%", end)) != std::string_view::npos; ++end) {
      at_ = end + 2;
      const char sign = take_sign();
      if (!take_word_tag("endraw", true)) continue;
      const bool after = std::exchange(line_starting_, line_starting);
      add_text(begin, end, sign, false);
      line_starting_ = after;
      return;
    }
    source_.fail(tag, "Missing end of raw directive");
  }

  void code(std::string_view end, TokenKind end_kind) {
    std::string open;  // brackets that are to be closed
    while (at_ < text_.size()) {
      const std::size_t begin = at_;
      if (open.empty() && take_end(end, end_kind == TokenKind::tag_end)) {
        add(end_kind, begin, std::string(end));
        return;
      }
      skip_spaces();
      if (at_ == begin) token(open);
    }
  }

  void token(std::string& open) {
    const std::size_t begin = at_;
    const char c = text_[at_];
    if (c >= '0' && c <= '9') {
      const Number number = read_number(text_, at_);
      if (!number.value) source_.fail(begin, "the integer is too large");
      add(number.real ? TokenKind::real : TokenKind::integer, begin, std::string(text_.substr(begin, at_ - begin)),
          *number.value);
      return;
    }
    if (c == '\'' || c == '"') return string();
    std::size_t next = at_;
    if (is_name_start(decode(text_, next))) {
      while (at_ = next, next < text_.size() && is_name_part(decode(text_, next))) {
      }
      add(TokenKind::name, begin, std::string(text_.substr(begin, at_ - begin)));
      return;
    }
    for (const std::string_view symbol : symbols) {
      if (!take(symbol)) continue;
      balance(open, symbol[0], begin);
      add(TokenKind::symbol, begin, std::string(symbol));
      return;
    }
    source_.fail(begin, fmt::format("unexpected char '{}'", text_.substr(begin, next - begin)));
  }

  void balance(std::string& open, char bracket, std::size_t at) const {
    constexpr std::string_view opening = "([{", closing = ")]}";
    if (const std::size_t kind = opening.find(bracket); kind != std::string_view::npos) open += closing[kind];
    if (closing.find(bracket) == std::string_view::npos) return;
    if (open.empty()) source_.fail(at, fmt::format("unexpected '{}'", bracket));
    if (open.back() != bracket) {
      source_.fail(at, fmt::format("unexpected '{}', expected '{}'", bracket, open.back()));
    }
    open.pop_back();
  }

  void string() {
    const std::size_t begin = at_;
    const char quote = text_[at_++];
    while (at_ < text_.size() && text_[at_] != quote) at_ += text_[at_] == '\\' ? 2 : 1;
    if (at_ >= text_.size()) source_.fail(begin, fmt::format("unexpected char '{}'", quote));
    const std::string_view inside = text_.substr(begin + 1, at_ - begin - 1);
    ++at_;
    try {
      add(TokenKind::string, begin, unescaped(inside));
    } catch (const Failure& failure) {
      source_.fail(begin + 1 + failure.at.value_or(0), failure.message);
    }
  }

  const Source& source_;
  std::string_view text_;
  std::size_t at_ = 0;
  bool line_starting_ = true;  // the last thing read ended a line
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(const Source& source) { return Lexer(source).run(); }

}  // namespace inlay::jinja
