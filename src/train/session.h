#pragma once

#include <set>

#include "osft/find_bases.h"
#include "train/memory.h"
#include "train/run_data.h"

// From options to what they mean on this machine: device, dtype, the engine and its memory.
namespace inlay::train {

Device resolve_device(const std::string& text);
DType resolve_dtype(const std::string& text, Device device);

// How many tokens and calls a step's gradients will see.
osft::StepShape step_shape(const options::TrainOptions& options, const BatchBounds& bounds);
// Everything but the policy, which needs a plan, and what OSFT finds, which needs the model.
EngineOptions engine_options(const options::TrainOptions& options, const BatchBounds& bounds);
// The base model's configuration, with what the options say otherwise.
model::ModelConfig config_of(const options::TrainOptions& options);
// The parameters that options.freeze names; and, without OSFT, an engine that leaves them.
std::set<std::string> frozen_of(const options::TrainOptions& options, const model::ModelConfig& config);
void plan_frozen(const options::TrainOptions& options, const model::ModelConfig& config, EngineOptions& engine);
// Under OSFT: the layout by the options alone, before any direction was found.
void plan_osft(const options::TrainOptions& options, const model::ModelConfig& config, const BatchBounds& bounds,
               EngineOptions& engine);
// What the search for OSFT's directions must know of the options, which must outlive it.
osft::SearchInputs search_inputs(const options::TrainOptions& options, const model::ModelConfig& config, Device device,
                                 Console& console);
// The memory that the options allow, what they decide about its use, and the rest of the decisions.
MemoryBudget budget_of(const options::TrainOptions& options, Device device);
MemoryDemands demands_of(const options::TrainOptions& options);
MemoryChoice resolve_memory(const options::TrainOptions& options, const model::ModelConfig& config,
                            EngineOptions& engine);

}  // namespace inlay::train
