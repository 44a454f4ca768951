#include "jinja/builder.h"

#include <charconv>
#include <cmath>

#include "jinja/unicode.h"

namespace inlay::jinja {
namespace {

// Python prefers single quotes, unless the text has them and no double ones.
char quote_for(std::string_view text) {
  const bool single = text.find('\'') != text.npos, twofold = text.find('"') != text.npos;
  return single && !twofold ? '"' : '\'';
}

void append_escape(Builder& out, char32_t point) {
  if (point == '\n') return out.append("\\n");
  if (point == '\r') return out.append("\\r");
  if (point == '\t') return out.append("\\t");
  const auto number = static_cast<std::uint32_t>(point);
  if (point < 0x100) return out.append(fmt::format("\\x{:02x}", number));
  if (point < 0x10000) return out.append(fmt::format("\\u{:04x}", number));
  out.append(fmt::format("\\U{:08x}", number));
}

void append_quoted(Builder& out, std::string_view text) {
  const char quote = quote_for(text);
  out.append({&quote, 1});
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t point = decode(text, at);
    if (point == static_cast<char32_t>(quote) || point == '\\') {
      out.append("\\");
      out.append_point(point);
    } else if (is_printable(point)) {
      out.append(text.substr(begin, at - begin));
    } else {
      append_escape(out, point);
    }
  }
  out.append({&quote, 1});
}

void append_sequence(Builder& out, const Sequence& sequence) {
  out.append(sequence.tuple ? "(" : "[");
  for (std::size_t i = 0; i < sequence.items.size(); ++i) {
    if (i > 0) out.append(", ");
    append_repr(out, sequence.items[i]);
  }
  if (sequence.tuple && sequence.items.size() == 1) out.append(",");
  out.append(sequence.tuple ? ")" : "]");
}

void append_dict(Builder& out, const Dict& dict) {
  out.append("{");
  bool first = true;
  for (const auto& [key, value] : dict.entries()) {
    if (!first) out.append(", ");
    first = false;
    append_repr(out, key);
    out.append(": ");
    append_repr(out, value);
  }
  out.append("}");
}

}  // namespace

void Builder::append(std::string_view text, std::size_t times) {
  if (text.empty() || times == 0) return;
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(text.size(), times, &bytes)) bytes = std::string::npos;
  budget_.take(bytes);  // before anything is made
  try {
    budget_.spend_on_bytes(bytes);
    text_.reserve(text_.size() + bytes);
  } catch (...) {
    budget_.give(bytes);
    throw;
  }
  for (std::size_t i = 0; i < times; ++i) text_ += text;
}

void Builder::append_point(char32_t point) {
  std::string text;
  append_utf8(text, point);
  append(text);
}

std::string Builder::release() {
  budget_.give(text_.size());
  return std::exchange(text_, {});
}

void append_text(Builder& out, const Value& value) {
  if (const String* string = value.string()) return out.append(string->text);
  if (!value.is_undefined()) append_repr(out, value);
}

void append_repr(Builder& out, const Value& value) {
  const Level level(out.budget());
  if (value.is_undefined()) return out.append("Undefined");
  if (value.is_none()) return out.append("None");
  if (value.is_boolean()) return out.append(value.truth() ? "True" : "False");
  if (value.is_real()) return out.append(format_real(*value.number()));
  if (const auto integer = value.integer()) return out.append(format_integer(*integer));
  if (const String* string = value.string()) {
    if (string->markup) out.append("Markup(");
    append_quoted(out, string->text);
    if (string->markup) out.append(")");
    return;
  }
  if (const Sequence* sequence = value.sequence()) return append_sequence(out, *sequence);
  if (const Dict* dict = value.dict()) return append_dict(out, *dict);
  value.object()->show(out);
}

std::string repr(Budget& budget, const Value& value) {
  Builder out(budget);
  append_repr(out, value);
  return out.release();
}

std::string format_integer(Integer value) { return fmt::format("{}", value); }

std::string format_real(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, static_cast<std::size_t>(end - buffer));  // -d.ddde+xx
  const std::size_t e = text.find('e');
  const bool negative = text.front() == '-';
  std::string digits;
  for (const char c : text.substr(0, e)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  int exponent = 0;
  const std::size_t sign = text[e + 1] == '+' ? 2 : 1;  // from_chars takes no plus
  std::from_chars(text.data() + e + sign, text.data() + text.size(), exponent);
  std::string result = negative ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    result += digits[0];
    if (digits.size() > 1) result += '.' + digits.substr(1);
    return result + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return result + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() < whole) digits.append(whole - digits.size(), '0');
  result += digits.substr(0, whole) + '.';
  return result + (digits.size() > whole ? digits.substr(whole) : "0");
}

void append_escaped(Builder& out, std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t special = std::min(text.find_first_of("&<>\"'", at), text.size());
    out.append(text.substr(at, special - at));
    if (special == text.size()) return;
    switch (text[special]) {
      case '&': out.append("&amp;"); break;
      case '<': out.append("&lt;"); break;
      case '>': out.append("&gt;"); break;
      case '"': out.append("&#34;"); break;
      default: out.append("&#39;"); break;
    }
    at = special + 1;
  }
}

}  // namespace inlay::jinja
