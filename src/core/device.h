#pragma once

#include <string_view>

#include <inlay/types.h>

namespace inlay {

constexpr std::string_view name_of(Device device) { return device == Device::cpu ? "cpu" : "cuda"; }

}  // namespace inlay
