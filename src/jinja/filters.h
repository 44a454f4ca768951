#pragma once

#include "jinja/runtime.h"

// What stands behind find_filter(). The names and parameters are Jinja's; tojson is Hugging Face's.
namespace inlay::jinja::filters {

using Call = Value(Runtime& runtime, const Value& input, const Arguments& arguments);

// filters_text.cpp
Call capitalize_text, escape, indent, length, lower_text, replace, safe, string, title_text, trim, upper_text, to_json;

// filters_number.cpp
Call absolute, to_float, to_int, round;

// filters_sequence.cpp
Call default_value, first, items, join, last, list, reverse, sum;

// filters_order.cpp
Call dict_sort, maximum, minimum, sort, unique;

// filters_choice.cpp: those that are given another filter or test by its name
Call map, reject, reject_attribute, select, select_attribute;

// A path to a part of an item: "a.b.0", or an index.
class Path {
 public:
  Path(Runtime& runtime, const Value* path);  // null or None: the item itself
  // With otherwise: that wherever a part is not there.
  Value of(Runtime& runtime, Value item, const Value* otherwise = nullptr) const;

 private:
  std::vector<Value> parts_;
};

}  // namespace inlay::jinja::filters
