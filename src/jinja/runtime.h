#pragma once

#include <array>
#include <ctime>
#include <initializer_list>
#include <span>

#include "jinja/builder.h"

namespace inlay::jinja {

// What everything that runs for a template shares: the budget, the values made out of it, and the time of day.
class Runtime {
 public:
  Runtime(const Limits& limits, const std::tm& now) : budget_(limits), now_(now) {}
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  Budget& budget() { return budget_; }
  const std::tm& now() const { return now_; }

  Value string(std::string text, bool markup = false) { return make_string(&budget_, std::move(text), markup); }
  Value string(std::string_view text) { return make_string(&budget_, copied(text)); }
  Value string(const char* text) { return string(std::string_view(text)); }
  Value list(std::vector<Value> items) { return make_list(&budget_, std::move(items)); }
  Value tuple(std::vector<Value> items) { return make_tuple(&budget_, std::move(items)); }
  Value dict(Dict dict) { return make_dict(&budget_, std::move(dict)); }
  Value undefined(std::string message) { return make_undefined(&budget_, std::move(message)); }
  template <class T, class... Args>
  Value object(Args&&... args) {
    auto made = std::make_shared<T>(std::forward<Args>(args)...);
    made->charge = Charge(&budget_, sizeof(T));
    return Value(std::shared_ptr<Object>(std::move(made)));
  }

  // str() of a value, without a copy where it is a string.
  Value text_of(const Value& value);

  // Holds an object that can change until the end, and then empties it: those that hold themselves go, too, and long
  // chains of them are not taken down by recursion.
  void keep(std::shared_ptr<Object> object);

 private:
  std::string copied(std::string_view text) {
    budget_.spend_on_bytes(text.size());
    return std::string(text);
  }

  Budget budget_;
  std::tm now_;
  std::vector<std::shared_ptr<Object>> kept_;
};

// What a function is called with.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Arguments sorted into a function's parameters. Too many, too few, unknown names and wrong types fail.
class Parameters {
 public:
  static constexpr std::size_t max_count = 6;

  Parameters(std::string_view function, const Arguments& arguments, std::initializer_list<std::string_view> names,
             std::size_t required);

  // Null where it was not given.
  const Value* find(std::size_t index) const { return values_[index]; }
  const Value& operator[](std::size_t index) const { return *values_[index]; }
  bool given(std::size_t index) const { return values_[index] != nullptr; }
  // Given, and not None.
  bool set(std::size_t index) const { return given(index) && !values_[index]->is_none(); }

  Value value(std::size_t index, Value otherwise) const { return given(index) ? *values_[index] : otherwise; }
  bool truth(std::size_t index, bool otherwise) const { return given(index) ? values_[index]->truth() : otherwise; }
  Integer integer(std::size_t index) const;
  Integer integer(std::size_t index, Integer otherwise) const { return given(index) ? integer(index) : otherwise; }
  std::string_view text(std::size_t index) const;
  std::string_view text(std::size_t index, std::string_view otherwise) const {
    return given(index) ? text(index) : otherwise;
  }

 private:
  std::string_view function_;
  std::vector<std::string_view> names_;
  std::array<const Value*, max_count> values_{};
};

// Walks over what can be iterated: items, keys, characters. What cannot fails.
class Cursor {
 public:
  Cursor(Runtime& runtime, Value source);
  std::optional<Value> next();
  // How many there are in all, where that is known without walking.
  std::optional<std::size_t> length() const;

 private:
  Runtime& runtime_;
  Value source_;
  std::size_t at_ = 0;  // item, entry, or byte of a string
};

bool is_iterable(const Value& value);
std::vector<Value> items_of(Runtime& runtime, const Value& value);
// Python's len().
std::size_t length_of(const Value& value);

}  // namespace inlay::jinja
