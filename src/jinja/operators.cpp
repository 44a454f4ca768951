#include "jinja/operators.h"

#include <cstring>

#include <algorithm>
#include <cmath>

#include "jinja/objects.h"
#include "jinja/unicode.h"

namespace inlay::jinja {
namespace {

std::string_view symbol(Arithmetic operation) {
  constexpr std::string_view symbols[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};
  return symbols[static_cast<std::size_t>(operation)];
}

[[noreturn]] void fail_unsupported(Arithmetic operation, const Value& a, const Value& b) {
  fail("unsupported operand type(s) for {}: '{}' and '{}'", symbol(operation), a.type(), b.type());
}

[[noreturn]] void fail_overflow() { fail("integers beyond 128 bits are not supported"); }

Integer floor_quotient(Integer a, Integer b) {
  if (b == 0) fail("integer division or modulo by zero");
  if (b == -1) {
    Integer result = 0;
    if (__builtin_sub_overflow(Integer{0}, a, &result)) fail_overflow();
    return result;
  }
  const Integer quotient = a / b;
  return quotient * b != a && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Integer floor_remainder(Integer a, Integer b) {
  if (b == 0) fail("integer division or modulo by zero");
  if (b == -1) return 0;
  const Integer remainder = a % b;
  return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

Integer integer_power(Integer base, Integer exponent) {
  Integer result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) fail_overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) fail_overflow();
  }
  return result;
}

double real_power(double base, double exponent) {
  if (base == 0 && exponent < 0) fail("0.0 cannot be raised to a negative power");
  if (base < 0 && std::trunc(exponent) != exponent) fail("complex numbers are not supported");
  const double result = std::pow(base, exponent);
  if (std::isinf(result) && std::isfinite(base) && std::isfinite(exponent)) fail("Numerical result out of range");
  return result;
}

double real_remainder(double a, double b) {
  if (b == 0) fail("float modulo by zero");
  double remainder = std::fmod(a, b);
  if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
  return remainder == 0 ? std::copysign(0.0, b) : remainder;
}

Value integer_arithmetic(Arithmetic operation, Integer a, Integer b) {
  Integer result = 0;
  switch (operation) {
    case Arithmetic::add:
      if (__builtin_add_overflow(a, b, &result)) fail_overflow();
      return Value::integer(result);
    case Arithmetic::subtract:
      if (__builtin_sub_overflow(a, b, &result)) fail_overflow();
      return Value::integer(result);
    case Arithmetic::multiply:
      if (__builtin_mul_overflow(a, b, &result)) fail_overflow();
      return Value::integer(result);
    case Arithmetic::divide:
      if (b == 0) fail("division by zero");
      return Value::real(static_cast<double>(a) / static_cast<double>(b));
    case Arithmetic::floor_divide: return Value::integer(floor_quotient(a, b));
    case Arithmetic::modulo: return Value::integer(floor_remainder(a, b));
    case Arithmetic::power: break;
  }
  if (b < 0) return Value::real(real_power(static_cast<double>(a), static_cast<double>(b)));
  return Value::integer(integer_power(a, b));
}

Value real_arithmetic(Arithmetic operation, double a, double b) {
  switch (operation) {
    case Arithmetic::add: return Value::real(a + b);
    case Arithmetic::subtract: return Value::real(a - b);
    case Arithmetic::multiply: return Value::real(a * b);
    case Arithmetic::divide:
      if (b == 0) fail("float division by zero");
      return Value::real(a / b);
    case Arithmetic::floor_divide:
      if (b == 0) fail("float floor division by zero");
      return Value::real(std::floor((a - real_remainder(a, b)) / b + 0.5));
    case Arithmetic::modulo: return Value::real(real_remainder(a, b));
    case Arithmetic::power: break;
  }
  return Value::real(real_power(a, b));
}

void append_operand(Builder& out, const String& operand, bool markup) {
  if (markup && !operand.markup) {
    append_escaped(out, operand.text);
  } else {
    out.append(operand.text);
  }
}

Value concatenate(Runtime& runtime, const Value& a, const Value& b) {
  if (a.string() != nullptr && b.string() != nullptr) {
    const bool markup = a.string()->markup || b.string()->markup;
    Builder out(runtime.budget());
    append_operand(out, *a.string(), markup);
    append_operand(out, *b.string(), markup);
    return out.finish(markup);
  }
  if (a.sequence() != nullptr && b.sequence() != nullptr && a.is_tuple() == b.is_tuple()) {
    std::vector<Value> items = items_of(runtime, a);
    runtime.budget().spend_on_bytes(b.sequence()->items.size() * sizeof(Value));
    items.insert(items.end(), b.sequence()->items.begin(), b.sequence()->items.end());
    return a.is_tuple() ? runtime.tuple(std::move(items)) : runtime.list(std::move(items));
  }
  if (a.string() != nullptr || a.sequence() != nullptr) {
    fail("can only concatenate {} (not \"{}\") to {}", a.type(), b.type(), a.type());
  }
  fail_unsupported(Arithmetic::add, a, b);
}

// A text, list or tuple, times over.
Value repeat(Runtime& runtime, const Value& value, Integer times) {
  const std::size_t size = value.string() != nullptr ? value.string()->text.size() : value.sequence()->items.size();
  constexpr Integer beyond = Integer{1} << 48;  // more than any budget
  const auto count = size == 0 || times <= 0 ? std::size_t{0} : static_cast<std::size_t>(std::min(times, beyond));
  if (const String* string = value.string()) {
    Builder out(runtime.budget());
    out.append(string->text, count);
    return out.finish(string->markup);
  }
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(count, size * sizeof(Value), &bytes)) bytes = std::string::npos;
  const Charge charge(&runtime.budget(), bytes);  // while it is made
  runtime.budget().spend_on_bytes(bytes);
  std::vector<Value> items;
  items.reserve(count * size);
  const std::vector<Value>& once = value.sequence()->items;
  for (std::size_t i = 0; i < count; ++i) items.insert(items.end(), once.begin(), once.end());
  return value.is_tuple() ? runtime.tuple(std::move(items)) : runtime.list(std::move(items));
}

