#include "io/value.h"

#include <algorithm>
#include <unordered_set>

#include <fmt/format.h>

#include "io/json_reader.h"

namespace inlay::io {
namespace {

struct BuildValue {
  using Value = io::Value;
  using Keys = std::unordered_set<std::string>;  // of an object with many

  static Value boolean(bool value) { return Value::boolean(value); }
  static Value integer(Integer value) { return Value::integer(value); }
  // The parser gives everything beyond 64 bits as a real.
  static Value number(double value, const std::string& text, const std::string& source) {
    if (text.find_first_of(".eE") != text.npos) return Value::real(value);
    Integer integer = 0;
    const bool negative = text.starts_with('-');
    for (const char c : std::string_view(text).substr(negative ? 1 : 0)) {
      const Integer digit = negative ? -(c - '0') : c - '0';
      if (__builtin_mul_overflow(integer, Integer{10}, &integer) || __builtin_add_overflow(integer, digit, &integer)) {
        user_error("{}: the integer {} does not fit 128 bits", source, in_quotes(text));
      }
    }
    return Value::integer(integer);
  }
  static Value list() { return Value(Value::List()); }
  static Value map() { return Value(Value::Map()); }

  static Value* append(Value& list, Value value) { return &list.list()->emplace_back(std::move(value)); }
  static Value* insert(Value& object, Keys& keys, std::string& key) {
    constexpr std::size_t few = 16;
    Value::Map& members = *object.map();
    if (members.size() < few) {
      if (object.find(key) != nullptr) return nullptr;
    } else {
      if (keys.empty()) {
        for (const Value::Member& member : members) keys.insert(member.key);
      }
      if (!keys.insert(key).second) return nullptr;
    }
    members.push_back({std::move(key), Value()});
    return &members.back().value;
  }
};

}  // namespace

const Value* Value::find(std::string_view key) const {
  const Map* members = map();
  if (members == nullptr) return nullptr;
  const auto found = std::ranges::find(*members, key, &Member::key);
  return found != members->end() ? &found->value : nullptr;
}

Value* Value::find(std::string_view key) { return const_cast<Value*>(std::as_const(*this).find(key)); }

std::size_t Value::bytes() const {
  std::size_t sum = sizeof(Value);
  if (const std::string* string = text()) sum += string->size();
  if (const List* items = list()) {
    for (const Value& item : *items) sum += item.bytes();
  }
  if (const Map* members = map()) {
    for (const auto& [key, value] : *members) sum += sizeof(key) + key.size() + value.bytes();
  }
  return sum;
}

Value read_value(std::string_view text, const std::string& source) {
  return JsonReader<BuildValue>::read(text, source);
}

std::string shown(const Value& value) {
  if (const bool* boolean = value.boolean()) return *boolean ? "true" : "false";
  if (const Integer* integer = value.integer()) return fmt::format("{}", *integer);
  if (const double* real = value.real()) return fmt::format("{}", *real);
  if (const std::string* text = value.text()) return in_quotes(*text);
  return value.is_null() ? "null" : value.list() != nullptr ? "an array" : "an object";
}

}  // namespace inlay::io
