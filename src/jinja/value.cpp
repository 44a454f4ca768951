#include "jinja/value.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "jinja/builder.h"
#include "jinja/unicode.h"

namespace inlay::jinja {
namespace {

Value make_sequence(Budget* budget, std::vector<Value> items, bool tuple) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  auto sequence = std::make_shared<Sequence>();
  sequence->charge = Charge(budget, sizeof(Sequence) + items.size() * sizeof(Value));
  sequence->items = std::move(items);
  sequence->tuple = tuple;
  sequence->depth = depth_above(depth);
  return Value(std::shared_ptr<const Sequence>(std::move(sequence)));
}

void spend(Budget* budget, std::size_t bytes) {
  if (budget != nullptr) budget->spend_on_bytes(bytes);
}

bool equal_items(Budget* budget, const Sequence& a, const Sequence& b) {
  return a.tuple == b.tuple && a.items.size() == b.items.size() &&
         std::equal(a.items.begin(), a.items.end(), b.items.begin(),
                    [&](const Value& x, const Value& y) { return equal(budget, x, y); });
}

bool equal_entries(Budget* budget, const Dict& a, const Dict& b) {
  return a.size() == b.size() && std::ranges::all_of(a.entries(), [&](const Dict::Entry& entry) {
           const Value* other = b.find(budget, entry.first);
           return other != nullptr && equal(budget, entry.second, *other);
         });
}

}  // namespace

int depth_above(int depth) {
  constexpr int max_depth = 500;
  if (depth >= max_depth) fail("lists and dicts are nested more than {} levels deep", max_depth);
  return depth + 1;
}

std::optional<Integer> Value::integer() const {
  if (const auto* integer = std::get_if<Integer>(&data_)) return *integer;
  if (const auto* boolean = std::get_if<bool>(&data_)) return *boolean ? 1 : 0;
  return std::nullopt;
}

std::optional<double> Value::number() const {
  if (const auto* real = std::get_if<double>(&data_)) return *real;
  if (const auto value = integer()) return static_cast<double>(*value);
  return std::nullopt;
}

bool Value::truth() const {
  if (is_undefined() || is_none()) return false;
  if (const auto value = number()) return *value != 0.0;
  if (const String* value = string()) return !value->text.empty();
  if (const Sequence* value = sequence()) return !value->items.empty();
  if (const Dict* value = dict()) return value->size() > 0;
  return object()->truth();
}

std::string_view Value::type() const {
  constexpr std::string_view names[] = {"Undefined", "NoneType", "bool", "int", "float", "str"};
  if (data_.index() < std::size(names)) {
    return string() != nullptr && string()->markup ? "Markup" : names[data_.index()];
  }
  if (sequence() != nullptr) return sequence()->tuple ? "tuple" : "list";
  return dict() != nullptr ? "dict" : object()->type();
}

int Value::depth() const {
  if (const Sequence* value = sequence()) return value->depth;
  if (const Dict* value = dict()) return value->depth;
  if (const Object* value = object()) return value->depth();
  return 0;
}

const Value* Dict::find(std::string_view key) const {
  if (index_.empty()) {
    for (const auto& [name, value] : entries_) {
      if (name.string() != nullptr && name.string()->text == key) return &value;
    }
    return nullptr;
  }
  const auto [begin, end] = index_.equal_range(std::hash<std::string_view>()(key));
  for (auto at = begin; at != end; ++at) {
    const auto& [name, value] = entries_[at->second];
    if (name.string() != nullptr && name.string()->text == key) return &value;
  }
  return nullptr;
}

std::size_t Dict::place(Budget* budget, const Value& key, std::size_t hash) const {
  if (index_.empty()) {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (equal(budget, entries_[i].first, key)) return i;
    }
    return entries_.size();
  }
  const auto [begin, end] = index_.equal_range(hash);
  for (auto at = begin; at != end; ++at) {
    if (equal(budget, entries_[at->second].first, key)) return at->second;
  }
  return entries_.size();
}