bool repeatable(const Value& value) { return value.string() != nullptr || value.sequence() != nullptr; }

std::string_view symbol(Comparison comparison) {
  constexpr std::string_view symbols[] = {"==", "!=", "<", "<=", ">", ">=", "in", "not in"};
  return symbols[static_cast<std::size_t>(comparison)];
}

// a < b, or a <= b where or_equal says so.
std::optional<bool> before(Runtime& runtime, const Value& a, const Value& b, bool or_equal) {
  runtime.budget().spend(1);
  if (const auto x = a.integer(), y = b.integer(); x && y) return or_equal ? *x <= *y : *x < *y;
  if (const auto x = a.number(), y = b.number(); x && y) return or_equal ? *x <= *y : *x < *y;
  if (const String* x = a.string(), *y = b.string(); x != nullptr && y != nullptr) {
    runtime.budget().spend_on_bytes(std::min(x->text.size(), y->text.size()));
    const int order = x->text.compare(y->text);
    return order < 0 || (or_equal && order == 0);
  }
  const Sequence *x = a.sequence(), *y = b.sequence();
  if (x == nullptr || y == nullptr || x->tuple != y->tuple) return std::nullopt;
  const std::size_t shared = std::min(x->items.size(), y->items.size());
  for (std::size_t i = 0; i < shared; ++i) {
    if (equal(&runtime.budget(), x->items[i], y->items[i])) continue;
    return compare(runtime, or_equal ? Comparison::less_equal : Comparison::less, x->items[i], y->items[i]);
  }
  return x->items.size() < y->items.size() || (or_equal && x->items.size() == y->items.size());
}

bool ordered(Runtime& runtime, Comparison comparison, const Value& a, const Value& b) {
  require_defined(a);
  require_defined(b);
  const bool flipped = comparison == Comparison::greater || comparison == Comparison::greater_equal;
  const bool or_equal = comparison == Comparison::less_equal || comparison == Comparison::greater_equal;
  const auto result = flipped ? before(runtime, b, a, or_equal) : before(runtime, a, b, or_equal);
  if (result) return *result;
  fail("'{}' not supported between instances of '{}' and '{}'", symbol(comparison), a.type(), b.type());
}

}  // namespace

