#include "backend/cpu/processor.h"

#include <fstream>

#include <fmt/format.h>

#include "backend/cpu/isa.h"
#include "backend/cpu/threads.h"

namespace inlay::backend::cpu {

std::string processor() {
  std::string name = "CPU";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (!line.starts_with("model name")) continue;
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) name = line.substr(colon + 2);
    break;
  }
  return fmt::format("{}, {} threads, {}", name, threads(), name_of(chosen_isa()));
}

}  // namespace inlay::backend::cpu