const Value* Dict::find(Budget* budget, const Value& key) const {
  if (key.string() != nullptr) return find(key.string()->text);
  const std::size_t at = place(budget, key, hash_of(budget, key));
  return at < entries_.size() ? &entries_[at].second : nullptr;
}

void Dict::set(Budget* budget, Value key, Value value) {
  const std::size_t hash = hash_of(budget, key);
  depth = std::max(depth, depth_above(std::max(key.depth(), value.depth())));
  const std::size_t at = place(budget, key, hash);
  if (at < entries_.size()) {
    entries_[at].second = std::move(value);
    return;
  }
  entries_.emplace_back(std::move(key), std::move(value));
  if (!index_.empty()) {
    index_.emplace(hash, at);
  } else if (entries_.size() > max_unindexed) {
    for (std::size_t i = 0; i < entries_.size(); ++i) index_.emplace(hash_of(budget, entries_[i].first), i);
  }
}

void Object::show(Builder& out) const { out.append(fmt::format("<{} object>", type())); }

Value Object::call(Runtime&, const Arguments&) { fail("'{}' object is not callable", type()); }

Value make_undefined(Budget* budget, std::string message) {
  auto absence = std::make_shared<Absence>();
  absence->charge = Charge(budget, sizeof(Absence) + message.size());
  absence->message = std::move(message);
  return Value(std::shared_ptr<const Absence>(std::move(absence)));
}

Value make_string(Budget* budget, std::string text, bool markup) {
  auto string = std::make_shared<String>();
  string->charge = Charge(budget, sizeof(String) + text.size());
  string->length = code_points(text);
  string->text = std::move(text);
  string->markup = markup;
  return Value(std::shared_ptr<const String>(std::move(string)));
}

Value make_list(Budget* budget, std::vector<Value> items) { return make_sequence(budget, std::move(items), false); }
Value make_tuple(Budget* budget, std::vector<Value> items) { return make_sequence(budget, std::move(items), true); }

Value make_dict(Budget* budget, Dict dict) {
  auto shared = std::make_shared<Dict>(std::move(dict));
  shared->charge = Charge(budget, sizeof(Dict) + shared->size() * (sizeof(Dict::Entry) + 4 * sizeof(void*)));
  return Value(std::shared_ptr<const Dict>(std::move(shared)));
}

bool equal(Budget* budget, const Value& a, const Value& b) {
  spend(budget, 0);
  if (const auto x = a.integer(), y = b.integer(); x && y) return *x == *y;
  if (const auto x = a.number(), y = b.number(); x && y) return *x == *y;
  if (a.data().index() != b.data().index()) return false;
  if (const String* x = a.string()) {
    spend(budget, std::min(x->text.size(), b.string()->text.size()));
    return x->text == b.string()->text;
  }
  if (const Sequence* x = a.sequence()) return equal_items(budget, *x, *b.sequence());
  if (const Dict* x = a.dict()) return equal_entries(budget, *x, *b.dict());
  if (const Object* x = a.object()) return x->equals(*b.object());
  return true;  // None, or both undefined
}

std::size_t hash_of(Budget* budget, const Value& value) {
  spend(budget, 0);
  if (const String* string = value.string()) {
    spend(budget, string->text.size());
    return std::hash<std::string_view>()(string->text);
  }
  if (const auto number = value.number()) return std::hash<double>()(*number);  // 1, 1.0 and True are one key
  if (value.is_list() || value.dict() != nullptr) fail("unhashable type: '{}'", value.type());
  if (const Sequence* tuple = value.sequence()) {
    std::size_t hash = tuple->items.size();
    for (const Value& item : tuple->items) hash = hash * 1000003 + hash_of(budget, item);
    return hash;
  }
  return std::hash<const void*>()(value.object()) + value.data().index();
}

std::string described(const Value& value) {
  if (value.is_none()) return "None";
  return fmt::format("{} object", value.type());
}

}  // namespace inlay::jinja
