#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "io/value.h"
#include "jinja/budget.h"

// The values of a template: those of Python that templates meet. Strings, lists, tuples and dicts never change once
// they are made, as the sandbox that Hugging Face renders in forbids it; so they are shared freely, and cannot hold
// themselves.
namespace inlay::jinja {

using io::Integer;  // Python's have no end; beyond 128 bits an operation fails

class Builder;
class Runtime;
struct Arguments;
class Value;
class Dict;
class Object;

struct String {
  Charge charge;
  std::string text;        // UTF-8
  std::size_t length = 0;  // code points
  bool markup = false;     // escaped HTML (|safe, |escape): what is added to it is escaped
};

// A list or a tuple.
struct Sequence {
  Charge charge;
  std::vector<Value> items;
  bool tuple = false;
  int depth = 1;
};

// Why a value is not there. An operation on it fails with this message.
struct Absence {
  Charge charge;
  std::string message;
};

struct None {};

class Value {
 public:
  using Data = std::variant<std::shared_ptr<const Absence>, None, bool, Integer, double, std::shared_ptr<const String>,
                            std::shared_ptr<const Sequence>, std::shared_ptr<const Dict>, std::shared_ptr<Object>>;

  Value() : data_(None{}) {}
  Value(Data data) : data_(std::move(data)) {}  // NOLINT: a value is made of what it holds
  static Value boolean(bool value) { return Data(value); }
  static Value integer(Integer value) { return Data(value); }
  static Value size(std::size_t value) { return Data(static_cast<Integer>(value)); }
  static Value real(double value) { return Data(value); }

  const Data& data() const { return data_; }
  bool is_undefined() const { return data_.index() == 0; }
  bool is_none() const { return data_.index() == 1; }
  bool is_boolean() const { return data_.index() == 2; }
  bool is_real() const { return data_.index() == 4; }
  bool is_list() const { return sequence() != nullptr && !sequence()->tuple; }
  bool is_tuple() const { return sequence() != nullptr && sequence()->tuple; }

  // What it holds, or null.
  const Absence* absence() const { return held<std::shared_ptr<const Absence>>(); }
  const String* string() const { return held<std::shared_ptr<const String>>(); }
  const Sequence* sequence() const { return held<std::shared_ptr<const Sequence>>(); }
  const Dict* dict() const { return held<std::shared_ptr<const Dict>>(); }
  Object* object() const { return held<std::shared_ptr<Object>>(); }
  template <class T>
  T* as() const {
    return dynamic_cast<T*>(object());
  }
  // True and False are integers, too.
  std::optional<Integer> integer() const;
  // An integer or a real.
  std::optional<double> number() const;

  bool truth() const;
  // Python's name of the type, as in "'int' object is not callable".
  std::string_view type() const;
  // How many containers stand in one another, so that nothing that walks them down goes too deep.
  int depth() const;

 private:
  template <class Pointer>
  typename Pointer::element_type* held() const {
    const Pointer* pointer = std::get_if<Pointer>(&data_);
    return pointer != nullptr ? pointer->get() : nullptr;
  }

  Data data_;
};

// Values by key, in the order in which the keys came.
class Dict {
 public:
  using Entry = std::pair<Value, Value>;

  const std::vector<Entry>& entries() const { return entries_; }
  std::size_t size() const { return entries_.size(); }
  const Value* find(Budget* budget, const Value& key) const;
  const Value* find(std::string_view key) const;
  // A key that is there keeps its place. What no dict can have for a key fails.
  void set(Budget* budget, Value key, Value value);

  Charge charge;
  int depth = 1;

 private:
  static constexpr std::size_t max_unindexed = 8;

  std::size_t place(Budget* budget, const Value& key, std::size_t hash) const;  // size() where it is not there

  std::vector<Entry> entries_;
  std::unordered_multimap<std::size_t, std::size_t> index_;  // from hash to entry, where there are many
};

// Everything that is no plain data: ranges, views, iterators, namespaces, loops, functions.
class Object : public std::enable_shared_from_this<Object> {
 public:
  virtual ~Object() = default;
  virtual std::string_view type() const = 0;
  virtual void show(Builder& out) const;  // repr()
  virtual std::optional<std::size_t> length() const { return std::nullopt; }
  virtual bool truth() const { return true; }
  virtual bool equals(const Object& other) const { return this == &other; }
  virtual int depth() const { return 1; }
  virtual std::optional<Value> attribute(Runtime&, std::string_view) { return std::nullopt; }
  virtual bool callable() const { return false; }
  virtual Value call(Runtime& runtime, const Arguments& arguments);
  // Lets go of everything it holds; for those that can change, and so can come to hold themselves.
  virtual void clear() {}

  Charge charge;
};

// Values that count against the budget; without one, against nothing.
Value make_undefined(Budget* budget, std::string message);
Value make_string(Budget* budget, std::string text, bool markup = false);
Value make_list(Budget* budget, std::vector<Value> items);
Value make_tuple(Budget* budget, std::vector<Value> items);
Value make_dict(Budget* budget, Dict dict);

// Python's ==. Work on large values is spent out of the budget, where there is one.
bool equal(Budget* budget, const Value& a, const Value& b);
std::size_t hash_of(Budget* budget, const Value& value);

// The depth of what holds values of a depth; too deep fails.
int depth_above(int depth);

// How a type is called in the message about something it lacks: "dict object".
std::string described(const Value& value);

}  // namespace inlay::jinja
