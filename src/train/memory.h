#pragma once

#include <optional>
#include <string>

#include "train/engine.h"

// Fits a run into the memory there is: which activations stay, which are computed again or wait on the host or a disk,
// how large the MLP's tiles are, how many layers live on the host.
namespace inlay::train {

struct MemoryBudget {
  std::size_t device = 0;
  std::size_t host = 0;  // for the host's arena; the CPU has one memory, and both arenas share `device`
  std::string disk;      // a folder for what the host cannot hold; empty: none
};

// What the device can give: free GPU memory less a reserve for the driver, or the host's available memory.
std::size_t memory_budget(Device device);
std::size_t host_memory_budget();

// What the user has decided already.
struct MemoryDemands {
  std::optional<model::ActivationPolicy> policy;
  std::optional<std::int64_t> mlp_tile;    // 0: all rows at once
  std::optional<std::int64_t> loss_chunk;  // rows of logits at once
  std::optional<std::int64_t> host_layers;
  // For people: how less can be asked for where weights, gradients and moments are what takes the room.
  std::string lighter =
      "train fewer parameters (osft with a smaller unfreeze_rank_ratio), or set optimizer_state: bf16";
};

struct MemoryChoice {
  MemoryPlan plan;
  bool fits = false;
  std::string reason;  // why not less was given up; or, where it does not fit, what would help
};

// Sets policy, tile, layers on the host and the spill folder in the options: the first that fit, in the order of what
// they cost. Keeping what is dearest to compute again comes first; then computing again, taking inputs off the device,
// fewer rows of logits, layers on the host, and a disk at last. Where nothing fits, the options are those that need the
// least of the device.
MemoryChoice choose_memory(const model::ModelConfig& config, EngineOptions& options, const MemoryDemands& demands,
                           const MemoryBudget& budget);

// The longest single document that a micro-batch may have, at most `most`; 0 where not even two tokens fit.
std::int64_t longest_context(const model::ModelConfig& config, EngineOptions options, const MemoryDemands& demands,
                             const MemoryBudget& budget, std::int64_t most);

}  // namespace inlay::train
