#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/console.h"
#include "train/engine.h"

namespace inlay::options {
struct TrainOptions;
}

namespace inlay::train {

// What a run writes to its output folder: bytes of tensors, beside which everything else is small.
struct DiskNeed {
  std::uint64_t model = 0;       // the model, or the adapter, as it is saved
  std::uint64_t state = 0;       // in checkpoints beside it, to go on from; 0 where these are models alone
  std::int64_t checkpoints = 0;  // the most at a time, the one that is being written among them
  bool at_least = false;         // nobody knows how many there will be

  std::uint64_t checkpoint() const { return model + state; }
  // With the result.
  std::uint64_t all() const { return static_cast<std::uint64_t>(checkpoints) * checkpoint() + model; }
  // Without room for this, nothing can be saved.
  std::uint64_t least() const { return checkpoints > 0 ? checkpoint() : model; }
};

// The part of a run that is to come.
struct Ahead {
  std::int64_t steps = 0;        // of the whole run; 0: unknown
  std::int64_t done = 0;         // of them
  std::int64_t checkpoints = 0;  // that are on the disk already, and count among the most at a time
};
// Options whose save_steps and eval_steps are not whole ones yet (in_steps) do not say how many checkpoints there will
// be.
DiskNeed disk_need(const options::TrainOptions& options, const model::ModelConfig& config, const EngineOptions& engine,
                   const Ahead& ahead);
// "3 checkpoints of 1.5 GiB (model 0.5 GiB, state 1 GiB) at a time, and the result: 5 GiB"
std::string text_of(const DiskNeed& need);

// UserError where nothing could be saved.
void require_room(const DiskNeed& need, const options::TrainOptions& options);
// Before the first step: the same, and a line where not everything could.
void check_room(const DiskNeed& need, const options::TrainOptions& options, Console& console);

}  // namespace inlay::train
