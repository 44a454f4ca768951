#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "io/json.h"

namespace inlay::io {

// The words of a parser's exception that a user needs: "column 20: syntax error while parsing ...".
std::string syntax_error(std::string_view what, std::string_view text);

// Reads a JSON document of any kind of values: bounds the depth, finds keys that occur twice (the parser itself keeps
// the last in silence), and puts all mistakes alike. Build says how a value is made of its parts.
template <class Build>
class JsonReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  using Value = typename Build::Value;

  static Value read(std::string_view text, const std::string& source) {
    JsonReader reader(text, source);
    nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
    return std::move(reader.result_);
  }

  bool null() override { return add(Value()) != nullptr; }
  bool boolean(bool value) override { return add(Build::boolean(value)) != nullptr; }
  bool number_integer(std::int64_t value) override { return add(Build::integer(value)) != nullptr; }
  bool number_unsigned(std::uint64_t value) override { return add(Build::integer(value)) != nullptr; }
  bool number_float(double value, const std::string& text) override {
    return add(Build::number(value, text, source_)) != nullptr;
  }
  bool string(std::string& text) override { return add(Value(std::move(text))) != nullptr; }
  bool binary(binary_t&) override { return false; }

  bool start_object(std::size_t) override { return open(Build::map()); }
  bool start_array(std::size_t) override { return open(Build::list()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    Level& level = open_.back();
    level.member = Build::insert(*level.container, level.keys, name);
    if (level.member == nullptr) user_error("{}: the key {} occurs twice", source_, in_quotes(name));
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    user_error("{}: not valid JSON: {}", source_, syntax_error(error.what(), text_));
  }

 private:
  struct Level {
    Value* container;
    Value* member = nullptr;  // whose key was read last, of an object
    typename Build::Keys keys = {};
  };

  JsonReader(std::string_view text, const std::string& source) : text_(text), source_(source) {}

  // Containers stay where they are while they are open: only the innermost one grows.
  Value* add(Value value) {
    if (open_.empty()) return &(result_ = std::move(value));
    Level& level = open_.back();
    if (level.member == nullptr) return Build::append(*level.container, std::move(value));
    *level.member = std::move(value);
    return level.member;
  }
  bool open(Value container) {
    if (open_.size() >= Json::max_depth) user_error("{}: nested more than {} levels deep", source_, Json::max_depth);
    open_.push_back({add(std::move(container))});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view text_;
  const std::string& source_;
  std::vector<Level> open_;
  Value result_;
};

}  // namespace inlay::io
