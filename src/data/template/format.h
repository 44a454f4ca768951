#pragma once

#include "data/template/runtime.h"

// Python's two ways to lay out values in a text.
namespace inlay::data::jinja {

// "%s: %5.2f" % values: a tuple's items one after another, a dict's by name, or the one value itself.
Value format_percent(Runtime& runtime, const String& format, const Value& values);

// "{}: {name:>8}".format(...)
Value format_braces(Runtime& runtime, const String& format, const Arguments& arguments);

// How one value is laid out; what both ways come down to.
struct Layout {
  std::string fill = " ";
  char align = 0;  // < > ^ = or 0: as the type wants it
  char sign = '-';
  bool alternate = false;  // 0x before hexadecimal digits
  char grouping = 0;       // between thousands
  std::size_t width = 0;
  std::optional<std::size_t> precision;
  char type = 0;  // 0: as str() has it
};

void append_padded(Builder& out, const Layout& layout, char align, std::string_view text);
void append_integer(Builder& out, const Layout& layout, Integer value);
void append_real(Builder& out, const Layout& layout, double value);
void append_string(Builder& out, const Layout& layout, std::string_view text);

// An integer of a format: digits from a place on, which is moved past them. Huge ones fail.
std::size_t read_size(std::string_view text, std::size_t& at);

}  // namespace inlay::data::jinja
