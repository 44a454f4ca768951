#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace inlay::io {

// What an integer or a number may be; out of range is an error that says what would be right.
struct IntegerRange {
  std::int64_t min = std::numeric_limits<std::int64_t>::min();
  std::int64_t max = std::numeric_limits<std::int64_t>::max();
};
inline constexpr IntegerRange any_integer{}, non_negative_integer{.min = 0}, positive_integer{.min = 1};

struct NumberRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;  // min itself is excluded
};
inline constexpr NumberRange any_number{}, non_negative_number{.min = 0}, positive_number{.min = 0, .above_min = true};

// A value inside a JSON document that knows the file it came from and the keys that lead to it, so that every error
// reads `config.json: rope_scaling.factor: expected a number above 0, got "abc"`. Cheap to copy; the document lives as
// long as any of its values. Null counts as absent wherever a value is optional.
class Json {
 public:
  static constexpr std::size_t max_file_bytes = std::size_t{256} << 20;
  static constexpr int max_depth = 256;

  // Refuses what is not JSON, keys that occur twice in one object, nesting below max_depth and larger files.
  static Json read(const std::filesystem::path& path);
  // The same for text at hand; source stands where errors name the file.
  static Json parse(std::string_view text, std::string source);

  // The document's file and this value's place in it ("rope_scaling.factor", empty at the root).
  const std::string& source() const { return *source_; }
  const std::string& path() const { return path_; }
  const nlohmann::json& raw() const { return *value_; }

  bool is_object() const;
  bool is_array() const;
  bool is_string() const;
  bool is_boolean() const;
  bool is_number() const;

  // This value itself, checked. An integer may be spelt 4096.0.
  std::int64_t as_integer(IntegerRange range = any_integer) const;
  double as_number(NumberRange range = any_number) const;
  bool as_boolean() const;
  std::string as_string() const;
  std::vector<Json> elements() const;     // of an array
  std::vector<std::string> keys() const;  // of an object, sorted
  std::vector<std::int64_t> as_integers(IntegerRange range = any_integer) const;
  std::vector<double> as_numbers(NumberRange range = any_number) const;
  std::vector<std::string> as_strings() const;
  const Json& expect_object() const;

  // Members of an object. The plain form is required; find_ gives nothing where the key is absent or null, so that a
  // default reads json.find_number("rope_theta").value_or(10000.0).
  bool has(std::string_view key) const { return find(key).has_value(); }
  Json at(std::string_view key) const;
  std::optional<Json> find(std::string_view key) const;

  std::int64_t integer(std::string_view key, IntegerRange range = any_integer) const;
  double number(std::string_view key, NumberRange range = any_number) const;
  bool boolean(std::string_view key) const;
  std::string string(std::string_view key) const;
  Json object(std::string_view key) const;
  std::vector<Json> array(std::string_view key) const;
  std::vector<std::int64_t> integers(std::string_view key, IntegerRange range = any_integer) const;

  std::optional<std::int64_t> find_integer(std::string_view key, IntegerRange range = any_integer) const;
  std::optional<double> find_number(std::string_view key, NumberRange range = any_number) const;
  std::optional<bool> find_boolean(std::string_view key) const;
  std::optional<std::string> find_string(std::string_view key) const;
  std::optional<Json> find_object(std::string_view key) const;
  std::optional<std::vector<Json>> find_array(std::string_view key) const;
  std::optional<std::vector<std::int64_t>> find_integers(std::string_view key, IntegerRange range = any_integer) const;

  // An error about this value, or about one of its members, in the same form.
  [[noreturn]] void fail(std::string_view message) const;
  [[noreturn]] void fail(std::string_view key, std::string_view message) const;

 private:
  Json(std::shared_ptr<const nlohmann::json> value, std::shared_ptr<const std::string> source, std::string path);

  Json required(std::string_view key, std::string_view expected) const;
  Json element(std::size_t index) const;
  const nlohmann::json& expect_array(std::string_view of) const;
  [[noreturn]] void fail_expected(std::string_view expected) const;

  std::shared_ptr<const nlohmann::json> value_;  // shares the ownership of the whole document
  std::shared_ptr<const std::string> source_;
  std::string path_;
};

// Text in quotes, escaped and shortened so that it can stand in a message whatever a file holds.
std::string in_quotes(std::string_view text);

}  // namespace inlay::io
