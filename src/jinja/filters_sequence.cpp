#include <algorithm>

#include "jinja/filters.h"
#include "jinja/objects.h"
#include "jinja/operators.h"
#include "jinja/text.h"

namespace inlay::jinja::filters {

Value default_value(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Parameters parameters("default", arguments, {"default_value", "boolean"}, 0);
  const bool replaced = input.is_undefined() || (parameters.truth(1, false) && !input.truth());
  if (!replaced) return input;
  return parameters.given(0) ? parameters[0] : runtime.string("");
}

Value first(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Parameters none("first", arguments, {}, 0);
  Cursor cursor(runtime, input);
  if (auto item = cursor.next()) return *std::move(item);
  return runtime.undefined("No first item, sequence was empty.");
}

Value last(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Parameters none("last", arguments, {}, 0);
  if (input.as<Iterator>() != nullptr || !is_iterable(input)) fail("'{}' object is not reversible", input.type());
  std::vector<Value> all = items_of(runtime, input);
  return all.empty() ? runtime.undefined("No last item, sequence was empty.") : std::move(all.back());
}

Value list(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Parameters none("list", arguments, {}, 0);
  return runtime.list(items_of(runtime, input));
}

Value items(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Parameters none("items", arguments, {}, 0);
  if (input.is_undefined()) return make_iterator(runtime, {});
  if (input.dict() == nullptr) fail("Can only get item pairs from a mapping.");
  return make_iterator(runtime, items_of(runtime, runtime.object<DictView>(input, DictView::Part::items)));
}

Value join(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Parameters parameters("join", arguments, {"d", "attribute"}, 0);
  const Value separator = parameters.given(0) ? runtime.text_of(parameters[0]) : runtime.string("");
  if (!parameters.set(1)) return joined(runtime, input, separator.string()->text, false);
  const Path path(runtime, parameters.find(1));
  std::vector<Value> all = items_of(runtime, input);
  for (Value& item : all) item = path.of(runtime, item);
  return joined(runtime, runtime.list(std::move(all)), separator.string()->text, false);
}

Value reverse(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Parameters none("reverse", arguments, {}, 0);
  if (input.string() != nullptr) return slice(runtime, input, {}, {}, Value::integer(-1));
  if (!is_iterable(input)) fail("argument must be iterable");
  std::vector<Value> all = items_of(runtime, input);
  std::ranges::reverse(all);
  // A generator cannot be walked over backwards, and so becomes a list.
  return input.as<Iterator>() != nullptr ? runtime.list(std::move(all))
                                         : make_iterator(runtime, std::move(all), "list_reverseiterator");
}

Value sum(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Parameters parameters("sum", arguments, {"attribute", "start"}, 0);
  const Path path(runtime, parameters.find(0));
  Value total = parameters.value(1, Value::integer(0));
  if (total.string() != nullptr) fail("sum() can't sum strings [use ''.join(seq) instead]");
  Cursor cursor(runtime, input);
  while (const auto item = cursor.next()) {
    total = arithmetic(runtime, Arithmetic::add, total, path.of(runtime, *item));
  }
  return total;
}

}  // namespace inlay::jinja::filters
