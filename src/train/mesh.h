#pragma once

#include "options/train_options.h"
#include "parallel/mesh.h"
#include "train/memory.h"

// How the processes of a run divide it.
namespace inlay::train {

// By the options, but for the stage. Every process calls it. UserError where nodes are unequal and shards are theirs.
parallel::Mesh make_mesh(const options::TrainOptions& options, const std::shared_ptr<parallel::Communicator>& all);
// What the first of so many processes would have, so many of them on each node: to plan with.
parallel::Mesh planned_mesh(const options::TrainOptions& options, int processes, int per_node);

// As the first process has it. All plan with this, so that all decide alike; what others have differs by a row of a
// matrix.
parallel::Mesh as_first_process(parallel::Mesh mesh);

// The name of each rank's host. Every process calls it.
std::vector<std::string> hosts_of(parallel::Communicator& ranks);

// What every process can count on: the least that any of them has, of what those on one host share its part.
MemoryBudget common_budget(MemoryBudget mine, const parallel::Mesh& mesh, Device device);

// Sets the stage, too, where the user has not: the lowest that fits without taking layers off the device, or the
// highest. The same on every process.
MemoryChoice choose_memory_together(const model::ModelConfig& config, EngineOptions& options,
                                    const MemoryDemands& demands, const MemoryBudget& budget,
                                    std::optional<parallel::Zero> zero);

}  // namespace inlay::train
