#pragma once

#include "jinja/builder.h"

namespace inlay::jinja {

// How json.dumps() is asked to write.
struct JsonStyle {
  bool ensure_ascii = false;
  std::optional<std::string> indent;  // of one level; absent: all on one line
  std::string item_separator = ", ", key_separator = ": ";
  bool sort_keys = false;
};
void append_json(Builder& out, const Value& value, const JsonStyle& style);

// Values of data as a template sees them.
Value from(const io::Value& value);

// {"role": ..., "content": ...}
Value message(std::string role, std::string content);

}  // namespace inlay::jinja
