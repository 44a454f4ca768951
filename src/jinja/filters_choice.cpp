#include "jinja/filters.h"
#include "jinja/objects.h"
#include "jinja/operators.h"

namespace inlay::jinja::filters {
namespace {

std::string_view name_in(const Value& value, std::string_view what) {
  if (value.string() == nullptr) fail("the name of a {} must be str, not {}", what, value.type());
  return value.string()->text;
}

// What is left of the arguments behind the first ones.
Arguments rest_of(const Arguments& arguments, std::size_t first) {
  Arguments rest;
  rest.positional.assign(arguments.positional.begin() + static_cast<std::ptrdiff_t>(first), arguments.positional.end());
  rest.named = arguments.named;
  return rest;
}

// The items for which a test (none: their truth) says as wanted; of the item, or of a part of it.
Value chosen(Runtime& runtime, const Value& input, const Arguments& arguments, bool wanted, bool by_attribute) {
  if (!input.truth()) return make_iterator(runtime, {});
  const std::size_t skipped = by_attribute ? 1 : 0;
  if (arguments.positional.size() < skipped) fail("Missing parameter for attribute name");
  const Path path(runtime, by_attribute ? &arguments.positional[0] : nullptr);
  Test test = nullptr;
  Arguments rest;
  if (arguments.positional.size() > skipped) {
    const std::string_view name = name_in(arguments.positional[skipped], "test");
    test = find_test(name);
    if (test == nullptr) fail("No test named '{}'.", name);
    rest = rest_of(arguments, skipped + 1);
  }
  const auto draw = [=, &runtime, cursor = Cursor(runtime, input)]() mutable -> std::optional<Value> {
    while (auto item = cursor.next()) {
      const Value part = path.of(runtime, *item);
      if ((test != nullptr ? test(runtime, part, rest) : part.truth()) == wanted) return item;
    }
    return std::nullopt;
  };
  return make_iterator(runtime, input, draw);
}

// map(attribute="name", default="nobody")
Value parts_of_items(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Value *attribute = nullptr, *otherwise = nullptr;
  for (const auto& [name, value] : arguments.named) {
    if (name == "attribute") {
      attribute = &value;
    } else if (name == "default") {
      otherwise = &value;
    } else {
      fail("Unexpected keyword argument '{}'", name);
    }
  }
  if (attribute == nullptr) fail("map requires a filter argument");
  const Path path(runtime, attribute);
  const auto draw = [path, &runtime, fallback = otherwise != nullptr ? *otherwise : Value(),
                     cursor = Cursor(runtime, input)]() mutable -> std::optional<Value> {
    auto item = cursor.next();
    return item ? std::optional(path.of(runtime, *std::move(item), &fallback)) : std::nullopt;
  };
  return make_iterator(runtime, input, draw);
}

}  // namespace

Value map(Runtime& runtime, const Value& input, const Arguments& arguments) {
  if (!input.truth()) return make_iterator(runtime, {});
  if (arguments.positional.empty()) return parts_of_items(runtime, input, arguments);
  const std::string_view name = name_in(arguments.positional[0], "filter");
  const Filter filter = find_filter(name);
  if (filter == nullptr) fail("No filter named '{}'.", name);
  const auto draw = [filter, &runtime, rest = rest_of(arguments, 1),
                     cursor = Cursor(runtime, input)]() mutable -> std::optional<Value> {
    const auto item = cursor.next();
    return item ? std::optional(filter(runtime, *item, rest)) : std::nullopt;
  };
  return make_iterator(runtime, input, draw);
}

Value select(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return chosen(runtime, input, arguments, true, false);
}
Value reject(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return chosen(runtime, input, arguments, false, false);
}
Value select_attribute(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return chosen(runtime, input, arguments, true, true);
}
Value reject_attribute(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return chosen(runtime, input, arguments, false, true);
}

}  // namespace inlay::jinja::filters
