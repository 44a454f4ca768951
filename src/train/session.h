#pragma once

#include <set>
#include <vector>

#include "data/sampler.h"
#include "train/console.h"
#include "train/memory.h"
#include "train/options.h"

// From options to what they mean on this machine: device, dtype, documents, the largest batch, the policy.
namespace inlay::train {

Device resolve_device(const std::string& text);
DType resolve_dtype(const std::string& text, Device device);

// The documents of datasets, as the options want them read, for a model with that vocabulary. Says what was left out.
data::Documents read_datasets(const std::vector<data::DatasetOptions>& datasets, const TrainOptions& options,
                              std::int64_t vocab, Console& console);
// What a run learns from, and what it is evaluated on: test_datasets, or val_set_size of the documents.
struct RunData {
  data::Documents train, test;
};
RunData read_run_data(const TrainOptions& options, std::int64_t vocab, Console& console);
// Of one file alone, whatever it holds: as the options read datasets, or with nothing but the tokenizer and the
// template of a model folder.
std::vector<Document> read_documents(const std::string& file, const TrainOptions& options, std::int64_t vocab,
                                     Console& console);
std::vector<Document> read_documents(const std::string& file, const std::string& model, std::int64_t vocab,
                                     Console& console);
data::BatchOptions batch_options(const TrainOptions& options);

// The most tokens and the longest document that a micro-batch may have, whatever the epoch's order.
struct BatchBounds {
  std::int64_t tokens = 0, document = 0;
};
BatchBounds bounds_of(const data::BatchSampler& sampler);
// Without documents at hand: by the configuration alone.
BatchBounds bounds_of(const TrainOptions& options);

// How many tokens and calls a step's gradients will see.
StepShape step_shape(const TrainOptions& options, const BatchBounds& bounds);
// Everything but the policy, which needs a plan, and what OSFT finds, which needs the model.
EngineOptions engine_options(const TrainOptions& options, const BatchBounds& bounds);
// The base model's configuration, with what the options say otherwise.
model::ModelConfig config_of(const TrainOptions& options);
// The parameters that options.freeze names; and, without OSFT, an engine that leaves them.
std::set<std::string> frozen_of(const TrainOptions& options, const model::ModelConfig& config);
void plan_frozen(const TrainOptions& options, const model::ModelConfig& config, EngineOptions& engine);
// Under OSFT: the layout by the options alone, before any direction was found.
void plan_osft(const TrainOptions& options, const model::ModelConfig& config, const BatchBounds& bounds,
               EngineOptions& engine);
// The memory that the options allow, what they decide about its use, and the rest of the decisions.
MemoryBudget budget_of(const TrainOptions& options, Device device);
MemoryDemands demands_of(const TrainOptions& options);
MemoryChoice resolve_memory(const TrainOptions& options, const model::ModelConfig& config, EngineOptions& engine);

}  // namespace inlay::train
