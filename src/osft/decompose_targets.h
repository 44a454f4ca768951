#pragma once

#include "io/checkpoint.h"
#include "osft/calibration.h"

namespace inlay::osft {

// Basis `weights`: decomposes the tensors of this process's targets one after the other. When planning, the checkpoint
// may be null.
void decompose_targets(Exec& exec, const OsftLayout& layout, const model::ModelConfig& config,
                       const io::Checkpoint* checkpoint, BasisStore& store, const TargetProgress& progress,
                       const SearchTeam& team);

}  // namespace inlay::osft
