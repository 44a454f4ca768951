#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "train/engine.h"

namespace inlay::train {

struct GenerateOptions {
  std::int64_t count = 32;   // new tokens, at most
  std::int32_t stop = -1;    // ends the continuation, and is not part of it; -1: nothing does
  float temperature = 0.0f;  // 0: always the likeliest token
  float top_p = 1.0f;        // drawn from the nucleus: the fewest likeliest tokens that have this much probability
  std::uint64_t seed = 0;
  std::int64_t sequence = 0;               // number of the prompt: one prompt under two numbers goes on in two ways
  std::function<void(std::int32_t)> made;  // called with every token of the continuation as it is made
};

// Continues a prompt, token by token over cached keys and values. The prompt passes in the same way, one token at a
// time: meant for looking at what a model has learned, not for serving it. The engine's decode_length counts the prompt
// and the continuation.
std::vector<std::int32_t> generate(Engine& engine, const std::vector<std::int32_t>& prompt,
                                   const GenerateOptions& options);

// Makes −∞ of all logits outside the nucleus. Of equally likely tokens those of lower ids come first.
void keep_nucleus(std::span<float> logits, float temperature, float top_p);

}  // namespace inlay::train
