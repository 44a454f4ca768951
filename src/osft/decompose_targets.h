#pragma once

#include "io/checkpoint.h"
#include "osft/calibration.h"

namespace inlay::osft {

// Basis `weights`: decomposes every target's tensors one after the other. When planning, the checkpoint may be null.
void decompose_targets(Exec& exec, const OsftLayout& layout, const model::ModelConfig& config,
                       const io::Checkpoint* checkpoint, BasisStore& store, const TargetProgress& progress);

}  // namespace inlay::osft
