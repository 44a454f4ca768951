#include "jinja/literals.h"

#include <cstdlib>

#include "jinja/unicode.h"

namespace inlay::jinja {
namespace {

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : 99;
}

bool digit_at(std::string_view text, std::size_t at, int base) { return at < text.size() && digit_of(text[at]) < base; }

// Digits with single underscores between them. Where there is none, the place stays.
std::string take_digits(std::string_view text, std::size_t& at, int base) {
  std::string digits;
  while (digit_at(text, at, base) || (!digits.empty() && text.substr(at, 1) == "_" && digit_at(text, at + 1, base))) {
    if (text[at] != '_') digits += text[at];
    ++at;
  }
  return digits;
}

std::optional<Value> integer_of(std::string_view digits, int base) {
  Integer value = 0;
  for (const char c : digits) {
    if (__builtin_mul_overflow(value, Integer{base}, &value) ||
        __builtin_add_overflow(value, Integer{digit_of(c)}, &value)) {
      return std::nullopt;
    }
  }
  return Value::integer(value);
}

// The fraction and the exponent behind some digits, or nothing.
std::string take_real_end(std::string_view text, std::size_t& at) {
  std::string result;
  if (text.substr(at, 1) == "." && digit_at(text, at + 1, 10)) {
    ++at;
    result += '.';
    result += take_digits(text, at, 10);
  }
  std::size_t digits = at + 1;
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    if (digits < text.size() && (text[digits] == '+' || text[digits] == '-')) ++digits;
    if (digit_at(text, digits, 10)) {
      result += std::string(text.substr(at, digits - at));
      at = digits;
      result += take_digits(text, at, 10);
    }
  }
  return result;
}

class Unescaper {
 public:
  explicit Unescaper(std::string_view text) : text_(text) {}

  std::string run() {
    while (at_ < text_.size()) {
      const std::size_t slash = std::min(text_.find('\\', at_), text_.size());
      result_ += text_.substr(at_, slash - at_);
      at_ = slash;
      if (slash < text_.size()) escape();
    }
    return std::move(result_);
  }

 private:
  void escape() {
    constexpr std::string_view letters = "\\'\"abfnrtv\n";
    constexpr std::string_view meanings = "\\'\"\a\b\f\n\r\t\v";  // an escaped newline means nothing
    const char letter = text_[at_ + 1];
    if (const std::size_t known = letters.find(letter); known != letters.npos) {
      if (known < meanings.size()) result_ += meanings[known];
      at_ += 2;
    } else if (letter >= '0' && letter <= '7') {
      octal();
    } else if (letter == 'x' || letter == 'u' || letter == 'U') {
      hexadecimal(letter == 'x' ? 2 : letter == 'u' ? 4 : 8);
    } else if (letter == 'N') {
      fail_here("characters by name (\\N) are not supported");
    } else {
      other();
    }
  }

  void octal() {
    char32_t point = 0;
    ++at_;
    for (int i = 0; i < 3 && digit_at(text_, at_, 8); ++i)
      point = 8 * point + static_cast<char32_t>(text_[at_++] - '0');
    append_utf8(result_, point);
  }

  void hexadecimal(std::size_t digits) {
    char32_t point = 0;
    for (std::size_t i = 0; i < digits; ++i) {
      if (!digit_at(text_, at_ + 2 + i, 16)) fail_here("truncated escape of a character");
      point = 16 * point + static_cast<char32_t>(digit_of(text_[at_ + 2 + i]));
    }
    if (point > 0x10ffff || (point >= 0xd800 && point <= 0xdfff)) fail_here("the escape is not a Unicode character");
    at_ += 2 + digits;
    append_utf8(result_, point);
  }

  // A backslash before anything else stays. Before a character beyond ASCII, Jinja also writes that as an escape, which
  // the backslash then spoils.
  void other() {
    result_ += '\\';
    const std::size_t begin = ++at_;
    const char32_t point = decode(text_, at_);
    const auto number = static_cast<unsigned>(point);
    if (point < 0x80) {
      result_ += text_.substr(begin, at_ - begin);
    } else if (point < 0x100) {
      result_ += fmt::format("x{:02x}", number);
    } else {
      result_ += point < 0x10000 ? fmt::format("u{:04x}", number) : fmt::format("U{:08x}", number);
    }
  }

  [[noreturn]] void fail_here(std::string message) const { throw Failure{std::move(message), at_}; }

  std::string_view text_;
  std::size_t at_ = 0;
  std::string result_;
};

}  // namespace

Number read_number(std::string_view text, std::size_t& at) {
  const std::string_view prefix = text.substr(at, 2);
  for (const auto& [letters, base] : {std::pair("bB", 2), std::pair("oO", 8), std::pair("xX", 16)}) {
    if (prefix.size() < 2 || prefix[0] != '0' || std::string_view(letters).find(prefix[1]) == std::string_view::npos) {
      continue;
    }
    std::size_t digits = at + 2;
    if (text.substr(digits, 1) == "_") ++digits;
    if (!digit_at(text, digits, base)) break;
    at = digits;
    return {false, integer_of(take_digits(text, at, base), base)};
  }
  const bool after_dot = at > 0 && text[at - 1] == '.';  // x.0.1 are two indices
  std::size_t end = at;
  std::string digits = take_digits(text, end, 10);
  const std::string rest = after_dot ? "" : take_real_end(text, end);
  if (!rest.empty()) {
    at = end;
    return {true, Value::real(std::strtod((digits + rest).c_str(), nullptr))};
  }
  if (digits[0] == '0') {  // 007 is a zero and something else
    digits.clear();
    while (digit_at(text, at, 1) || (!digits.empty() && text.substr(at, 1) == "_" && digit_at(text, at + 1, 1))) {
      if (text[at++] == '0') digits += '0';
    }
  } else {
    at = end;
  }
  return {false, integer_of(digits, 10)};
}

std::string unescaped(std::string_view text) { return Unescaper(text).run(); }

}  // namespace inlay::jinja
