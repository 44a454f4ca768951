#include <algorithm>

#include "jinja/objects.h"
#include "jinja/operators.h"

// What may stand behind "is".
namespace inlay::jinja {
namespace {

const Value& the_argument(const Arguments& arguments) {
  if (arguments.positional.size() != 1 || !arguments.named.empty()) {
    fail("the test takes one argument, got {}", arguments.positional.size() + arguments.named.size());
  }
  return arguments.positional[0];
}

bool divides(Runtime& runtime, const Value& value, const Value& by, Integer remainder) {
  const Value rest = arithmetic(runtime, Arithmetic::modulo, value, by);
  return equal(&runtime.budget(), rest, Value::integer(remainder));
}

bool is_odd(Runtime& runtime, const Value& value, const Arguments&) {
  return divides(runtime, value, Value::integer(2), 1);
}
bool is_even(Runtime& runtime, const Value& value, const Arguments&) {
  return divides(runtime, value, Value::integer(2), 0);
}
bool is_divisible(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return divides(runtime, value, the_argument(arguments), 0);
}

bool is_defined(Runtime&, const Value& value, const Arguments&) { return !value.is_undefined(); }
bool is_undefined(Runtime&, const Value& value, const Arguments&) { return value.is_undefined(); }
bool is_none(Runtime&, const Value& value, const Arguments&) { return value.is_none(); }
bool is_boolean(Runtime&, const Value& value, const Arguments&) { return value.is_boolean(); }
bool is_true(Runtime&, const Value& value, const Arguments&) { return value.is_boolean() && value.truth(); }
bool is_false(Runtime&, const Value& value, const Arguments&) { return value.is_boolean() && !value.truth(); }
bool is_integer(Runtime&, const Value& value, const Arguments&) {
  return value.integer().has_value() && !value.is_boolean();
}
bool is_float(Runtime&, const Value& value, const Arguments&) { return value.is_real(); }
bool is_number(Runtime&, const Value& value, const Arguments&) { return value.number().has_value(); }
bool is_string(Runtime&, const Value& value, const Arguments&) { return value.string() != nullptr; }
bool is_mapping(Runtime&, const Value& value, const Arguments&) { return value.dict() != nullptr; }
bool is_iterable_value(Runtime&, const Value& value, const Arguments&) { return is_iterable(value); }
bool is_callable(Runtime&, const Value& value, const Arguments&) {
  return value.is_undefined() || (value.object() != nullptr && value.object()->callable());
}
// What has a length and can be indexed; a dict as well.
bool is_sequence(Runtime&, const Value& value, const Arguments&) {
  return value.is_undefined() || value.string() != nullptr || value.sequence() != nullptr || value.dict() != nullptr ||
         value.as<Range>() != nullptr;
}

template <bool wanted_upper>
bool is_case(Runtime& runtime, const Value& value, const Arguments&) {
  return find_string_method(wanted_upper ? "isupper" : "islower")(runtime, runtime.text_of(value), Arguments()).truth();
}

// Python's "is": the same thing, not an equal one. Of small integers and texts it is luck there, and equality here.
bool is_same(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Value& other = the_argument(arguments);
  if (value.data().index() != other.data().index()) return false;
  if (value.sequence() != nullptr) return value.sequence() == other.sequence();
  if (value.dict() != nullptr) return value.dict() == other.dict();
  if (value.is_undefined()) return value.absence() == other.absence();
  return value.object() != nullptr ? value.object() == other.object() : equal(&runtime.budget(), value, other);
}

template <Comparison comparison>
bool compares(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return compare(runtime, comparison, value, the_argument(arguments));
}

struct NamedTest {
  std::string_view name;
  Test test;
};
constexpr NamedTest tests[] = {
    {"!=", compares<Comparison::unequal>},
    {"<", compares<Comparison::less>},
    {"<=", compares<Comparison::less_equal>},
    {"==", compares<Comparison::equal>},
    {">", compares<Comparison::greater>},
    {">=", compares<Comparison::greater_equal>},
    {"boolean", is_boolean},
    {"callable", is_callable},
    {"defined", is_defined},
    {"divisibleby", is_divisible},
    {"eq", compares<Comparison::equal>},
    {"equalto", compares<Comparison::equal>},
    {"even", is_even},
    {"false", is_false},
    {"float", is_float},
    {"ge", compares<Comparison::greater_equal>},
    {"greaterthan", compares<Comparison::greater>},
    {"gt", compares<Comparison::greater>},
    {"in", compares<Comparison::in>},
    {"integer", is_integer},
    {"iterable", is_iterable_value},
    {"le", compares<Comparison::less_equal>},
    {"lessthan", compares<Comparison::less>},
    {"lower", is_case<false>},
    {"lt", compares<Comparison::less>},
    {"mapping", is_mapping},
    {"ne", compares<Comparison::unequal>},
    {"none", is_none},
    {"number", is_number},
    {"odd", is_odd},
    {"sameas", is_same},
    {"sequence", is_sequence},
    {"string", is_string},
    {"true", is_true},
    {"undefined", is_undefined},
    {"upper", is_case<true>},
};

}  // namespace

Test find_test(std::string_view name) {
  const auto found = std::ranges::lower_bound(tests, name, {}, &NamedTest::name);
  return found != std::end(tests) && found->name == name ? found->test : nullptr;
}

}  // namespace inlay::jinja
