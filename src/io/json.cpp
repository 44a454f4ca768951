#include "io/json.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/utf8.h"
#include "io/file.h"
#include "io/json_reader.h"

namespace inlay::io {
namespace {

constexpr std::size_t max_shown = 120;

std::string shortened(std::string text, std::size_t limit = max_shown) {
  if (text.size() <= limit) return text;
  std::size_t end = limit;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0u) == 0x80u) --end;  // not inside a UTF-8 character
  return text.substr(0, end) + "...";
}

// A key as it stands in a path of keys: plain where it is printable, as most are.
std::string shown_key(std::string_view key) {
  const auto printable = [](char c) { return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f; };
  if (key.empty() || !std::ranges::all_of(key, printable)) return in_quotes(key);
  return shortened(std::string(key));
}

// What stands in the document, for the end of an error message.
std::string shown(const nlohmann::json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  if (value.is_string()) return in_quotes(value.get_ref<const std::string&>());
  return value.dump();
}

std::string described(IntegerRange range) {
  if (range.min == 1 && range.max == any_integer.max) return "a positive integer";
  if (range.min == 0 && range.max == any_integer.max) return "a non-negative integer";
  if (range.min == any_integer.min && range.max == any_integer.max) return "an integer";
  if (range.max == any_integer.max) return fmt::format("an integer of at least {}", range.min);
  if (range.min == any_integer.min) return fmt::format("an integer of at most {}", range.max);
  return fmt::format("an integer from {} to {}", range.min, range.max);
}

std::string described(NumberRange range) {
  std::string text = "a number";
  if (range.min != any_number.min) text += fmt::format(" {} {}", range.above_min ? "above" : "of at least", range.min);
  if (range.max != any_number.max) text += fmt::format("{} at most {}", text == "a number" ? " of" : " and", range.max);
  return text;
}

std::optional<std::int64_t> integral(const nlohmann::json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(any_integer.max)) return std::nullopt;
    return static_cast<std::int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number_float()) {
    const auto number = value.get<double>();
    if (std::abs(number) <= 0x1p53 && std::trunc(number) == number) return static_cast<std::int64_t>(number);
  }
  return std::nullopt;
}

std::optional<std::int64_t> integral(const nlohmann::json& value, IntegerRange range) {
  const auto number = integral(value);
  return number && range.min <= *number && *number <= range.max ? number : std::nullopt;
}

std::optional<double> real(const nlohmann::json& value, NumberRange range) {
  if (!value.is_number()) return std::nullopt;
  const auto number = value.get<double>();
  const bool inside = (range.above_min ? number > range.min : number >= range.min) && number <= range.max;
  return inside ? std::optional(number) : std::nullopt;
}

struct BuildDocument {
  using Value = nlohmann::json;
  struct Keys {};

  static Value boolean(bool value) { return value; }
  template <class T>
  static Value integer(T value) {
    return value;
  }
  static Value number(double value, const std::string&, const std::string&) { return value; }
  static Value list() { return Value::array(); }
  static Value map() { return Value::object(); }
  static Value* append(Value& list, Value value) { return &list.emplace_back(std::move(value)); }
  static Value* insert(Value& object, Keys&, std::string& key) {
    const auto [member, is_new] = object.emplace(key, nullptr);
    return is_new ? &*member : nullptr;
  }
};

}  // namespace

