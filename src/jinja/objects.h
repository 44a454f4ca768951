#pragma once

#include <functional>

#include "jinja/runtime.h"

namespace inlay::jinja {

class Range final : public Object {
 public:
  static constexpr std::size_t max_length = 100000;  // as in Jinja's sandbox

  Range(Integer start, Integer stop, Integer step);

  std::size_t size() const { return size_; }
  Integer at(std::size_t index) const { return start_ + static_cast<Integer>(index) * step_; }
  bool holds(Integer value) const;
  // The items from one index up to another, in strides.
  Value part(Runtime& runtime, Integer first, Integer end, Integer stride) const;

  std::string_view type() const override { return "range"; }
  void show(Builder& out) const override;
  std::optional<std::size_t> length() const override { return size_; }
  bool truth() const override { return size_ > 0; }
  bool equals(const Object& other) const override;

 private:
  Integer start_, stop_, step_;
  std::size_t size_ = 0;
};

// dict.keys(), .values() and .items().
class DictView final : public Object {
 public:
  enum class Part { keys, values, items };
  DictView(Value dict, Part part) : dict_(std::move(dict)), part_(part) {}

  const Dict& dict() const { return *dict_.dict(); }
  Part part() const { return part_; }
  Value at(Runtime& runtime, std::size_t index) const;

  std::string_view type() const override;
  void show(Builder& out) const override;
  std::optional<std::size_t> length() const override { return dict().size(); }
  bool truth() const override { return dict().size() > 0; }
  int depth() const override { return dict_.depth(); }

 private:
  Value dict_;
  Part part_;
};

// What map, select and their like return: it can be walked over once, item by item as they are asked for.
class Iterator final : public Object {
 public:
  using Source = std::function<std::optional<Value>()>;

  Iterator(Source source, int depth, std::string_view type) : source_(std::move(source)), depth_(depth), type_(type) {}
  std::optional<Value> next(Runtime& runtime);
  std::string_view type() const override { return type_; }
  int depth() const override { return depth_; }

 private:
  Source source_;
  int depth_;
  std::string_view type_;
};
// Over what is there already, or over what a function gives that itself walks over a value.
Value make_iterator(Runtime& runtime, std::vector<Value> items, std::string_view type = "generator");
Value make_iterator(Runtime& runtime, const Value& over, Iterator::Source source);

// namespace(): the one thing that a template can change.
class Namespace final : public Object {
 public:
  static Value make(Runtime& runtime, Dict attributes);
  void set(Runtime& runtime, std::string_view name, Value value);

  std::string_view type() const override { return "jinja2.utils.Namespace"; }
  void show(Builder& out) const override;
  std::optional<Value> attribute(Runtime& runtime, std::string_view name) override;
  void clear() override { attributes_ = {}; }

 private:
  Dict attributes_;
};

// A method and the value it belongs to.
using Method = Value (*)(Runtime& runtime, const Value& self, const Arguments& arguments);
class BoundMethod final : public Object {
 public:
  BoundMethod(Value self, std::string_view name, Method method)
      : self_(std::move(self)), name_(name), method_(method) {}
  std::string_view type() const override { return "builtin_function_or_method"; }
  void show(Builder& out) const override;
  bool callable() const override { return true; }
  Value call(Runtime& runtime, const Arguments& arguments) override { return method_(runtime, self_, arguments); }
  int depth() const override { return self_.depth() + 1; }

 private:
  Value self_;
  std::string name_;
  Method method_;
};

// A function that every template knows: range, namespace, raise_exception and so on; null where there is none.
using Function = Value (*)(Runtime& runtime, const Arguments& arguments);
Function find_function(std::string_view name);
class Builtin final : public Object {
 public:
  Builtin(std::string_view name, Function function) : name_(name), function_(function) {}
  std::string_view type() const override { return "function"; }
  void show(Builder& out) const override { out.append(fmt::format("<function {}>", name_)); }
  bool callable() const override { return true; }
  Value call(Runtime& runtime, const Arguments& arguments) override { return function_(runtime, arguments); }

 private:
  std::string_view name_;
  Function function_;
};

// Methods by name; null where the type has none of that name. Those that would change the value are there as well, and
// fail, as the sandbox has it.
Method find_string_method(std::string_view name);
Method find_sequence_method(const Sequence& sequence, std::string_view name);
Method find_dict_method(std::string_view name);

// |filter and "is test" by name.
using Filter = Value (*)(Runtime& runtime, const Value& input, const Arguments& arguments);
using Test = bool (*)(Runtime& runtime, const Value& input, const Arguments& arguments);
Filter find_filter(std::string_view name);
Test find_test(std::string_view name);

}  // namespace inlay::jinja
