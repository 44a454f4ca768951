#pragma once

#include <string>

namespace inlay::backend::cpu {

// What products run on: "Intel(R) Xeon(R) ..., 16 threads, amx".
std::string processor();

}  // namespace inlay::backend::cpu
