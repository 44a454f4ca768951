#pragma once

#include <filesystem>
#include <optional>

#include "core/console.h"
#include "core/dtype.h"

namespace inlay::train {

struct MergeOptions {
  std::filesystem::path base, adapter, output;
  std::optional<DType> dtype;  // of all tensors; absent: each as the base has it
  // Experts that the base has in MXFP4 are packed again, which loses much of a small change; otherwise they become
  // bf16.
  bool mxfp4 = false;
};

struct MergeReport {
  std::int64_t matrices = 0;  // that have an adapter
  // Of what was learned, by squares over all of these: the share that the written numbers hold, ⟨written − base,
  // learned⟩ / ‖learned‖², and what they hold beside it, ‖written − base − learned‖ / ‖learned‖.
  double kept = 1, noise = 0;
};

// The base model with an adapter's changes in its weights, as a model of its own. Matrices are taken as they were
// trained with: those of an adapter over a quantised base are what its codes say. Sums are in fp32; one matrix at a
// time is in memory. The folder must not exist, and appears whole or not at all.
MergeReport merge(const MergeOptions& options, Console& console);

}  // namespace inlay::train
