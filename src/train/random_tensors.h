#pragma once

#include <cstdint>
#include <vector>

#include "backend/exec.h"

// Numbers for measurements: zeros would multiply faster than real data do.
namespace inlay::train {

// Normal numbers, at most a block of them.
inline constexpr std::size_t random_block_size = std::size_t{1} << 20;
std::vector<float> random_block(std::size_t count, float scale, std::uint64_t seed);
// The whole view (fp32 or bf16), with the block repeated; nothing when planning.
void fill_random(backend::Exec& exec, View view, float scale, std::uint64_t seed);

}  // namespace inlay::train
