#include <algorithm>
#include <charconv>
#include <cmath>

#include "jinja/filters.h"
#include "jinja/operators.h"
#include "jinja/text.h"
#include "jinja/unicode.h"

namespace inlay::jinja::filters {
namespace {

// Without spaces around it, and without the underscores that Python allows between digits; empty where it has others.
std::string plain_digits(Runtime& runtime, std::string_view text) {
  text = stripped(runtime.budget(), text, std::nullopt, Side::both);
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto is_alnum = [&](std::size_t at) {
      return at < text.size() && std::isalnum(static_cast<unsigned char>(text[at])) != 0;
    };
    if (text[i] != '_') {
      result += text[i];
    } else if (i == 0 || !is_alnum(i - 1) || !is_alnum(i + 1)) {
      return {};
    }
  }
  return result;
}

std::optional<double> parse_real(Runtime& runtime, std::string_view given) {
  std::string text = lower(plain_digits(runtime, given));
  std::string_view digits = text;
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.remove_prefix(1);
  if (digits.empty() || digits[0] == '-' || digits[0] == '+') return std::nullopt;
  if (digits == "inf" || digits == "infinity") return negative ? -HUGE_VAL : HUGE_VAL;
  if (digits == "nan") return std::nan("");
  if (digits.find_first_not_of("0123456789.e+-") != digits.npos) return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (end != digits.data() + digits.size() || error == std::errc::invalid_argument) return std::nullopt;
  if (error == std::errc::result_out_of_range) value = std::strtod(std::string(digits).c_str(), nullptr);
  return negative ? -value : value;
}

// The base that a prefix names: 0x 0o 0b.
Integer base_of_prefix(std::string_view digits) {
  if (digits.size() < 3 || digits[0] != '0') return 0;
  const char letter = digits[1];
  return letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
}

std::optional<Integer> parse_integer(Runtime& runtime, std::string_view given, Integer base) {
  const std::string text = lower(plain_digits(runtime, given));
  std::string_view digits = text;
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.remove_prefix(1);
  const Integer prefix = base_of_prefix(digits);
  if (prefix != 0 && (base == prefix || base == 0)) digits.remove_prefix(2);
  if (base == 0) base = prefix != 0 ? prefix : 10;
  if (digits.empty() || base < 2 || base > 36) return std::nullopt;
  Integer value = 0;
  for (const char c : digits) {
    const Integer digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(value, base, &value) || __builtin_add_overflow(value, digit, &value)) {
      fail("integers beyond 128 bits are not supported");
    }
  }
  return negative ? -value : value;
}

std::optional<Integer> whole(double value) {
  if (!std::isfinite(value)) return std::nullopt;
  if (std::fabs(value) > 0x1p126) fail("integers beyond 128 bits are not supported");
  return static_cast<Integer>(value);
}

double rounded(double value, Integer digits) {
  if (!std::isfinite(value) || digits > 300) return value;
  if (digits < -300) return std::copysign(0.0, value);
  if (digits < 0) {
    const double unit = std::pow(10.0, static_cast<double>(-digits));
    return std::nearbyint(value / unit) * unit;
  }
  // The decimal that is nearest to the exact binary value, ties to even: what printf gives.
  const std::string text = fmt::format("{:.{}f}", value, static_cast<int>(digits));
  return std::strtod(text.c_str(), nullptr);
}

}  // namespace

Value absolute(Runtime&, const Value& input, const Arguments& arguments) {
  const Parameters none("abs", arguments, {}, 0);
  if (input.is_real()) return Value::real(std::fabs(*input.number()));
  const auto integer = input.integer();
  if (!integer) fail("bad operand type for abs(): '{}'", input.type());
  return *integer < 0 ? negate(input) : Value::integer(*integer);
}

Value to_int(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Parameters parameters("int", arguments, {"default", "base"}, 0);
  require_defined(input);
  if (const auto integer = input.integer()) return Value::integer(*integer);
  std::optional<Integer> result;
  if (input.is_real()) {
    result = whole(*input.number());
  } else if (const String* text = input.string()) {
    result = parse_integer(runtime, text->text, parameters.integer(1, 10));
    if (!result) {
      if (const auto real = parse_real(runtime, text->text)) result = whole(*real);
    }
  }
  return result ? Value::integer(*result) : parameters.value(0, Value::integer(0));
}

Value to_float(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Parameters parameters("float", arguments, {"default"}, 0);
  require_defined(input);
  if (const auto number = input.number()) return Value::real(*number);
  if (const String* text = input.string()) {
    if (const auto number = parse_real(runtime, text->text)) return Value::real(*number);
  }
  return parameters.value(0, Value::real(0));
}

Value round(Runtime&, const Value& input, const Arguments& arguments) {
  const Parameters parameters("round", arguments, {"precision", "method"}, 0);
  const std::string_view method = parameters.text(1, "common");
  if (method != "common" && method != "ceil" && method != "floor") fail("method must be common, ceil or floor");
  require_defined(input);
  if (!input.number()) fail("type {} doesn't define __round__ method", input.type());
  const Integer digits = parameters.integer(0, 0);
  if (method == "common") {
    if (input.integer() && digits >= 0) return Value::integer(*input.integer());
    const double value = rounded(*input.number(), digits);
    return input.integer() ? Value::integer(*whole(value)) : Value::real(value);
  }
  const double scale = std::pow(10.0, static_cast<double>(digits)), value = *input.number() * scale;
  if (!std::isfinite(value)) fail("cannot round {}", *input.number());
  return Value::real((method == "ceil" ? std::ceil(value) : std::floor(value)) / scale);
}

}  // namespace inlay::jinja::filters
