#include <cmath>
#include <cstdio>

#include "data/template/format.h"
#include "data/template/unicode.h"

namespace inlay::data::jinja {
namespace {

constexpr std::size_t max_precision = 1000;

std::string digits_in_base(unsigned __int128 value, unsigned base, bool capitals) {
  std::string digits;
  do {
    const auto digit = static_cast<unsigned>(value % base);
    digits.insert(digits.begin(), static_cast<char>(digit < 10 ? '0' + digit : (capitals ? 'A' : 'a') + digit - 10));
    value /= base;
  } while (value != 0);
  return digits;
}

// A separator before every third (or, for other bases, fourth) digit from the right.
std::string grouped(const std::string& digits, char separator, std::size_t size) {
  std::string result;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % size == 0) result += separator;
    result += digits[i];
  }
  return result;
}

// Sign, prefix and digits, padded; = pads between sign and digits.
void append_number(Builder& out, const Layout& layout, bool negative, std::string_view prefix, std::string body) {
  std::string head = negative ? "-" : layout.sign == '-' ? "" : std::string(1, layout.sign);
  head += prefix;
  if (layout.align == '=') {
    const std::size_t used = head.size() + body.size();
    out.append(head);
    out.append(layout.fill, layout.width > used ? layout.width - used : 0);
    out.append(body);
  } else {
    append_padded(out, layout, '>', head + body);
  }
}

std::string printed(const char* format, std::size_t precision, double value) {
  if (precision > max_precision) fail("a precision of {} is too large", precision);
  std::string text(400 + precision, '\0');
  const int length = std::snprintf(text.data(), text.size(), format, static_cast<int>(precision), value);
  text.resize(static_cast<std::size_t>(length));
  return text;
}

// The digits of a finite, non-negative number.
std::string real_digits(const Layout& layout, double value) {
  const std::size_t precision = layout.precision.value_or(6);
  switch (layout.type) {
    case 'f':
    case 'F': return printed(layout.alternate ? "%#.*f" : "%.*f", precision, value);
    case 'e': return printed("%.*e", precision, value);
    case 'E': return printed("%.*E", precision, value);
    case 'g': return printed("%.*g", precision, value);
    case 'G': return printed("%.*G", precision, value);
    case '%': return printed("%.*f", precision, value * 100) + "%";
    default: break;
  }
  if (!layout.precision) return format_real(value);
  std::string text = printed("%.*g", *layout.precision, value);
  if (text.find_first_of(".e") == text.npos) text += ".0";
  return text;
}

}  // namespace

std::size_t read_size(std::string_view text, std::size_t& at) {
  std::size_t size = 0;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') {
    size = 10 * size + static_cast<std::size_t>(text[at++] - '0');
    if (size > (std::size_t{1} << 40)) fail("a number in the format is too large");
  }
  return size;
}

void append_padded(Builder& out, const Layout& layout, char align, std::string_view text) {
  const std::size_t length = code_points(text), missing = layout.width > length ? layout.width - length : 0;
  if (layout.align != 0) align = layout.align;
  const std::size_t before = align == '>' || align == '=' ? missing : align == '^' ? missing / 2 : 0;
  out.append(layout.fill, before);
  out.append(text);
  out.append(layout.fill, missing - before);
}

void append_integer(Builder& out, const Layout& layout, Integer value) {
  const bool negative = value < 0;
  const unsigned __int128 size =
      negative ? -static_cast<unsigned __int128>(value) : static_cast<unsigned __int128>(value);
  const auto number = [&](unsigned base, std::string_view prefix, bool capitals, std::size_t group) {
    std::string digits = digits_in_base(size, base, capitals);
    if (layout.precision && digits.size() < *layout.precision && *layout.precision <= max_precision) {
      digits.insert(0, *layout.precision - digits.size(), '0');
    }
    if (layout.grouping != 0) digits = grouped(digits, layout.grouping, group);
    append_number(out, layout, negative, layout.alternate ? prefix : "", std::move(digits));
  };
  switch (layout.type) {
    case 0:
    case 'd':
    case 'n': return number(10, "", false, 3);
    case 'b': return number(2, "0b", false, 4);
    case 'o': return number(8, "0o", false, 4);
    case 'x': return number(16, "0x", false, 4);
    case 'X': return number(16, "0X", true, 4);
    case 'c': {
      if (value < 0 || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff)) fail("%c arg not in range(0x110000)");
      std::string text;
      append_utf8(text, static_cast<char32_t>(value));
      return append_padded(out, layout, '<', text);
    }
    default: break;
  }
  if (std::string_view("eEfFgG%").find(layout.type) != std::string_view::npos) {
    return append_real(out, layout, static_cast<double>(value));
  }
  fail("Unknown format code '{}' for object of type 'int'", layout.type);
}

void append_real(Builder& out, const Layout& layout, double value) {
  if (layout.type != 0 && std::string_view("eEfFgGn%").find(layout.type) == std::string_view::npos) {
    fail("Unknown format code '{}' for object of type 'float'", layout.type);
  }
  const bool negative = std::signbit(value) && !std::isnan(value);
  std::string digits;
  if (std::isfinite(value)) {
    digits = real_digits(layout, std::fabs(value));
  } else {
    digits = std::isnan(value) ? "nan" : "inf";
    if (layout.type == 'F' || layout.type == 'E' || layout.type == 'G') digits = upper(digits);
    if (layout.type == '%') digits += '%';
  }
  if (layout.grouping != 0 && std::isfinite(value)) {
    const std::size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
    digits = grouped(digits.substr(0, whole), layout.grouping, 3) + digits.substr(whole);
  }
  append_number(out, layout, negative, "", std::move(digits));
}

void append_string(Builder& out, const Layout& layout, std::string_view text) {
  if (layout.type != 0 && layout.type != 's') {
    fail("Unknown format code '{}' for object of type 'str'", layout.type);
  }
  if (layout.align == '=') fail("'=' alignment not allowed in string format specifier");
  if (layout.precision) text = text.substr(0, byte_of(text, *layout.precision));
  append_padded(out, layout, '<', text);
}

}  // namespace inlay::data::jinja
