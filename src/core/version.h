#pragma once

#include <string_view>

namespace inlay {

// "1.2.3"
std::string_view version_number();

}  // namespace inlay
