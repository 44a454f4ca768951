#pragma once

#include <string>
#include <string_view>

#include "io/json.h"

namespace inlay::data::tokenizer {

// A regular expression in Oniguruma's syntax (its default, Ruby's), rewritten so that PCRE2 with UTF, UCP and MULTILINE
// finds the same. What differs and cannot be rewritten is an error about `json`.
std::string pcre2_pattern(const io::Json& json, std::string_view source);

}  // namespace inlay::data::tokenizer
