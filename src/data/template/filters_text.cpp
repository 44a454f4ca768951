#include <algorithm>

#include "data/template/filters.h"
#include "data/template/format.h"
#include "data/template/json_value.h"
#include "data/template/objects.h"
#include "data/template/operators.h"
#include "data/template/text.h"
#include "data/template/unicode.h"

namespace inlay::data::jinja::filters {
namespace {

// A method of str on the text of a value.
Value by_method(Runtime& runtime, std::string_view method, const Value& input, const Arguments& arguments) {
  return find_string_method(method)(runtime, runtime.text_of(input), arguments);
}

const String& require_string(const Value& input, std::string_view filter) {
  require_defined(input);
  if (input.string() == nullptr) fail("{} wants a str, not {}", filter, input.type());
  return *input.string();
}

bool is_word_end(char32_t point) {
  return is_space(point) || point == '-' || point == '(' || point == '{' || point == '[' || point == '<';
}

bool is_unreserved(unsigned char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' || c == '.' ||
         c == '-' || c == '~';
}

// For a query, slashes are quoted as well, and spaces become plus signs.
void append_quoted(Builder& out, const Value& value, bool for_query) {
  Builder text(out.budget());
  append_text(text, value);
  for (const char c : text.text()) {
    const auto byte = static_cast<unsigned char>(c);
    if (is_unreserved(byte) || (c == '/' && !for_query)) {
      out.append({&c, 1});
    } else if (c == ' ' && for_query) {
      out.append("+");
    } else {
      out.append(fmt::format("%{:02X}", byte));
    }
  }
}

}  // namespace

Value capitalize_text(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return by_method(runtime, "capitalize", input, arguments);
}
Value lower_text(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return by_method(runtime, "lower", input, arguments);
}
Value upper_text(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return by_method(runtime, "upper", input, arguments);
}
Value trim(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return by_method(runtime, "strip", input, arguments);
}

Value center_text(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Parameters parameters("center", arguments, {"width"}, 0);
  return by_method(runtime, "center", input, {.positional = {Value::integer(parameters.integer(0, 80))}});
}

// Unlike str.title: a capital after spaces, hyphens and opening brackets alone.
Value title_text(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Parameters none("title", arguments, {}, 0);
  const Value value = runtime.text_of(input);
  const std::string_view text = value.string()->text;
  runtime.budget().spend_on_bytes(unicode_work * text.size());
  Builder out(runtime.budget());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t first = at;
    const bool separator = is_word_end(decode(text, at));
    const std::size_t second = at;
    while (at < text.size()) {
      std::size_t next = at;
      if (is_word_end(decode(text, next)) != separator) break;
      at = next;
    }
    out.append(upper(text.substr(first, second - first)));
    out.append(lower(text.substr(second, at - second)));
  }
  return out.finish(value.string()->markup);
}

Value escape(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const bool markup = input.string() != nullptr && input.string()->markup;
  return markup ? input : force_escape(runtime, input, arguments);
}

Value force_escape(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Parameters none("escape", arguments, {}, 0);
  const Value text = runtime.text_of(input);
  Builder out(runtime.budget());
  append_escaped(out, text.string()->text);
  return out.finish(true);
}

Value safe(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Parameters none("safe", arguments, {}, 0);
  return runtime.string(runtime.text_of(input).string()->text, true);
}

Value string(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Parameters none("string", arguments, {}, 0);
  return runtime.text_of(input);
}

Value length(Runtime&, const Value& input, const Arguments& arguments) {
  const Parameters none("length", arguments, {}, 0);
  return Value::size(length_of(input));
}

Value format_text(Runtime& runtime, const Value& input, const Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    fail("can't handle positional and keyword arguments at the same time");
  }
  const Value text = runtime.text_of(input);
  if (arguments.named.empty()) return format_percent(runtime, *text.string(), runtime.tuple(arguments.positional));
  Dict named;
  for (const auto& [name, value] : arguments.named) named.set(&runtime.budget(), runtime.string(name), value);
  return format_percent(runtime, *text.string(), runtime.dict(std::move(named)));
}

