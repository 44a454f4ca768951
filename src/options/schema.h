#pragma once

#include <string>

// The configuration described for editors and for people, from the table that reads it.
namespace inlay::options {

// JSON Schema (draft 2020-12): types, ranges, choices, defaults and meanings of all keys, maps nested as in the file.
std::string options_schema();

// A YAML file to begin with: the required keys first, to be filled in; then every other one with its meaning and its
// default, commented out. Without the # before a key it says what holds anyway.
std::string options_template();

}  // namespace inlay::options
