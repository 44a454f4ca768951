#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace inlay::io {

using Integer = __int128;  // JSON's have no end; beyond 128 bits one is refused

// A value as JSON has it: what rows of data are made of, whatever file they come from.
class Value {
 public:
  struct Member;
  using List = std::vector<Value>;
  using Map = std::vector<Member>;  // in the order in which the keys came
  using Data = std::variant<std::monostate, bool, Integer, double, std::string, List, Map>;

  Value() = default;  // null
  explicit Value(std::string text);
  explicit Value(List list);
  explicit Value(Map map);
  static Value boolean(bool value);
  static Value integer(Integer value);
  static Value real(double value);

  const Data& data() const { return data_; }
  bool is_null() const { return data_.index() == 0; }
  // What it holds, or null where it holds something else.
  const bool* boolean() const { return std::get_if<bool>(&data_); }
  const Integer* integer() const { return std::get_if<Integer>(&data_); }
  const double* real() const { return std::get_if<double>(&data_); }
  const std::string* text() const { return std::get_if<std::string>(&data_); }
  const List* list() const { return std::get_if<List>(&data_); }
  List* list() { return std::get_if<List>(&data_); }
  const Map* map() const { return std::get_if<Map>(&data_); }
  Map* map() { return std::get_if<Map>(&data_); }
  // A map's member; null where it has none of that name, or this is no map.
  const Value* find(std::string_view key) const;
  Value* find(std::string_view key);

  // Of memory, about.
  std::size_t bytes() const;

 private:
  explicit Value(Data data);

  Data data_;
};

struct Value::Member {
  std::string key;
  Value value;
};

// Here, because a map can only be made and destroyed where its members are known.
inline Value::Value(Data data) : data_(std::move(data)) {}
inline Value::Value(std::string text) : data_(std::move(text)) {}
inline Value::Value(List list) : data_(std::move(list)) {}
inline Value::Value(Map map) : data_(std::move(map)) {}
inline Value Value::boolean(bool value) { return Value(Data(value)); }
inline Value Value::integer(Integer value) { return Value(Data(value)); }
inline Value Value::real(double value) { return Value(Data(value)); }

// A JSON document. What is not JSON, nests more than Json::max_depth levels deep, or has a key twice in one object is a
// UserError that begins with the source ("messages.json", "rows.jsonl:12").
Value read_value(std::string_view text, const std::string& source);

// For the end of a message: "an array", "an object", or the value itself, shortened.
std::string shown(const Value& value);

}  // namespace inlay::io
