#include "jinja/filters.h"

#include <algorithm>
#include <array>

#include "jinja/objects.h"
#include "jinja/operators.h"
#include "jinja/text.h"

namespace inlay::jinja {

namespace filters {
namespace {

struct Entry {
  std::string_view name;
  Filter filter;
};
constexpr Entry table[] = {
    {"abs", absolute},
    {"capitalize", capitalize_text},
    {"count", length},
    {"d", default_value},
    {"default", default_value},
    {"dictsort", dict_sort},
    {"e", escape},
    {"escape", escape},
    {"first", first},
    {"float", to_float},
    {"indent", indent},
    {"int", to_int},
    {"items", items},
    {"join", join},
    {"last", last},
    {"length", length},
    {"list", list},
    {"lower", lower_text},
    {"map", map},
    {"max", maximum},
    {"min", minimum},
    {"reject", reject},
    {"rejectattr", reject_attribute},
    {"replace", replace},
    {"reverse", reverse},
    {"round", round},
    {"safe", safe},
    {"select", select},
    {"selectattr", select_attribute},
    {"sort", sort},
    {"string", string},
    {"sum", sum},
    {"title", title_text},
    {"tojson", to_json},
    {"trim", trim},
    {"unique", unique},
    {"upper", upper_text},
};

}  // namespace

Path::Path(Runtime& runtime, const Value* path) {
  if (path == nullptr || path->is_none()) return;
  if (path->string() == nullptr) {
    parts_.push_back(*path);
    return;
  }
  for (const std::string_view part : split_at(runtime.budget(), path->string()->text, ".", -1, Side::left)) {
    const bool digits =
        !part.empty() && part.size() < 19 && std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
    parts_.push_back(digits ? Value::integer(std::stoll(std::string(part))) : runtime.string(part));
  }
}

Value Path::of(Runtime& runtime, Value item, const Value* otherwise) const {
  for (const Value& part : parts_) {
    item = get_item(runtime, item, part);
    if (otherwise != nullptr && !otherwise->is_none() && item.is_undefined()) item = *otherwise;
  }
  return item;
}

}  // namespace filters

Filter find_filter(std::string_view name) {
  const auto found = std::ranges::lower_bound(filters::table, name, {}, &filters::Entry::name);
  return found != std::end(filters::table) && found->name == name ? found->filter : nullptr;
}

}  // namespace inlay::jinja
