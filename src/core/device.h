#pragma once

#include <cstdint>
#include <string_view>

namespace inlay {

enum class Device : std::uint8_t { cpu, cuda };

constexpr std::string_view name_of(Device device) { return device == Device::cpu ? "cpu" : "cuda"; }

}  // namespace inlay
