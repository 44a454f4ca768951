#include <algorithm>
#include <array>

#include "jinja/objects.h"
#include "jinja/operators.h"
#include "jinja/unicode.h"

// Items, attributes and slices.
namespace inlay::jinja {
namespace {

constexpr std::array<std::string_view, 8> list_changers = {"append", "clear",  "extend",  "insert",
                                                           "pop",    "remove", "reverse", "sort"};
constexpr std::array<std::string_view, 5> dict_changers = {"clear", "pop", "popitem", "setdefault", "update"};

// What the sandbox keeps from templates: Python's own names, and what would change a value.
bool is_unsafe(const Value& object, std::string_view name) {
  if (name.starts_with("__") && name.ends_with("__")) return true;
  if (object.is_list()) return std::ranges::find(list_changers, name) != list_changers.end();
  return object.dict() != nullptr && std::ranges::find(dict_changers, name) != dict_changers.end();
}

Value missing(Runtime& runtime, const Value& object, const Value& key) {
  if (const String* name = key.string()) {
    return runtime.undefined(
        fmt::format("'{}' has no attribute {}", described(object), repr(runtime.budget(), runtime.string(name->text))));
  }
  return runtime.undefined(fmt::format("{} has no element {}", described(object), repr(runtime.budget(), key)));
}

Method find_method(const Value& object, std::string_view name) {
  if (object.string() != nullptr) return find_string_method(name);
  if (const Sequence* sequence = object.sequence()) return find_sequence_method(*sequence, name);
  return object.dict() != nullptr ? find_dict_method(name) : nullptr;
}

// The place of an item counted from either end, where there is one.
std::optional<std::size_t> place_of(Integer index, std::size_t size) {
  const auto length = static_cast<Integer>(size);
  if (index < -length || index >= length) return std::nullopt;
  return static_cast<std::size_t>(index < 0 ? index + length : index);
}

Value character(Runtime& runtime, const String& string, std::size_t index) {
  runtime.budget().spend_on_bytes(index);
  const bool plain = string.length == string.text.size();
  const std::size_t begin = plain ? index : byte_of(string.text, index);
  std::size_t end = begin;
  decode(string.text, end);
  return runtime.string(string.text.substr(begin, end - begin), string.markup);
}

std::optional<Value> find_item(Runtime& runtime, const Value& object, const Value& key) {
  if (const Dict* dict = object.dict()) {
    if (key.is_list() || key.dict() != nullptr) return std::nullopt;
    const Value* found = dict->find(&runtime.budget(), key);
    return found != nullptr ? std::optional(*found) : std::nullopt;
  }
  const auto index = key.integer();
  if (!index) return std::nullopt;
  if (const Sequence* sequence = object.sequence()) {
    const auto place = place_of(*index, sequence->items.size());
    return place ? std::optional(sequence->items[*place]) : std::nullopt;
  }
  if (const String* string = object.string()) {
    const auto place = place_of(*index, string->length);
    return place ? std::optional(character(runtime, *string, *place)) : std::nullopt;
  }
  if (const auto* range = object.as<Range>()) {
    const auto place = place_of(*index, range->size());
    return place ? std::optional(Value::integer(range->at(*place))) : std::nullopt;
  }
  return std::nullopt;
}

// The items that [start:stop:step] takes out of so many.
struct Selection {
  Integer first = 0, end = 0, step = 1;
  std::size_t count = 0;
};

Selection select(std::size_t size, const Value& start, const Value& stop, const Value& step) {
  const auto length = static_cast<Integer>(size);
  const auto bound = [](const Value& value) {
    if (!value.is_none() && !value.integer()) {
      fail("slice indices must be integers or None or have an __index__ method");
    }
    return value.integer();
  };
  Selection result;
  result.step = std::clamp(bound(step).value_or(1), -length - 1, length + 1);  // longer steps end the same way
  if (result.step == 0) fail("slice step cannot be zero");
  const bool back = result.step < 0;
  const auto place = [&](const Value& value, Integer otherwise) {
    const auto given = bound(value);
    if (!given) return otherwise;
    const Integer from_start = *given < 0 ? std::max(*given, -length - 1) + length : std::min(*given, length);
    return std::clamp(from_start, back ? Integer{-1} : Integer{0}, back ? length - 1 : length);
  };
  result.first = place(start, back ? length - 1 : 0);
  result.end = place(stop, back ? -1 : length);
  const Integer span = back ? result.first - result.end : result.end - result.first;
  if (span > 0) result.count = static_cast<std::size_t>((span - 1) / (back ? -result.step : result.step) + 1);
  return result;
}

Value slice_string(Runtime& runtime, const String& string, const Selection& selection) {
  if (selection.count == 0) return runtime.string(std::string(), string.markup);
  const std::string& text = string.text;
  runtime.budget().spend_on_bytes(text.size());
  const bool plain = string.length == text.size();
  if (selection.step == 1) {
    const auto first = static_cast<std::size_t>(selection.first);
    const std::size_t begin = plain ? first : byte_of(text, first);
    const std::size_t bytes = plain ? selection.count : byte_of(std::string_view(text).substr(begin), selection.count);
    return runtime.string(text.substr(begin, bytes), string.markup);
  }
  std::vector<std::size_t> starts;  // byte of every code point
  const Charge charge(&runtime.budget(), string.length * sizeof(std::size_t));
  starts.reserve(string.length);
  for (std::size_t at = 0; at < text.size(); decode(text, at)) starts.push_back(at);
  Builder out(runtime.budget());
  Integer place = selection.first;
  for (std::size_t i = 0; i < selection.count; ++i, place += selection.step) {
    const std::size_t begin = starts[static_cast<std::size_t>(place)];
    std::size_t end = begin;
    decode(text, end);
    out.append(std::string_view(text).substr(begin, end - begin));
  }
  return out.finish(string.markup);
}

}  // namespace

std::optional<Value> find_attribute(Runtime& runtime, const Value& object, std::string_view name) {
  require_defined(object);
  if (is_unsafe(object, name)) {
    return runtime.undefined(fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, object.type()));
  }
  if (object.object() != nullptr) return object.object()->attribute(runtime, name);
  const Method method = find_method(object, name);
  if (method == nullptr) return std::nullopt;
  return runtime.object<BoundMethod>(object, name, method);
}

