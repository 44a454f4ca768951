#pragma once

#include "data/template/builder.h"

namespace inlay::data::jinja {

// How json.dumps() is asked to write.
struct JsonStyle {
  bool ensure_ascii = false;
  std::optional<std::string> indent;  // of one level; absent: all on one line
  std::string item_separator = ", ", key_separator = ": ";
  bool sort_keys = false;
};
void append_json(Builder& out, const Value& value, const JsonStyle& style);

// A JSON document as values, keys in the order of the text. What is not JSON, nests too deep or has a key twice is a
// UserError that begins with where ("messages.json", "rows.jsonl:12").
Value read_json(std::string_view text, const std::string& where);

}  // namespace inlay::data::jinja
