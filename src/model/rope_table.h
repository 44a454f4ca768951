#pragma once

#include <vector>

#include "model/config.h"

namespace inlay::model {

// The angle that position 1 turns each pair by, after scaling; rotary_dim / 2 of them.
std::vector<float> rope_frequencies(const RopeConfig& rope);

// fp32 [positions, rotary_dim / 2, 2]: cosine and sine, scaled as the kind asks.
std::vector<float> rope_table(const RopeConfig& rope, std::int64_t positions);

}  // namespace inlay::model
