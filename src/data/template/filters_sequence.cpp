#include <algorithm>

#include "data/template/filters.h"
#include "data/template/objects.h"
#include "data/template/operators.h"
#include "data/template/text.h"

namespace inlay::data::jinja::filters {
namespace {

constexpr Integer max_parts = 1'000'000;

// A count of parts: positive, and not more than can be made.
std::size_t part_count(const Parameters& parameters, std::size_t index) {
  const Integer count = parameters.integer(index);
  if (count > max_parts) fail("{} parts are too many", count);
  return count < 0 ? 0 : static_cast<std::size_t>(count);
}

}  // namespace

Value attribute(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Parameters parameters("attr", arguments, {"name"}, 1);
  if (auto found = find_attribute(runtime, input, parameters.text(0))) return *std::move(found);
  return runtime.undefined(fmt::format("'{}' has no attribute '{}'", described(input), parameters.text(0)));
}

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

Value batch(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Parameters parameters("batch", arguments, {"linecount", "fill_with"}, 1);
  const std::size_t count = part_count(parameters, 0);
  std::vector<Value> rows, row;
  Cursor cursor(runtime, input);
  while (auto item = cursor.next()) {
    if (row.size() == count) rows.push_back(runtime.list(std::exchange(row, {})));
    row.push_back(*std::move(item));
  }
  if (!row.empty()) {
    if (parameters.set(1)) {
      const Charge charge(&runtime.budget(), count * sizeof(Value));
      row.resize(std::max(count, row.size()), parameters[1]);
    }
    rows.push_back(runtime.list(std::move(row)));
  }
  return make_iterator(runtime, std::move(rows));
}

Value slices(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Parameters parameters("slice", arguments, {"slices", "fill_with"}, 1);
  const std::size_t count = part_count(parameters, 0);
  const std::vector<Value> all = items_of(runtime, input);
  if (count == 0) fail("integer division or modulo by zero");
  const std::size_t each = all.size() / count, longer = all.size() % count;
  std::vector<Value> parts;
  auto at = all.begin();
  for (std::size_t i = 0; i < count; ++i) {
    const auto end = at + static_cast<std::ptrdiff_t>(each + (i < longer ? 1 : 0));
    std::vector<Value> part(at, end);
    if (parameters.set(1) && i >= longer) part.push_back(parameters[1]);
    parts.push_back(runtime.list(std::move(part)));
    at = end;
  }
  return make_iterator(runtime, std::move(parts));
}

}  // namespace inlay::data::jinja::filters
