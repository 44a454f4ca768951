#pragma once

#include <vector>

#include "model/config.h"

namespace inlay::model {

// The angle that position 1 turns each pair by, after scaling; rotary_dim / 2 of them.
std::vector<float> rope_frequencies(const RopeConfig& rope, bool long_document = false);

// The rows of a table for documents of up to so many tokens. Where documents of more than original_positions tokens
// rotate otherwise, their rows follow those of the shorter ones, from long_row() on.
std::int64_t rope_rows(const RopeConfig& rope, std::int64_t positions);
// Where the rows of long documents begin; 0 where all documents share them.
std::int64_t long_row(const RopeConfig& rope);

// fp32 [rope_rows(), rotary_dim / 2, 2]: cosine and sine, scaled as the kind asks.
std::vector<float> rope_table(const RopeConfig& rope, std::int64_t positions);

}  // namespace inlay::model
