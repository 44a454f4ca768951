#pragma once

#include <string_view>

#include "data/formats/format.h"

namespace inlay::data {

// A message with the names that templates know: mapped properties first, then the others. Nulls are gone, content of
// several texts is one, and the arguments of tool calls that are JSON in a string are values. `skip`: names that are
// not for the template.
io::Value message_for_template(const Row& message, const std::map<std::string, std::string>& mappings,
                               const std::vector<std::string>& skip);

// Whether it says nothing, and the message with an empty text to say.
bool lacks_content(const jinja::Value& message);
jinja::Value with_empty_content(const jinja::Value& message);

// What a message thought before it spoke: under one of the names that datasets have for it, or in its content, up to
// </think>. Without the white space around it; empty where there is none.
std::string_view reasoning_of(const jinja::Value& message);

// Without white space (of ASCII) at its beginning and end.
std::string_view trimmed(std::string_view text);

// Tools as templates want them: an array, whose functions' parameters are values. Either may be JSON in a string.
io::Value tools_for_template(const Row& tools);

}  // namespace inlay::data