Value get_attribute(Runtime& runtime, const Value& object, std::string_view name) {
  if (auto found = find_attribute(runtime, object, name)) return *std::move(found);
  if (const Dict* dict = object.dict()) {
    if (const Value* found = dict->find(name)) return *found;
  }
  return missing(runtime, object, runtime.string(name));
}

Value get_item(Runtime& runtime, const Value& object, const Value& key) {
  require_defined(object);
  if (auto found = find_item(runtime, object, key)) return *std::move(found);
  if (const String* name = key.string()) {
    if (auto found = find_attribute(runtime, object, name->text)) return *std::move(found);
  }
  return missing(runtime, object, key);
}

Value slice(Runtime& runtime, const Value& object, const Value& start, const Value& stop, const Value& step) {
  require_defined(object);
  if (object.dict() != nullptr) fail("unhashable type: 'slice'");
  const auto* range = object.as<Range>();
  const Sequence* sequence = object.sequence();
  if (object.string() == nullptr && sequence == nullptr && range == nullptr) {
    fail("'{}' object is not subscriptable", object.type());
  }
  const Selection selection = select(length_of(object), start, stop, step);
  if (object.string() != nullptr) return slice_string(runtime, *object.string(), selection);
  if (range != nullptr) return range->part(runtime, selection.first, selection.end, selection.step);
  runtime.budget().spend_on_bytes(selection.count * sizeof(Value));
  std::vector<Value> items;
  items.reserve(selection.count);
  Integer place = selection.first;
  for (std::size_t i = 0; i < selection.count; ++i, place += selection.step) {
    items.push_back(sequence->items[static_cast<std::size_t>(place)]);
  }
  return sequence->tuple ? runtime.tuple(std::move(items)) : runtime.list(std::move(items));
}

}  // namespace inlay::jinja
