#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace inlay {

// A variable of the environment that Inlay reads. They are for what a configuration should not hold: where a machine
// keeps things, how a terminal is spoken to, which of several kernels is tried.
struct EnvironmentVariable {
  std::string_view name;
  std::vector<std::string_view> values;  // others are a UserError; empty: any text
  std::string_view unset;                // what holds where it is not set
  std::string_view meaning;
};

// All of them; docs/environment.md is made from this table.
std::span<const EnvironmentVariable> environment_variables();

// The value of one of them; nothing where it is not set, or empty.
std::optional<std::string> environment(std::string_view name);

}  // namespace inlay
