#include "data/tokenizer/onig_syntax.h"

#include <fmt/format.h>

#include <cctype>

namespace inlay::data::tokenizer {

namespace {

// Oniguruma's \w, as members of a class. PCRE2's own leaves out the marks, and its \s has U+180E.
constexpr std::string_view word = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}";

class Rewriter {
 public:
  Rewriter(const io::Json& json, std::string_view source) : json_(json), rest_(source) {}

  std::string run() {
    while (!rest_.empty()) {
      if (rest_[0] == '\\') {
        escape();
      } else if (in_class_) {
        inside_class();
      } else {
        outside();
      }
    }
    return out_;
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    json_.fail(fmt::format("{} is not supported in a regular expression", what));
  }

  void copy(std::size_t count) {
    out_.append(rest_.substr(0, count));
    rest_.remove_prefix(count);
  }
  void replace(std::size_t count, std::string_view by) {
    out_.append(by);
    rest_.remove_prefix(count);
  }

  void escape() {
    if (rest_.size() < 2) refuse("a \\ at the end");
    switch (rest_[1]) {
      case 's': return replace(2, "\\p{White_Space}");
      case 'S': return replace(2, "\\P{White_Space}");
      case 'w': return replace(2, in_class_ ? std::string(word) : fmt::format("[{}]", word));
      case 'W':
        if (in_class_) refuse("\\W inside [...]");
        return replace(2, fmt::format("[^{}]", word));
      case 'h':
      case 'H': refuse("\\h (a hexadecimal digit for one library, a space for another)");
      case 'u': return unicode_escape();
      default: copy(2);
    }
  }

  void unicode_escape() {
    std::size_t digits = 0;
    while (digits < 4 && 2 + digits < rest_.size() && std::isxdigit(static_cast<unsigned char>(rest_[2 + digits]))) {
      ++digits;
    }
    if (digits != 4) refuse("\\u without four hexadecimal digits");
    replace(6, fmt::format("\\x{{{}}}", rest_.substr(2, 4)));
  }

  void inside_class() {
    if (rest_.starts_with("&&")) refuse("&& inside [...]");
    if (rest_.starts_with("[:")) {
      const std::size_t end = rest_.find(":]");
      if (end == rest_.npos) refuse("[: without :]");
      return copy(end + 2);
    }
    if (rest_[0] == '[') refuse("[ inside [...]");
    if (rest_[0] == ']') in_class_ = false;
    copy(1);
  }

  void outside() {
    if (rest_[0] == '[') {
      in_class_ = true;
      copy(rest_.starts_with("[^") ? 2 : 1);
      if (rest_.starts_with(']')) copy(1);  // first in a class it stands for itself
    } else if (rest_.starts_with("(?")) {
      group();
    } else if (rest_[0] == '{') {
      interval();
    } else {
      copy(1);
    }
  }

  // Options: i means the same to both; Ruby's m is Perl's s.
  void group() {
    std::size_t end = 2;
    while (end < rest_.size() && (std::isalpha(static_cast<unsigned char>(rest_[end])) || rest_[end] == '-')) ++end;
    const std::string_view letters = rest_.substr(2, end - 2);
    const bool options = end < rest_.size() && (rest_[end] == ')' || rest_[end] == ':');
    if (options && letters.find_first_not_of("i-") != letters.npos) refuse(fmt::format("(?{}", letters));
    copy(options ? end : 2);
  }

  // Ruby repeats a counted repetition where Perl makes it possessive.
  void interval() {
    std::size_t end = 1;
    while (end < rest_.size() && (std::isdigit(static_cast<unsigned char>(rest_[end])) || rest_[end] == ',')) ++end;
    const bool counted = end > 1 && end < rest_.size() && rest_[end] == '}';
    if (counted && rest_[1] == ',') refuse("{,n}");
    if (counted && end + 1 < rest_.size() && rest_[end + 1] == '+') refuse("+ after {n,m}");
    copy(counted ? end + 1 : 1);
  }

  const io::Json& json_;
  std::string_view rest_;
  std::string out_;
  bool in_class_ = false;
};

}  // namespace

std::string pcre2_pattern(const io::Json& json, std::string_view source) { return Rewriter(json, source).run(); }

}  // namespace inlay::data::tokenizer
