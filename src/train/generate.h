#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/console.h"
#include "model/decoding.h"
#include "train/session.h"

namespace inlay::train {

struct GenerateOptions {
  std::int64_t count = 32;                  // new tokens, at most
  std::vector<std::int32_t> stops;          // each ends the continuation, and is not part of it
  bool keep_stop = false;                   // but is its last token
  model::Drawing drawing;                   // first_sequence: one prompt under two numbers goes on in two ways
  parallel::Communicator* ranks = nullptr;  // that write the same together (model/decoding.h)
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

// As many answers at once as are worth it, up to `count`, each with its prompt of at most so many tokens.
std::int64_t answers_at_once(const Machine& machine, const model::ModelConfig& config, std::size_t count,
                             std::int64_t longest);
// Gives an engine the memory for them.
void plan_answers(EngineOptions& engine, const model::ModelConfig& config, std::size_t count, std::int64_t longest);
// Any number of prompts, as many at once as the engine has memory for; `ranks`, `made` and `ended` of the options are
// not used. All processes of the engine's mesh call it with the same prompts and get all answers: they divide them, or
// where they share the weights write each together. Ctrl-C throws Interrupted, on all of them.
std::vector<std::vector<std::int32_t>> answer_all(Engine& engine, const std::vector<std::vector<std::int32_t>>& prompts,
                                                  const GenerateOptions& options, Console& console);

}  // namespace inlay::train
