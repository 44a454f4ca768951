#pragma once

#include <cstdint>

namespace inlay::options {

// How weights change. muon: matrices of the layers; embeddings, the head, norms, biases and routers by AdamW.
// schedule_free: AdamW whose result is an average over all steps, so that the learning rate need not fall.
enum class OptimizerKind : std::uint8_t { adamw, muon, schedule_free };
// What an orthogonal change is multiplied by, beside the learning rate: √max(1, rows / columns), as Muon was published,
// or 0.2 · √max(rows, columns), which makes it as large as AdamW's, so that learning rates carry over.
enum class MuonScale : std::uint8_t { shape, adamw };

}  // namespace inlay::options
