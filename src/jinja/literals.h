#pragma once

#include "jinja/value.h"

namespace inlay::jinja {

// A number of Python at a place where a digit stands; the place is moved behind it.
struct Number {
  bool real = false;
  std::optional<Value> value;  // absent: it does not fit
};
Number read_number(std::string_view text, std::size_t& at);

// What the inside of a quoted string stands for. A Failure's place counts from the beginning of the text.
std::string unescaped(std::string_view text);

}  // namespace inlay::jinja
