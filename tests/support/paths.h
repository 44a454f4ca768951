#pragma once

#include <filesystem>

// Where the project and its program are. Only paths.cpp is compiled with these paths in it, so that checkouts in
// different folders share the compiler's cache.
namespace inlay::testing {

std::filesystem::path source_folder();
std::filesystem::path program();

}  // namespace inlay::testing