std::string in_quotes(std::string_view text) {
  // Bytes that are not UTF-8 become the replacement character.
  return nlohmann::json(shortened(std::string(text.substr(0, 2 * max_shown))))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Json::Json(std::shared_ptr<const nlohmann::json> value, std::shared_ptr<const std::string> source, std::string path)
    : value_(std::move(value)), source_(std::move(source)), path_(std::move(path)) {}

Json Json::read(const std::filesystem::path& path) { return parse(read_file(path, max_file_bytes), path.string()); }

Json Json::parse(std::string_view text, std::string source) {
  auto shared_source = std::make_shared<const std::string>(std::move(source));
  auto value = std::make_shared<const nlohmann::json>(JsonReader<BuildDocument>::read(text, *shared_source));
  return Json(std::move(value), std::move(shared_source), "");
}

// "[json.exception.parse_error.101] parse error at line 1, column 2: ...": of a text of one line, the column is enough.
std::string syntax_error(std::string_view what, std::string_view text) {
  // The parser shows bytes as they are, which a terminal cannot.
  if (what.find("ill-formed UTF-8") != what.npos) {
    const std::string_view before = text.substr(0, valid_utf8_prefix(text));
    if (before.size() < text.size()) return not_utf8(before, static_cast<unsigned char>(text[before.size()]));
  }
  const auto drop = [&](std::string_view words) {
    if (what.starts_with(words)) what.remove_prefix(words.size());
  };
  if (const auto at = what.find("] "); what.starts_with('[') && at != what.npos) what.remove_prefix(at + 2);
  drop("parse error at ");
  if (text.find('\n') == text.npos) drop("line 1, ");
  return shortened(std::string(what), 2 * max_shown);
}

bool Json::is_object() const { return value_->is_object(); }
bool Json::is_array() const { return value_->is_array(); }
bool Json::is_string() const { return value_->is_string(); }
bool Json::is_boolean() const { return value_->is_boolean(); }
bool Json::is_number() const { return value_->is_number(); }

void Json::fail(std::string_view message) const {
  if (path_.empty()) user_error("{}: {}", *source_, message);
  user_error("{}: {}: {}", *source_, path_, message);
}

void Json::fail(std::string_view key, std::string_view message) const {
  const std::string name = shown_key(key);
  user_error("{}: {}{}{}: {}", *source_, path_, path_.empty() ? "" : ".", name, message);
}

void Json::fail_expected(std::string_view expected) const {
  fail(fmt::format("expected {}, got {}", expected, shown(*value_)));
}

std::int64_t Json::as_integer(IntegerRange range) const {
  const auto number = integral(*value_, range);
  if (!number) fail_expected(described(range));
  return *number;
}

double Json::as_number(NumberRange range) const {
  const auto number = real(*value_, range);
  if (!number) fail_expected(described(range));
  return *number;
}

bool Json::as_boolean() const {
  if (!value_->is_boolean()) fail_expected("true or false");
  return value_->get<bool>();
}

std::string Json::as_string() const {
  if (!value_->is_string()) fail_expected("a string");
  return value_->get<std::string>();
}

const Json& Json::expect_object() const {
  if (!value_->is_object()) fail_expected("an object");
  return *this;
}

const nlohmann::json& Json::expect_array(std::string_view of) const {
  if (!value_->is_array()) fail_expected(fmt::format("an array{}", of));
  return *value_;
}

Json Json::element(std::size_t index) const {
  return Json({value_, &(*value_)[index]}, source_, fmt::format("{}[{}]", path_, index));
}

std::vector<Json> Json::elements() const {
  const std::size_t size = expect_array("").size();
  std::vector<Json> result;
  result.reserve(size);
  for (std::size_t i = 0; i < size; ++i) result.push_back(element(i));
  return result;
}

std::vector<std::string> Json::keys() const {
  std::vector<std::string> result;
  for (const auto& [key, value] : expect_object().value_->items()) result.push_back(key);
  return result;
}

std::vector<std::int64_t> Json::as_integers(IntegerRange range) const {
  const nlohmann::json& values = expect_array(" of integers");
  std::vector<std::int64_t> result;
  result.reserve(values.size());
  for (const nlohmann::json& value : values) {
    const auto number = integral(value, range);
    if (!number) element(result.size()).fail_expected(described(range));
    result.push_back(*number);
  }
  return result;
}

std::vector<double> Json::as_numbers(NumberRange range) const {
  const nlohmann::json& values = expect_array(" of numbers");
  std::vector<double> result;
  result.reserve(values.size());
  for (const nlohmann::json& value : values) {
    const auto number = real(value, range);
    if (!number) element(result.size()).fail_expected(described(range));
    result.push_back(*number);
  }
  return result;
}

std::vector<std::string> Json::as_strings() const {
  const nlohmann::json& values = expect_array(" of strings");
  std::vector<std::string> result;
  result.reserve(values.size());
  for (const nlohmann::json& value : values) {
    if (!value.is_string()) element(result.size()).fail_expected("a string");
    result.push_back(value.get<std::string>());
  }
  return result;
}

std::optional<Json> Json::find(std::string_view key) const {
  expect_object();
  const auto found = value_->find(key);
  if (found == value_->end() || found->is_null()) return std::nullopt;
  const std::string name = shown_key(key);
  return Json({value_, &*found}, source_, path_.empty() ? name : fmt::format("{}.{}", path_, name));
}

Json Json::required(std::string_view key, std::string_view expected) const {
  if (auto found = find(key)) return *std::move(found);
  const bool is_null = value_->contains(key);
  fail(key, is_null ? fmt::format("expected {}, got null", expected) : fmt::format("missing, expected {}", expected));
}

Json Json::at(std::string_view key) const { return required(key, "a value"); }

std::int64_t Json::integer(std::string_view key, IntegerRange range) const {
  return required(key, described(range)).as_integer(range);
}
double Json::number(std::string_view key, NumberRange range) const {
  return required(key, described(range)).as_number(range);
}
bool Json::boolean(std::string_view key) const { return required(key, "true or false").as_boolean(); }
std::string Json::string(std::string_view key) const { return required(key, "a string").as_string(); }
Json Json::object(std::string_view key) const { return required(key, "an object").expect_object(); }
std::vector<Json> Json::array(std::string_view key) const { return required(key, "an array").elements(); }
std::vector<std::int64_t> Json::integers(std::string_view key, IntegerRange range) const {
  return required(key, "an array of integers").as_integers(range);
}

std::optional<std::int64_t> Json::find_integer(std::string_view key, IntegerRange range) const {
  const auto found = find(key);
  return found ? std::optional(found->as_integer(range)) : std::nullopt;
}
std::optional<double> Json::find_number(std::string_view key, NumberRange range) const {
  const auto found = find(key);
  return found ? std::optional(found->as_number(range)) : std::nullopt;
}
std::optional<bool> Json::find_boolean(std::string_view key) const {
  const auto found = find(key);
  return found ? std::optional(found->as_boolean()) : std::nullopt;
}
std::optional<std::string> Json::find_string(std::string_view key) const {
  const auto found = find(key);
  return found ? std::optional(found->as_string()) : std::nullopt;
}
std::optional<Json> Json::find_object(std::string_view key) const {
  const auto found = find(key);
  return found ? std::optional(found->expect_object()) : std::nullopt;
}
std::optional<std::vector<Json>> Json::find_array(std::string_view key) const {
  const auto found = find(key);
  return found ? std::optional(found->elements()) : std::nullopt;
}
std::optional<std::vector<std::int64_t>> Json::find_integers(std::string_view key, IntegerRange range) const {
  const auto found = find(key);
  return found ? std::optional(found->as_integers(range)) : std::nullopt;
}

}  // namespace inlay::io
