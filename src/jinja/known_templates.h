#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace inlay::jinja {

// Chat templates of well-known models by the names that axolotl has for them: chatml, llama3, qwen3, ... They write the
// same text as the models' own.
std::optional<std::string> known_template(std::string_view name);
std::string known_template_names();  // "alpaca, chatml, ..."

}  // namespace inlay::jinja
