#include <algorithm>

#include "jinja/objects.h"
#include "jinja/operators.h"

// The methods of list, tuple and dict that change nothing.
namespace inlay::jinja {
namespace {

Value count_items(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters parameters("count", arguments, {"value"}, 1);
  return Value::integer(std::ranges::count_if(
      self.sequence()->items, [&](const Value& item) { return equal(&runtime.budget(), item, parameters[0]); }));
}

Value index(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters parameters("index", arguments, {"value", "start", "stop"}, 1);
  const Value start = parameters.value(1, {}), stop = parameters.value(2, {});
  const Value window = slice(runtime, self, start, stop, {});
  const auto& items = window.sequence()->items;
  const auto found =
      std::ranges::find_if(items, [&](const Value& item) { return equal(&runtime.budget(), item, parameters[0]); });
  if (found == items.end()) {
    fail("{} is not in {}", repr(runtime.budget(), parameters[0]), self.type());
  }
  const auto length = static_cast<Integer>(self.sequence()->items.size());
  const Integer from = parameters.integer(1, 0);
  const Integer skipped = from < 0 ? std::max(from + length, Integer{0}) : from;
  return Value::integer(skipped + (found - items.begin()));
}

Value copy(Runtime&, const Value& self, const Arguments& arguments) {
  const Parameters none("copy", arguments, {}, 0);
  return self;  // nothing can change it
}

template <DictView::Part part>
Value view(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters none("keys", arguments, {}, 0);
  return runtime.object<DictView>(self, part);
}

Value get(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Parameters parameters("get", arguments, {"key", "default"}, 1);
  const Value* found = self.dict()->find(&runtime.budget(), parameters[0]);
  return found != nullptr ? *found : parameters.value(1, {});
}

}  // namespace

Method find_sequence_method(const Sequence& sequence, std::string_view name) {
  if (name == "count") return count_items;
  if (name == "index") return index;
  return name == "copy" && !sequence.tuple ? copy : nullptr;
}

Method find_dict_method(std::string_view name) {
  if (name == "get") return get;
  if (name == "items") return view<DictView::Part::items>;
  if (name == "keys") return view<DictView::Part::keys>;
  if (name == "values") return view<DictView::Part::values>;
  return name == "copy" ? copy : nullptr;
}

}  // namespace inlay::jinja
