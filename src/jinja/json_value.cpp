#include "jinja/json_value.h"

#include <algorithm>
#include <cmath>

#include "jinja/unicode.h"

namespace inlay::jinja {
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
      if (x == nullptr || y == nullptr) fail("sort_keys needs keys that are all strings");
      return x->text < y->text;
    });
  }

  Builder& out_;
  const JsonStyle& style_;
  int depth_ = 0;
};

struct Converter {
  Value operator()(std::monostate) const { return {}; }
  Value operator()(bool value) const { return Value::boolean(value); }
  Value operator()(Integer value) const { return Value::integer(value); }
  Value operator()(double value) const { return Value::real(value); }
  Value operator()(const std::string& text) const { return make_string(nullptr, text); }
  Value operator()(const io::Value::List& list) const {
    std::vector<Value> items;
    items.reserve(list.size());
    for (const io::Value& item : list) items.push_back(from(item));
    return make_list(nullptr, std::move(items));
  }
  Value operator()(const io::Value::Map& map) const {
    Dict dict;
    for (const auto& [key, value] : map) dict.set(nullptr, make_string(nullptr, key), from(value));
    return make_dict(nullptr, std::move(dict));
  }
};

}  // namespace

void append_json(Builder& out, const Value& value, const JsonStyle& style) { JsonWriter(out, style).write(value); }

Value from(const io::Value& value) { return std::visit(Converter{}, value.data()); }

Value message(std::string role, std::string content) {
  Dict dict;
  dict.set(nullptr, make_string(nullptr, "role"), make_string(nullptr, std::move(role)));
  dict.set(nullptr, make_string(nullptr, "content"), make_string(nullptr, std::move(content)));
  return make_dict(nullptr, std::move(dict));
}

}  // namespace inlay::jinja
