#pragma once

#include "bench/bench.h"
#include "train/engine.h"

namespace inlay::bench {

struct StepArguments {
  std::int64_t documents = 1, length = 2048;
  int iterations = 10;
  bool mxfp4_experts = false;  // experts are loaded as such
  bool ragged = false;         // documents are half as long again and half as long, in turn; an even number of them
};

// Steps of a method on a model's shape.
struct MethodStep {
  std::string model = "llama-8b", policy = "auto";
  std::int64_t tokens = 16384, documents = 1, layers = 0;
  bool deterministic = false;

  model::ModelConfig config() const;
  train::BatchBounds bounds() const { return {.tokens = tokens, .document = tokens / documents}; }
};
void add_method_step(CLI::App& command, MethodStep& step);

// What is learned.
struct Learned {
  std::string objective = "next", teacher;
};
void add_objective(CLI::App& command, Learned& learned);
// Documents are chosen and rejected in turn where preferences are learned. model: a teacher's shape, unless it has one.
void set_objective(train::EngineOptions& options, const Learned& learned, const std::string& model,
                   std::int64_t documents);

// Random numbers for all that a checkpoint would give, and under OSFT for the directions.
void give_random_weights(train::Engine& engine, bool mxfp4_experts = false);

// A training step of a model with random weights (and, under OSFT, random directions): time, peak, floor.
Report time_step(const model::ModelConfig& config, const train::EngineOptions& options, const StepArguments& shape);

}  // namespace inlay::bench
