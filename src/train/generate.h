#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/decoding.h"
#include "train/engine.h"

namespace inlay::train {

struct GenerateOptions {
  std::int64_t count = 32;          // new tokens, at most
  std::vector<std::int32_t> stops;  // each ends the continuation, and is not part of it
  model::Drawing drawing;           // first_sequence: one prompt under two numbers goes on in two ways
  // Called with every token of a continuation as it is made.
  std::function<void(std::size_t prompt, std::int32_t token)> made;
  std::function<void(std::size_t prompt)> ended;  // after its last token
};

// Continues prompts, all of them at once, over cached keys and values. The engine's decode_sequences counts the
// prompts, and its decode_length the tokens of the longest with its continuation.
std::vector<std::vector<std::int32_t>> generate(Engine& engine, std::span<const std::vector<std::int32_t>> prompts,
                                                const GenerateOptions& options);
std::vector<std::int32_t> generate(Engine& engine, const std::vector<std::int32_t>& prompt,
                                   const GenerateOptions& options);

}  // namespace inlay::train
