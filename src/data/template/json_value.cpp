#include "data/template/json_value.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "data/template/unicode.h"
#include "io/json.h"

namespace inlay::data::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(Builder& out, const JsonStyle& style) : out_(out), style_(style) {}

  void write(const Value& value) {
    const Level level(out_.budget());
    if (const String* string = value.string()) return write_string(string->text);
    if (value.is_none()) return out_.append("null");
    if (value.is_boolean()) return out_.append(value.truth() ? "true" : "false");
    if (value.is_real()) return out_.append(real(*value.number()));
    if (const auto integer = value.integer()) return out_.append(format_integer(*integer));
    if (const Sequence* sequence = value.sequence()) return write_array(*sequence);
    if (const Dict* dict = value.dict()) return write_object(*dict);
    fail("Object of type {} is not JSON serializable", value.type());
  }

 private:
  static std::string real(double value) {
    if (std::isfinite(value)) return format_real(value);
    return std::isnan(value) ? "NaN" : value < 0 ? "-Infinity" : "Infinity";
  }

  void write_string(std::string_view text) {
    out_.append("\"");
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t begin = at;
      while (at < text.size() && plain(text[at])) ++at;
      out_.append(text.substr(begin, at - begin));
      if (at < text.size()) escape(decode(text, at));
    }
    out_.append("\"");
  }

  bool plain(char c) const {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0x20 && c != '"' && c != '\\' && (byte < 0x7f || !style_.ensure_ascii);
  }

  void escape(char32_t point) {
    constexpr std::string_view special = "\"\\\b\f\n\r\t", names = "\"\\bfnrt";
    const std::size_t known = point < 0x80 ? special.find(static_cast<char>(point)) : special.npos;
    if (known != special.npos) return out_.append(fmt::format("\\{}", names[known]));
    if (point < 0x10000) return out_.append(fmt::format("\\u{:04x}", static_cast<unsigned>(point)));
    const auto rest = static_cast<unsigned>(point) - 0x10000;
    out_.append(fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (rest >> 10), 0xdc00 + (rest & 0x3ff)));
  }

  void new_line() {
    if (!style_.indent) return;
    out_.append("\n");
    out_.append(*style_.indent, static_cast<std::size_t>(depth_));
  }

  void write_array(const Sequence& sequence) {
    if (sequence.items.empty()) return out_.append("[]");
    out_.append("[");
    ++depth_;
    for (std::size_t i = 0; i < sequence.items.size(); ++i) {
      if (i > 0) out_.append(style_.item_separator);
      new_line();
      write(sequence.items[i]);
    }
    --depth_;
    new_line();
    out_.append("]");
  }

  // Keys that are numbers, True, False or None become texts.
  std::string key_text(const Value& key) {
    if (const String* string = key.string()) return string->text;
    if (key.is_none()) return "null";
    if (key.is_boolean()) return key.truth() ? "true" : "false";
    if (key.is_real()) return real(*key.number());
    if (const auto integer = key.integer()) return format_integer(*integer);
    fail("keys must be str, int, float, bool or None, not {}", key.type());
  }

  void write_object(const Dict& dict) {
    if (dict.size() == 0) return out_.append("{}");
    std::vector<const Dict::Entry*> entries;
    for (const Dict::Entry& entry : dict.entries()) entries.push_back(&entry);
    if (style_.sort_keys) sort(entries);
    out_.append("{");
    ++depth_;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_.append(style_.item_separator);
      new_line();
      write_string(key_text(entries[i]->first));
      out_.append(style_.key_separator);
      write(entries[i]->second);
    }
    --depth_;
    new_line();
    out_.append("}");
  }

  void sort(std::vector<const Dict::Entry*>& entries) {
    out_.budget().spend(entries.size());
    std::ranges::stable_sort(entries, [&](const Dict::Entry* a, const Dict::Entry* b) {
      const String *x = a->first.string(), *y = b->first.string();
      if (x == nullptr || y == nullptr) fail("sort_keys wants keys that are all texts");
      return x->text < y->text;
    });
  }

  Builder& out_;
  const JsonStyle& style_;
  int depth_ = 0;
};

// Receives the parser's events and builds the values.
class JsonReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit JsonReader(const std::string& where) : where_(where) {}

  bool null() override { return add(Value()); }
  bool boolean(bool value) override { return add(Value::boolean(value)); }
  bool number_integer(std::int64_t value) override { return add(Value::integer(value)); }
  bool number_unsigned(std::uint64_t value) override { return add(Value::integer(value)); }
  bool number_float(double value, const std::string& text) override {
    if (text.find_first_of(".eE") != text.npos) return add(Value::real(value));
    return add(Value::integer(large_integer(text)));
  }
  bool string(std::string& text) override { return add(make_string(nullptr, std::move(text))); }
  bool binary(binary_t&) override { return false; }

  bool start_object(std::size_t) override { return open(true); }
  bool start_array(std::size_t) override { return open(false); }
  bool key(std::string& name) override {
    Container& object = open_.back();
    if (object.dict.find(name) != nullptr) user_error("{}: the key {} occurs twice", where_, io::in_quotes(name));
    object.key = make_string(nullptr, std::move(name));
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    std::string_view what = error.what();  // "[json.exception...] parse error at line 1, column 2: syntax error ..."
    if (const auto at = what.find("] "); what.starts_with('[') && at != what.npos) what.remove_prefix(at + 2);
    user_error("{}: not valid JSON at byte {}: {}", where_, position, what.substr(0, 240));
  }

  Value take() { return std::move(result_); }

 private:
  static constexpr std::size_t max_depth = 256;

  struct Container {
    bool object = false;
    Dict dict;
    Value key;
    std::vector<Value> items;
  };

  bool add(Value value) {
    if (open_.empty()) {
      result_ = std::move(value);
    } else if (open_.back().object) {
      open_.back().dict.set(nullptr, std::move(open_.back().key), std::move(value));
    } else {
      open_.back().items.push_back(std::move(value));
    }
    return true;
  }
  bool open(bool object) {
    if (open_.size() >= max_depth) user_error("{}: nested more than {} levels deep", where_, max_depth);
    open_.emplace_back().object = object;
    return true;
  }
  bool close() {
    Container closed = std::move(open_.back());
    open_.pop_back();
    return add(closed.object ? make_dict(nullptr, std::move(closed.dict))
                             : make_list(nullptr, std::move(closed.items)));
  }

  Integer large_integer(const std::string& text) const {
    Integer value = 0;
    const bool negative = text.starts_with('-');
    for (const char c : std::string_view(text).substr(negative ? 1 : 0)) {
      const Integer digit = negative ? -(c - '0') : c - '0';
      if (__builtin_mul_overflow(value, Integer{10}, &value) || __builtin_add_overflow(value, digit, &value)) {
        user_error("{}: the integer {} does not fit 128 bits", where_, io::in_quotes(text));
      }
    }
    return value;
  }

  const std::string& where_;
  std::vector<Container> open_;
  Value result_;
};

}  // namespace

void append_json(Builder& out, const Value& value, const JsonStyle& style) { JsonWriter(out, style).write(value); }

Value read_json(std::string_view text, const std::string& where) {
  JsonReader reader(where);
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  return reader.take();
}

}  // namespace inlay::data::jinja