Value indent(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Parameters parameters("indent", arguments, {"width", "first", "blank"}, 0);
  const String& text = require_string(input, "indent");
  std::string margin;
  if (parameters.given(0) && parameters[0].string() != nullptr) {
    margin = parameters.text(0);
  } else {
    const Integer width = std::max(parameters.integer(0, 4), Integer{0});
    if (width > 1'000'000) fail("an indentation of {} is too wide", width);
    margin.assign(static_cast<std::size_t>(width), ' ');
  }
  const bool first = parameters.truth(1, false), blank = parameters.truth(2, false);
  const std::string whole = text.text + "\n";
  const auto lines = split_lines(runtime.budget(), whole, false);
  Builder out(runtime.budget());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.append("\n");
    if (i == 0 ? first : blank || !lines[i].empty()) out.append(margin);
    out.append(lines[i]);
  }
  return out.finish(text.markup);
}

Value replace(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Parameters parameters("replace", arguments, {"old", "new", "count"}, 2);
  const Value text = runtime.text_of(input), old = runtime.text_of(parameters[0]);
  const Value fresh = runtime.text_of(parameters[1]);
  const Value plain = runtime.string(text.string()->text);  // str() drops the mark
  return replaced(runtime, *plain.string(), old.string()->text, fresh.string()->text,
                  parameters.set(2) ? parameters.integer(2) : -1);
}

Value truncate(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Parameters parameters("truncate", arguments, {"length", "killwords", "end", "leeway"}, 0);
  const String& text = require_string(input, "truncate");
  const Integer length = parameters.integer(0, 255), leeway = parameters.set(3) ? parameters.integer(3) : 5;
  const std::string_view end = parameters.text(2, "...");
  const auto end_length = static_cast<Integer>(code_points(end));
  if (length < end_length) fail("expected length >= {}, got {}", end_length, length);
  if (leeway < 0) fail("expected leeway >= 0, got {}", leeway);
  const auto size = static_cast<Integer>(text.length);
  if (length >= size || size - length <= leeway) return input;
  runtime.budget().spend_on_bytes(text.text.size());
  std::string_view kept =
      std::string_view(text.text).substr(0, byte_of(text.text, static_cast<std::size_t>(length - end_length)));
  if (!parameters.truth(1, false)) kept = kept.substr(0, kept.rfind(' '));
  Builder out(runtime.budget());
  out.append(kept);
  out.append(end);
  return out.finish(text.markup);
}

Value url_encode(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Parameters none("urlencode", arguments, {}, 0);
  Builder out(runtime.budget());
  if (input.string() != nullptr || !is_iterable(input)) {
    append_quoted(out, input, false);
    return out.finish();
  }
  const Value pairs = input.dict() != nullptr ? runtime.object<DictView>(input, DictView::Part::items) : input;
  Cursor cursor(runtime, pairs);
  while (const auto pair = cursor.next()) {
    const std::vector<Value> both = items_of(runtime, *pair);
    if (both.size() != 2) fail("urlencode wants pairs, got {} items", both.size());
    if (out.size() > 0) out.append("&");
    append_quoted(out, both[0], true);
    out.append("=");
    append_quoted(out, both[1], true);
  }
  return out.finish();
}

Value word_count(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Parameters none("wordcount", arguments, {}, 0);
  const Value value = runtime.text_of(input);
  const std::string_view text = value.string()->text;
  runtime.budget().spend_on_bytes(unicode_work * text.size());
  Integer words = 0;
  bool inside = false;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t point = decode(text, at);
    const bool word = point == '_' || is_alphabetic(point) || is_numeric(point);
    if (word && !inside) ++words;
    inside = word;
  }
  return Value::integer(words);
}

Value to_json(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Parameters parameters("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0);
  JsonStyle style{.ensure_ascii = parameters.truth(0, false), .sort_keys = parameters.truth(3, false)};
  if (parameters.set(1)) {
    if (parameters[1].string() != nullptr) {
      style.indent = parameters.text(1);
    } else {
      const Integer width = std::clamp(parameters.integer(1), Integer{0}, Integer{1000});
      style.indent = std::string(static_cast<std::size_t>(width), ' ');
    }
    style.item_separator = ",";
  }
  if (parameters.set(2)) {
    const std::vector<Value> both = items_of(runtime, parameters[2]);
    if (both.size() != 2 || both[0].string() == nullptr || both[1].string() == nullptr) {
      fail("tojson(): separators must be two strings");
    }
    style.item_separator = both[0].string()->text;
    style.key_separator = both[1].string()->text;
  }
  Builder out(runtime.budget());
  append_json(out, input, style);
  return out.finish();
}

}  // namespace inlay::data::jinja::filters
