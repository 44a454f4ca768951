#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/value.h"

namespace inlay::data {

// Something in a row that is right where all rows have it, such as a role of the data's own.
struct Doubt {
  std::string what;
  std::string error;  // where not all of them have it
};

// A row of data, or a value inside one, that knows where it stands: every error reads
// `rows.jsonl:12: messages[3].content: expected a string, got 5`. Null counts as absent. The value must outlive it.
class Row {
 public:
  // where: "rows.jsonl:12". Doubts are collected for whoever sees all rows; a row by itself leaves none.
  Row(const io::Value& value, std::string where, std::vector<Doubt>* doubts = nullptr)
      : value_(&value), where_(std::move(where)), doubts_(doubts) {}
  Row(io::Value&&, std::string, std::vector<Doubt>* = nullptr) = delete;
  // What the row stands for, in its place.
  Row meaning(const io::Value& value) const { return Row(value, where_, doubts_); }
  Row meaning(io::Value&&) const = delete;

  const io::Value& value() const { return *value_; }
  const std::string& where() const { return where_; }
  const std::string& path() const { return path_; }

  bool is_text() const { return value_->text() != nullptr; }
  bool is_list() const { return value_->list() != nullptr; }
  bool is_object() const { return value_->map() != nullptr; }

  // This value itself, checked.
  const std::string& text() const;
  bool boolean() const;  // 0 and 1 as well
  double number() const;
  std::vector<Row> elements() const;
  Row element(std::size_t index) const;  // of a list
  const Row& expect_object() const;

  // Members of an object.
  std::optional<Row> find(std::string_view key) const;
  Row at(std::string_view key, std::string_view expected) const;

  [[noreturn]] void fail(std::string_view message) const;
  [[noreturn]] void fail_expected(std::string_view expected) const;
  // The message is the error's, behind where the row is.
  void doubt(std::string what, std::string_view message) const;

 private:
  Row below(const io::Value& value, std::string path) const {
    Row row(value, where_, doubts_);
    row.path_ = std::move(path);
    return row;
  }

  const io::Value* value_;
  std::string where_, path_;
  std::vector<Doubt>* doubts_;
};

}  // namespace inlay::data
