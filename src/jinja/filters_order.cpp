#include <algorithm>

#include "jinja/filters.h"
#include "jinja/objects.h"
#include "jinja/operators.h"
#include "jinja/text.h"
#include "jinja/unicode.h"

namespace inlay::jinja::filters {
namespace {

// What an item is compared by: without regard to case, unless it is asked for.
Value folded(Runtime& runtime, Value key, bool case_sensitive) {
  if (case_sensitive || key.string() == nullptr) return key;
  runtime.budget().spend_on_bytes(unicode_work * key.string()->text.size());
  return runtime.string(lower(key.string()->text));
}

struct Keyed {
  Value key, item;
};

std::vector<Value> sorted(Runtime& runtime, std::vector<Keyed> keyed, bool reverse) {
  const auto before = [&](const Keyed& a, const Keyed& b) {
    return reverse ? less(runtime, b.key, a.key) : less(runtime, a.key, b.key);
  };
  const Charge charge(&runtime.budget(), keyed.size() * 2 * sizeof(Keyed));
  std::ranges::stable_sort(keyed, before);
  std::vector<Value> items;
  items.reserve(keyed.size());
  for (Keyed& entry : keyed) items.push_back(std::move(entry.item));
  return items;
}

Value extreme(Runtime& runtime, const Value& input, const Arguments& arguments, bool largest) {
  const Parameters parameters(largest ? "max" : "min", arguments, {"case_sensitive", "attribute"}, 0);
  const Path path(runtime, parameters.find(1));
  const bool case_sensitive = parameters.truth(0, false);
  Cursor cursor(runtime, input);
  std::optional<Keyed> best;
  while (auto item = cursor.next()) {
    Value key = folded(runtime, path.of(runtime, *item), case_sensitive);
    if (!best || (largest ? less(runtime, best->key, key) : less(runtime, key, best->key))) {
      best = Keyed{std::move(key), *std::move(item)};
    }
  }
  return best ? best->item : runtime.undefined("No aggregated item, sequence was empty.");
}

}  // namespace

Value minimum(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return extreme(runtime, input, arguments, false);
}
Value maximum(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return extreme(runtime, input, arguments, true);
}

Value sort(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Parameters parameters("sort", arguments, {"reverse", "case_sensitive", "attribute"}, 0);
  const bool case_sensitive = parameters.truth(1, false);
  std::vector<Path> paths;  // "age,name" sorts by one after the other
  if (parameters.set(2) && parameters[2].string() != nullptr) {
    for (const std::string_view part : split_at(runtime.budget(), parameters.text(2), ",", -1, Side::left)) {
      const Value path = runtime.string(part);
      paths.emplace_back(runtime, &path);
    }
  } else {
    paths.emplace_back(runtime, parameters.find(2));
  }
  std::vector<Keyed> keyed;
  for (Value& item : items_of(runtime, input)) {
    std::vector<Value> keys;
    for (const Path& path : paths) keys.push_back(folded(runtime, path.of(runtime, item), case_sensitive));
    keyed.push_back({runtime.list(std::move(keys)), std::move(item)});
  }
  return runtime.list(sorted(runtime, std::move(keyed), parameters.truth(0, false)));
}

Value dict_sort(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Parameters parameters("dictsort", arguments, {"case_sensitive", "by", "reverse"}, 0);
  const std::string_view by = parameters.text(1, "key");
  if (by != "key" && by != "value") fail("You can only sort by either \"key\" or \"value\"");
  require_defined(input);
  if (input.dict() == nullptr) fail("'{}' object has no attribute 'items'", input.type());
  std::vector<Keyed> keyed;
  for (const auto& [key, value] : input.dict()->entries()) {
    keyed.push_back(
        {folded(runtime, by == "key" ? key : value, parameters.truth(0, false)), runtime.tuple({key, value})});
  }
  return runtime.list(sorted(runtime, std::move(keyed), parameters.truth(2, false)));
}

Value unique(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Parameters parameters("unique", arguments, {"case_sensitive", "attribute"}, 0);
  const Path path(runtime, parameters.find(1));
  Dict seen;
  std::vector<Value> kept;
  Cursor cursor(runtime, input);
  while (auto item = cursor.next()) {
    Value key = folded(runtime, path.of(runtime, *item), parameters.truth(0, false));
    if (seen.find(&runtime.budget(), key) != nullptr) continue;
    seen.set(&runtime.budget(), std::move(key), {});
    kept.push_back(*std::move(item));
  }
  return make_iterator(runtime, std::move(kept));
}

}  // namespace inlay::jinja::filters
