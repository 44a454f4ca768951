#pragma once

#include <cstdint>
#include <vector>

#include "train/engine.h"

namespace inlay::train {

// Greedy continuation of a prompt: the likeliest next token, until `stop` comes or `count` are made. Every token runs
// the whole sequence again: meant for looking at what a model has learnt, not for serving it.
std::vector<std::int32_t> generate(Engine& engine, std::vector<std::int32_t> prompt, std::int64_t count,
                                   std::int32_t stop);

}  // namespace inlay::train
