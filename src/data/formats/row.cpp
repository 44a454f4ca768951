#include "data/formats/row.h"

#include "core/error.h"

namespace inlay::data {
void Row::fail(std::string_view message) const {
  if (path_.empty()) user_error("{}: {}", where_, message);
  user_error("{}: {}: {}", where_, path_, message);
}

void Row::fail_expected(std::string_view expected) const {
  fail(fmt::format("expected {}, got {}", expected, io::shown(*value_)));
}

void Row::doubt(std::string what, std::string_view message) const {
  if (doubts_ != nullptr) doubts_->push_back({std::move(what), fmt::format("{}: {}", where_, message)});
}

const std::string& Row::text() const {
  if (!is_text()) fail_expected("a string");
  return *value_->text();
}

bool Row::boolean() const {
  if (const bool* boolean = value_->boolean()) return *boolean;
  const io::Integer* integer = value_->integer();
  if (integer == nullptr || (*integer != 0 && *integer != 1)) fail_expected("true or false");
  return *integer == 1;
}

double Row::number() const {
  if (const double* real = value_->real()) return *real;
  if (value_->integer() == nullptr) fail_expected("a number");
  return static_cast<double>(*value_->integer());
}

std::vector<Row> Row::elements() const {
  if (!is_list()) fail_expected("an array");
  std::vector<Row> rows;
  rows.reserve(value_->list()->size());
  for (std::size_t i = 0; i < value_->list()->size(); ++i) rows.push_back(element(i));
  return rows;
}

Row Row::element(std::size_t index) const {
  return below((*value_->list())[index], fmt::format("{}[{}]", path_, index));
}

const Row& Row::expect_object() const {
  if (!is_object()) fail_expected("an object");
  return *this;
}

std::optional<Row> Row::find(std::string_view key) const {
  const io::Value* found = expect_object().value_->find(key);
  if (found == nullptr || found->is_null()) return std::nullopt;
  return below(*found, path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key));
}

Row Row::at(std::string_view key, std::string_view expected) const {
  if (auto found = find(key)) return *std::move(found);
  const std::string place = path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  user_error("{}: {}: missing, expected {}", where_, place, expected);
}

}  // namespace inlay::data
