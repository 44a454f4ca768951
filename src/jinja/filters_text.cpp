#include <algorithm>

#include "jinja/filters.h"
#include "jinja/json_value.h"
#include "jinja/objects.h"
#include "jinja/operators.h"
#include "jinja/text.h"
#include "jinja/unicode.h"

namespace inlay::jinja::filters {
namespace {

// A method of str on the text of a value.
Value by_method(Runtime& runtime, std::string_view method, const Value& input, const Arguments& arguments) {
  return find_string_method(method)(runtime, runtime.text_of(input), arguments);
}

const String& require_string(const Value& input, std::string_view filter) {
  require_defined(input);
  if (input.string() == nullptr) fail("{} takes a str, not {}", filter, input.type());
  return *input.string();
}

bool is_word_end(char32_t point) {
  return is_space(point) || point == '-' || point == '(' || point == '{' || point == '[' || point == '<';
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
  const Parameters none("escape", arguments, {}, 0);
  if (input.string() != nullptr && input.string()->markup) return input;
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
    style.item_separator = std::string(1, ',');
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

}  // namespace inlay::jinja::filters
