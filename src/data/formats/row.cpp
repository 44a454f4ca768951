#include "data/formats/row.h"

#include "core/error.h"
#include "data/template/builder.h"
#include "io/json.h"

namespace inlay::data {
namespace {

// What stands there, for the end of a message.
std::string shown(const jinja::Value& value) {
  if (value.is_none()) return "null";
  if (value.is_boolean()) return value.truth() ? "true" : "false";
  if (value.is_real()) return jinja::format_real(*value.number());
  if (const auto integer = value.integer()) return jinja::format_integer(*integer);
  if (value.string() != nullptr) return io::in_quotes(value.string()->text);
  return value.is_list() ? "an array" : "an object";
}

}  // namespace

void Row::fail(std::string_view message) const {
  if (path_.empty()) user_error("{}: {}", where_, message);
  user_error("{}: {}: {}", where_, path_, message);
}

void Row::fail_expected(std::string_view expected) const {
  fail(fmt::format("expected {}, got {}", expected, shown(value_)));
}

const std::string& Row::text() const {
  if (!is_text()) fail_expected("a string");
  return value_.string()->text;
}

bool Row::boolean() const {
  const auto integer = value_.integer();
  if (!integer || (*integer != 0 && *integer != 1)) fail_expected("true or false");
  return *integer == 1;
}

double Row::number() const {
  if (!value_.number() || value_.is_boolean()) fail_expected("a number");
  return *value_.number();
}

std::vector<Row> Row::elements() const {
  if (!is_list()) fail_expected("an array");
  std::vector<Row> rows;
  rows.reserve(value_.sequence()->items.size());
  for (const jinja::Value& item : value_.sequence()->items) {
    rows.push_back(Row(item, where_, fmt::format("{}[{}]", path_, rows.size())));
  }
  return rows;
}

const Row& Row::expect_object() const {
  if (value_.dict() == nullptr) fail_expected("an object");
  return *this;
}

std::optional<Row> Row::find(std::string_view key) const {
  const jinja::Value* found = expect_object().value_.dict()->find(key);
  if (found == nullptr || found->is_none()) return std::nullopt;
  return Row(*found, where_, path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key));
}

Row Row::at(std::string_view key, std::string_view expected) const {
  if (auto found = find(key)) return *std::move(found);
  const std::string place = path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  user_error("{}: {}: missing, expected {}", where_, place, expected);
}

}  // namespace inlay::data
