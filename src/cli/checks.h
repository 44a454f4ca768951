#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "core/text.h"

// What values an option takes, in words of ours: those of the parser show numbers of 300 digits, and enumerators as
// bytes.
namespace inlay::cli {

// A whole number in a range.
inline CLI::Validator whole(std::int64_t least, std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
  return CLI::Validator(
      [least, most](std::string& text) -> std::string {
        std::int64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error == std::errc() && end == text.data() + text.size() && value >= least && value <= most) return {};
        const bool open = most == std::numeric_limits<std::int64_t>::max();
        return fmt::format("expected a whole number {}, got '{}'",
                           open ? fmt::format("of at least {}", least) : fmt::format("from {} to {}", least, most),
                           text);
      },
      "");
}

// "auto, f16 or q8_0"
inline std::string any_of(const std::vector<std::string>& names) {
  if (names.size() < 2) return join(names, "");
  return join(std::span(names).first(names.size() - 1), ", ") + " or " + names.back();
}

inline CLI::Validator one_of(const std::vector<std::string>& names) {
  return CLI::Validator(
      [names](std::string& text) -> std::string {
        if (std::find(names.begin(), names.end(), text) != names.end()) return {};
        return fmt::format("expected {}, got '{}'", any_of(names), text);
      },
      "");
}

// An option that is one of these names, and what each stands for.
template <class Target, class Value>
CLI::Option* add_choice(CLI::App& command, const std::string& name, Target& target,
                        const std::map<std::string, Value>& values, const std::string& meaning) {
  std::vector<std::string> names;
  for (const auto& [known, value] : values) names.push_back(known);
  return command
      .add_option_function<std::string>(
          name, [&target, values](const std::string& given) { target = values.at(given); }, meaning)
      ->check(one_of(names));
}

}  // namespace inlay::cli
