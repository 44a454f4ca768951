#pragma once

#include <filesystem>

namespace inlay {

// Where what can be made again is kept between runs: $XDG_CACHE_HOME/inlay or ~/.cache/inlay; empty where neither is
// known.
std::filesystem::path cache_folder();

}  // namespace inlay
