#include <algorithm>

#include "data/template/format.h"
#include "data/template/operators.h"
#include "data/template/unicode.h"

namespace inlay::data::jinja {
namespace {

// [[fill]align][sign][#][0][width][grouping][.precision][type]
Layout parse_layout(std::string_view spec) {
  Layout layout;
  std::size_t at = 0;
  const auto peek = [&] { return at < spec.size() ? spec[at] : '\0'; };
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  std::size_t second = 0;
  if (!spec.empty()) decode(spec, second);
  if (second < spec.size() && is_align(spec[second])) {
    layout.fill = spec.substr(0, second);
    layout.align = spec[second];
    at = second + 1;
  } else if (is_align(peek())) {
    layout.align = spec[at++];
  }
  if (peek() == '+' || peek() == '-' || peek() == ' ') layout.sign = spec[at++];
  if (peek() == '#') layout.alternate = true, ++at;
  if (peek() == '0') {
    if (layout.align == 0) layout.align = '=', layout.fill = "0";
    ++at;
  }
  layout.width = read_size(spec, at);
  if (peek() == ',' || peek() == '_') layout.grouping = spec[at++];
  if (peek() == '.') {
    const std::size_t digits = ++at;
    layout.precision = read_size(spec, at);
    if (at == digits) fail("Format specifier missing precision");
  }
  if (at < spec.size()) layout.type = spec[at++];
  if (at < spec.size()) fail("Invalid format specifier");
  return layout;
}

void append_formatted(Builder& out, const Value& value, std::string_view spec) {
  if (spec.empty()) return append_text(out, value);
  Layout layout = parse_layout(spec);
  if (const String* string = value.string()) {
    if (layout.align == '=' && layout.fill == "0") layout.align = '<';  // 010 means zeros, also after a text
    return append_string(out, layout, string->text);
  }
  if (value.is_real()) return append_real(out, layout, *value.number());
  if (const auto integer = value.integer()) {
    if (value.is_boolean() && layout.type == 's') fail("Unknown format code 's' for object of type 'bool'");
    return append_integer(out, layout, *integer);
  }
  fail("unsupported format string passed to {}.__format__", value.type());
}

class BraceFormatter {
 public:
  BraceFormatter(Runtime& runtime, const Arguments& arguments) : runtime_(runtime), arguments_(arguments) {}

  // Fields in a layout may be fields again, but no deeper.
  void run(Builder& out, std::string_view format, int depth) {
    if (depth > 2) fail("Max string recursion exceeded");
    for (std::size_t at = 0; at < format.size();) {
      const std::size_t brace = std::min(format.find_first_of("{}", at), format.size());
      out.append(format.substr(at, brace - at));
      if (brace == format.size()) return;
      if (brace + 1 < format.size() && format[brace + 1] == format[brace]) {
        out.append(format.substr(brace, 1));
        at = brace + 2;
        continue;
      }
      if (format[brace] == '}') fail("Single '}}' encountered in format string");
      const std::size_t end = closing(format, brace + 1);
      field(out, format.substr(brace + 1, end - brace - 1), depth);
      at = end + 1;
    }
  }

 private:
  static std::size_t closing(std::string_view format, std::size_t at) {
    for (int open = 1; at < format.size(); ++at) {
      if (format[at] == '{') ++open;
      if (format[at] == '}' && --open == 0) return at;
    }
    fail("expected '}}' before end of string");
  }

  void field(Builder& out, std::string_view text, int depth) {
    const std::size_t bang = text.find('!'), colon = text.find(':');
    const std::size_t name_end = std::min({bang, colon, text.size()});
    Value value = lookup(text.substr(0, name_end));
    std::string_view spec;
    if (bang < colon) {
      const char conversion = bang + 1 < text.size() ? text[bang + 1] : '\0';
      if (conversion != 's' && conversion != 'r') fail("Unknown conversion specifier '{}'", conversion);
      if (bang + 2 < text.size() && text[bang + 2] != ':') fail("expected ':' after conversion specifier");
      Builder converted(runtime_.budget());
      if (conversion == 's') append_text(converted, value);
      if (conversion == 'r') append_repr(converted, value);
      value = converted.finish();
      if (bang + 2 < text.size()) spec = text.substr(bang + 3);
    } else if (colon < text.size()) {
      spec = text.substr(colon + 1);
    }
    Builder layout(runtime_.budget());
    run(layout, spec, depth + 1);
    append_formatted(out, value, layout.text());
  }

  Value lookup(std::string_view name) {
    std::size_t at = std::min(name.find_first_of(".["), name.size());
    Value value = first(name.substr(0, at));
    while (at < name.size()) {
      if (name[at] == '.') {
        const std::size_t end = std::min(name.find_first_of(".[", at + 1), name.size());
        if (end == at + 1) fail("Empty attribute in format string");
        value = get_attribute(runtime_, value, name.substr(at + 1, end - at - 1));
        at = end;
      } else if (name[at] == '[') {
        const std::size_t end = name.find(']', at);
        if (end == name.npos) fail("Missing ']' in format string");
        value = get_item(runtime_, value, key(name.substr(at + 1, end - at - 1)));
        at = end + 1;
      } else {
        fail("Only '.' or '[' may follow ']' in format field specifier");
      }
    }
    return value;
  }

  static bool is_number(std::string_view text) {
    return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  }
  Value key(std::string_view text) {
    if (text.empty()) fail("Empty attribute in format string");
    std::size_t at = 0;
    return is_number(text) ? Value::size(read_size(text, at)) : runtime_.string(text);
  }

  Value first(std::string_view name) {
    if (name.empty() || is_number(name)) {
      const bool automatic = name.empty();
      if (numbering_ && *numbering_ != automatic) {
        fail("cannot switch between manual field specification and automatic field numbering");
      }
      numbering_ = automatic;
      std::size_t at = 0;
      const std::size_t index = automatic ? next_++ : read_size(name, at);
      if (index >= arguments_.positional.size()) {
        fail("Replacement index {} out of range for positional args tuple", index);
      }
      return arguments_.positional[index];
    }
    for (const auto& [given, value] : arguments_.named) {
      if (given == name) return value;
    }
    fail("'{}'", name);
  }

  Runtime& runtime_;
  const Arguments& arguments_;
  std::optional<bool> numbering_;  // automatic or by hand, once a field has chosen
  std::size_t next_ = 0;
};

}  // namespace

Value format_braces(Runtime& runtime, const String& format, const Arguments& arguments) {
  Builder out(runtime.budget());
  BraceFormatter(runtime, arguments).run(out, format.text, 0);
  return out.finish(format.markup);
}

}  // namespace inlay::data::jinja
