#include <algorithm>
#include <array>

#include "jinja/objects.h"
#include "jinja/operators.h"
#include "jinja/text.h"
#include "jinja/unicode.h"

// The methods of str.
namespace inlay::jinja {
namespace {

constexpr std::size_t npos = std::string_view::npos;

const String& text_of(const Value& self) { return *self.string(); }

Value same_kind(Runtime& runtime, const Value& self, std::string text) {
  return runtime.string(std::move(text), self.string()->markup);
}

template <std::string (*change)(std::string_view)>
Value changed(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters none("str method", arguments, {}, 0);
  const std::string& text = text_of(self).text;
  runtime.budget().spend_on_bytes(unicode_work * text.size());
  const Charge charge(&runtime.budget(), text.size());  // while it is made
  return same_kind(runtime, self, change(text));
}

template <Side side>
Value strip(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters parameters("strip", arguments, {"chars"}, 0);
  const auto characters = parameters.set(0) ? std::optional(parameters.text(0)) : std::nullopt;
  return same_kind(runtime, self, std::string(stripped(runtime.budget(), text_of(self).text, characters, side)));
}

template <Side side>
Value split(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters parameters("split", arguments, {"sep", "maxsplit"}, 0);
  const String& string = text_of(self);
  const Integer most = parameters.integer(1, -1);
  return strings(runtime,
                 parameters.set(0) ? split_at(runtime.budget(), string.text, parameters.text(0), most, side)
                                   : split_at_spaces(runtime.budget(), string.text, most, side),
                 string.markup);
}

Value splitlines(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters parameters("splitlines", arguments, {"keepends"}, 0);
  return strings(runtime, split_lines(runtime.budget(), text_of(self).text, parameters.truth(0, false)),
                 text_of(self).markup);
}

template <Side side>
Value partition(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters parameters("partition", arguments, {"sep"}, 1);
  const std::string_view separator = parameters.text(0), text = text_of(self).text;
  const auto pieces = split_at(runtime.budget(), text, separator, 1, side);
  std::vector<std::string_view> parts;
  if (pieces.size() == 2) {
    parts = {pieces[0], separator, pieces[1]};
  } else if (side == Side::left) {
    parts = {text, "", ""};
  } else {
    parts = {"", "", text};
  }
  return runtime.tuple(strings(runtime, parts, text_of(self).markup).sequence()->items);
}

Value replace(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters parameters("replace", arguments, {"old", "new", "count"}, 2);
  return replaced(runtime, text_of(self), parameters.text(0), parameters.text(1), parameters.integer(2, -1));
}

Value join(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters parameters("join", arguments, {"iterable"}, 1);
  return joined(runtime, parameters[0], text_of(self).text, true);
}

// The part of a text that find() and its like look at: [start:end] in characters.
struct Window {
  std::string_view text;
  std::size_t first = 0;    // byte of the whole text
  std::size_t skipped = 0;  // characters before it
  bool inside = true;       // false where it begins behind the end: then not even an empty text is found
};

Window window_of(Runtime& runtime, const String& string, const Parameters& parameters, std::size_t start) {
  const auto length = static_cast<Integer>(string.length);
  const auto place = [&](std::size_t index, Integer otherwise) {
    const Integer given = parameters.set(index) ? parameters.integer(index) : otherwise;
    return given < 0 ? std::max(given + length, Integer{0}) : std::min(given, length + 1);
  };
  const Integer begin = place(start, 0), end = std::min(place(start + 1, length), length);
  if (begin > length || begin > end) return {.inside = false};
  const bool plain = string.length == string.text.size();
  if (!plain) runtime.budget().spend_on_bytes(string.text.size());
  const auto byte = [&](Integer at) {
    return plain ? static_cast<std::size_t>(at) : byte_of(string.text, static_cast<std::size_t>(at));
  };
  const std::size_t first = byte(begin);
  return {std::string_view(string.text).substr(first, byte(end) - first), first, static_cast<std::size_t>(begin)};
}

// In characters of the whole text, or -1.
template <Side side>
Integer position(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters parameters("find", arguments, {"sub", "start", "end"}, 1);
  const std::string_view wanted = parameters.text(0);
  const Window window = window_of(runtime, text_of(self), parameters, 1);
  if (!window.inside) return -1;
  const std::size_t found = side == Side::left ? find_text(runtime.budget(), window.text, wanted)
                                               : find_last_text(runtime.budget(), window.text, wanted);
  if (found == npos) return -1;
  runtime.budget().spend_on_bytes(found);
  return static_cast<Integer>(window.skipped + code_points(window.text.substr(0, found)));
}

template <Side side>
Value find(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return Value::integer(position<side>(runtime, self, arguments));
}

template <Side side>
Value index(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Integer found = position<side>(runtime, self, arguments);
  if (found < 0) fail("substring not found");
  return Value::integer(found);
}

Value count(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters parameters("count", arguments, {"sub", "start", "end"}, 1);
  const std::string_view wanted = parameters.text(0);
  const Window window = window_of(runtime, text_of(self), parameters, 1);
  if (!window.inside) return Value::integer(0);
  if (wanted.empty()) return Value::size(code_points(window.text) + 1);
  Integer found = 0;
  for (std::size_t at = 0; (at = find_text(runtime.budget(), window.text, wanted, at)) != npos; at += wanted.size()) {
    ++found;
  }
  return Value::integer(found);
}

template <Side side>
Value touches(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const std::string_view name = side == Side::left ? "startswith" : "endswith";
  const Parameters parameters(name, arguments, {"prefix", "start", "end"}, 1);
  const Window window = window_of(runtime, text_of(self), parameters, 1);
  const auto fits = [&](const Value& affix) {
    if (affix.string() == nullptr) {
      fail("{} first arg must be str or a tuple of str, not {}", name, affix.type());
    }
    const std::string_view text = affix.string()->text;
    runtime.budget().spend_on_bytes(text.size());
    return window.inside && (side == Side::left ? window.text.starts_with(text) : window.text.ends_with(text));
  };
  if (!parameters[0].is_tuple()) return Value::boolean(fits(parameters[0]));
  return Value::boolean(std::ranges::any_of(parameters[0].sequence()->items, fits));
}

template <Side side>
Value remove_affix(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters parameters("removeprefix", arguments, {"prefix"}, 1);
  std::string_view text = text_of(self).text;
  const std::string_view affix = parameters.text(0);
  if (side == Side::left && text.starts_with(affix)) text.remove_prefix(affix.size());
  if (side == Side::right && text.ends_with(affix)) text.remove_suffix(affix.size());
  return same_kind(runtime, self, std::string(text));
}

// Whether all characters, and at least one, have a property.
template <class Predicate>
bool all_points(Runtime& runtime, const Value& self, Predicate&& predicate) {
  const std::string_view text = text_of(self).text;
  runtime.budget().spend_on_bytes(unicode_work * text.size());
  for (std::size_t at = 0; at < text.size();) {
    if (!predicate(decode(text, at))) return false;
  }
  return !text.empty();
}

template <bool (*has)(char32_t)>
Value all_have(Runtime& runtime, const Value& self, const Arguments&) {
  return Value::boolean(all_points(runtime, self, has));
}

bool is_alphanumeric(char32_t point) { return is_alphabetic(point) || is_numeric(point); }
// No letter of the other case, and at least one of this one.
template <bool (*wanted)(char32_t), bool (*other)(char32_t)>
Value is_case(Runtime& runtime, const Value& self, const Arguments&) {
  bool some = false;
  all_points(runtime, self, [&](char32_t point) {
    if (other(point) || is_title(point)) return some = false;
    some = some || wanted(point);
    return true;
  });
  return Value::boolean(some);
}

struct NamedMethod {
  std::string_view name;
  Method method;
};
constexpr NamedMethod methods[] = {
    {"capitalize", changed<capitalize>},
    {"count", count},
    {"endswith", touches<Side::right>},
    {"find", find<Side::left>},
    {"index", index<Side::left>},
    {"isalnum", all_have<is_alphanumeric>},
    {"isalpha", all_have<is_alphabetic>},
    {"isdigit", all_have<is_digit>},
    {"islower", is_case<is_lower, is_upper>},
    {"isspace", all_have<is_space>},
    {"isupper", is_case<is_upper, is_lower>},
    {"join", join},
    {"lower", changed<lower>},
    {"lstrip", strip<Side::left>},
    {"partition", partition<Side::left>},
    {"removeprefix", remove_affix<Side::left>},
    {"removesuffix", remove_affix<Side::right>},
    {"replace", replace},
    {"rfind", find<Side::right>},
    {"rindex", index<Side::right>},
    {"rpartition", partition<Side::right>},
    {"rsplit", split<Side::right>},
    {"rstrip", strip<Side::right>},
    {"split", split<Side::left>},
    {"splitlines", splitlines},
    {"startswith", touches<Side::left>},
    {"strip", strip<Side::both>},
    {"title", changed<title>},
    {"upper", changed<upper>},
};

}  // namespace

Method find_string_method(std::string_view name) {
  const auto found = std::ranges::lower_bound(methods, name, {}, &NamedMethod::name);
  return found != std::end(methods) && found->name == name ? found->method : nullptr;
}

}  // namespace inlay::jinja