void require_defined(const Value& value) {
  if (value.is_undefined()) fail("{}", value.absence()->message);
}

std::size_t find_text(Budget& budget, std::string_view text, std::string_view wanted, std::size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const void* found = memmem(text.data() + from, text.size() - from, wanted.data(), wanted.size());
  const std::size_t at = found == nullptr ? std::string_view::npos
                                          : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
  budget.spend_on_bytes(wanted.size() + std::min(at, text.size()) - from);
  return at;
}

Value arithmetic(Runtime& runtime, Arithmetic operation, const Value& a, const Value& b) {
  require_defined(a);
  require_defined(b);
  if (const auto x = a.integer(), y = b.integer(); x && y) return integer_arithmetic(operation, *x, *y);
  if (const auto x = a.number(), y = b.number(); x && y) return real_arithmetic(operation, *x, *y);
  if (operation == Arithmetic::add) return concatenate(runtime, a, b);
  if (operation == Arithmetic::multiply) {
    if (repeatable(a) && b.integer()) return repeat(runtime, a, *b.integer());
    if (repeatable(b) && a.integer()) return repeat(runtime, b, *a.integer());
    if (repeatable(a) || repeatable(b)) {
      fail("can't multiply sequence by non-int of type '{}'", repeatable(a) ? b.type() : a.type());
    }
  }
  fail_unsupported(operation, a, b);
}

Value negate(const Value& value) {
  require_defined(value);
  if (value.is_real()) return Value::real(-*value.number());
  if (const auto integer = value.integer()) return integer_arithmetic(Arithmetic::subtract, 0, *integer);
  fail("bad operand type for unary -: '{}'", value.type());
}

Value affirm(const Value& value) {
  require_defined(value);
  if (value.is_real()) return value;
  if (const auto integer = value.integer()) return Value::integer(*integer);
  fail("bad operand type for unary +: '{}'", value.type());
}

bool compare(Runtime& runtime, Comparison comparison, const Value& a, const Value& b) {
  switch (comparison) {
    case Comparison::equal: return equal(&runtime.budget(), a, b);
    case Comparison::unequal: return !equal(&runtime.budget(), a, b);
    case Comparison::in: return contains(runtime, b, a);
    case Comparison::not_in: return !contains(runtime, b, a);
    default: return ordered(runtime, comparison, a, b);
  }
}

bool less(Runtime& runtime, const Value& a, const Value& b) { return ordered(runtime, Comparison::less, a, b); }

bool contains(Runtime& runtime, const Value& container, const Value& value) {
  if (const String* text = container.string()) {
    if (value.string() == nullptr) {
      fail("'in <string>' requires string as left operand, not {}", value.type());
    }
    return find_text(runtime.budget(), text->text, value.string()->text) != std::string_view::npos;
  }
  if (const Dict* dict = container.dict()) return dict->find(&runtime.budget(), value) != nullptr;
  if (const auto* view = container.as<DictView>(); view != nullptr && view->part() == DictView::Part::keys) {
    return view->dict().find(&runtime.budget(), value) != nullptr;
  }
  if (const auto* range = container.as<Range>(); range != nullptr && value.integer()) {
    return range->holds(*value.integer());
  }
  if (!is_iterable(container)) fail("argument of type '{}' is not iterable", container.type());
  Cursor cursor(runtime, container);
  while (const auto item = cursor.next()) {
    if (equal(&runtime.budget(), *item, value)) return true;
  }
  return false;
}

Value call(Runtime& runtime, const Value& callee, const Arguments& arguments) {
  require_defined(callee);
  if (callee.object() == nullptr) fail("'{}' object is not callable", callee.type());
  const Level level(runtime.budget());
  return callee.object()->call(runtime, arguments);
}

}  // namespace inlay::jinja
