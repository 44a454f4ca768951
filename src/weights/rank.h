#pragma once

#include <cstdint>

namespace inlay::weights {

// How many of `full` directions train when a share `ratio` of them is to: round(ratio · full), raised to a multiple of
// 64 so that products stay aligned (of 16 below 512 directions, of 8 below 128, of 1 below 64), at least one and at
// most all. Ratio 1 is all of them; 0 or less is refused where the option is read.
std::int64_t trainable_rank(double ratio, std::int64_t full);

}  // namespace inlay::weights
