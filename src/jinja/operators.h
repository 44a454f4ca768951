#pragma once

#include "jinja/runtime.h"

// Python's operators on values. What Python raises for an exception fails here, with the same words where users are
// likely to look for them.
namespace inlay::jinja {

enum class Arithmetic { add, subtract, multiply, divide, floor_divide, modulo, power };
enum class Comparison { equal, unequal, less, less_equal, greater, greater_equal, in, not_in };

Value arithmetic(Runtime& runtime, Arithmetic operation, const Value& a, const Value& b);
Value negate(const Value& value);
Value affirm(const Value& value);  // unary plus
bool compare(Runtime& runtime, Comparison comparison, const Value& a, const Value& b);
bool less(Runtime& runtime, const Value& a, const Value& b);
bool contains(Runtime& runtime, const Value& container, const Value& value);

// container.name: the attribute first, then the item. Neither there: undefined.
Value get_attribute(Runtime& runtime, const Value& object, std::string_view name);
// container[key]: the item first, then the attribute.
Value get_item(Runtime& runtime, const Value& object, const Value& key);
// The attribute alone: a method, or what namespaces and loops have.
std::optional<Value> find_attribute(Runtime& runtime, const Value& object, std::string_view name);
// container[start:stop:step]; None where a bound was left out.
Value slice(Runtime& runtime, const Value& object, const Value& start, const Value& stop, const Value& step);

Value call(Runtime& runtime, const Value& callee, const Arguments& arguments);

// Fails with the reason where the value is undefined.
void require_defined(const Value& value);

// The place of a text in another, from a byte on, or npos; in time that does not depend on what they hold.
std::size_t find_text(Budget& budget, std::string_view text, std::string_view wanted, std::size_t from = 0);

}  // namespace inlay::jinja
