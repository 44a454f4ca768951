#include "jinja/runtime.h"

#include <algorithm>

#include "jinja/objects.h"
#include "jinja/unicode.h"

namespace inlay::jinja {

Runtime::~Runtime() {
  for (const std::shared_ptr<Object>& object : kept_) object->clear();
}

Value Runtime::text_of(const Value& value) {
  if (value.string() != nullptr) return value;
  Builder out(budget_);
  append_text(out, value);
  return out.finish();
}

void Runtime::keep(std::shared_ptr<Object> object) {
  constexpr std::size_t typical_bytes = 192;
  budget_.take(typical_bytes);
  kept_.push_back(std::move(object));
}

Parameters::Parameters(std::string_view function, const Arguments& arguments,
                       std::initializer_list<std::string_view> names, std::size_t required)
    : function_(function), names_(names) {
  INLAY_ASSERT(names_.size() <= max_count, "{} has {} parameters", function, names_.size());
  if (arguments.positional.size() > names_.size()) {
    fail("{}() takes at most {} argument{} ({} given)", function_, names_.size(), names_.size() == 1 ? "" : "s",
         arguments.positional.size());
  }
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::ranges::find(names_, name);
    if (found == names_.end()) fail("{}() got an unexpected keyword argument '{}'", function_, name);
    const Value*& slot = values_[static_cast<std::size_t>(found - names_.begin())];
    if (slot != nullptr) fail("{}() got multiple values for argument '{}'", function_, name);
    slot = &value;
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (values_[i] == nullptr) fail("{}() missing a required argument: '{}'", function_, names_[i]);
  }
}

Integer Parameters::integer(std::size_t index) const {
  const Value& value = *values_[index];
  if (value.is_undefined()) fail("{}", value.absence()->message);
  if (const auto integer = value.integer()) return *integer;
  fail("{}(): '{}' must be an integer, not {}", function_, names_[index], value.type());
}

std::string_view Parameters::text(std::size_t index) const {
  const Value& value = *values_[index];
  if (const String* string = value.string()) return string->text;
  fail("{}(): '{}' must be str, not {}", function_, names_[index], value.type());
}

Cursor::Cursor(Runtime& runtime, Value source) : runtime_(runtime), source_(std::move(source)) {
  if (!is_iterable(source_)) fail("'{}' object is not iterable", source_.type());
}

std::optional<Value> Cursor::next() {
  runtime_.budget().spend(1);
  if (const Sequence* sequence = source_.sequence()) {
    return at_ < sequence->items.size() ? std::optional(sequence->items[at_++]) : std::nullopt;
  }
  if (const Dict* dict = source_.dict()) {
    return at_ < dict->size() ? std::optional(dict->entries()[at_++].first) : std::nullopt;
  }
  if (const String* string = source_.string()) {
    if (at_ == string->text.size()) return std::nullopt;
    const std::size_t begin = at_;
    decode(string->text, at_);
    return runtime_.string(string->text.substr(begin, at_ - begin));
  }
  if (const auto* range = source_.as<Range>()) {
    return at_ < range->size() ? std::optional(Value::integer(range->at(at_++))) : std::nullopt;
  }
  if (const auto* view = source_.as<DictView>()) {
    return at_ < view->dict().size() ? std::optional(view->at(runtime_, at_++)) : std::nullopt;
  }
  if (auto* iterator = source_.as<Iterator>()) return iterator->next(runtime_);
  return std::nullopt;  // undefined is empty
}

std::optional<std::size_t> Cursor::length() const {
  if (source_.object() != nullptr) return source_.object()->length();
  return length_of(source_);
}

bool is_iterable(const Value& value) {
  return value.is_undefined() || value.string() != nullptr || value.sequence() != nullptr || value.dict() != nullptr ||
         value.as<Range>() != nullptr || value.as<DictView>() != nullptr || value.as<Iterator>() != nullptr;
}

std::vector<Value> items_of(Runtime& runtime, const Value& value) {
  if (const Sequence* sequence = value.sequence()) {
    runtime.budget().spend_on_bytes(sequence->items.size() * sizeof(Value));
    return sequence->items;
  }
  std::vector<Value> items;
  Cursor cursor(runtime, value);
  while (auto item = cursor.next()) items.push_back(*std::move(item));
  return items;
}

std::size_t length_of(const Value& value) {
  if (value.is_undefined()) return 0;
  if (const String* string = value.string()) return string->length;
  if (const Sequence* sequence = value.sequence()) return sequence->items.size();
  if (const Dict* dict = value.dict()) return dict->size();
  if (value.object() != nullptr) {
    if (const auto length = value.object()->length()) return *length;
  }
  fail("object of type '{}' has no len()", value.type());
}

}  // namespace inlay::jinja
