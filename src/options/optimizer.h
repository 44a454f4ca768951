#pragma once

#include <cstdint>

namespace inlay::options {

// How matrices of the layers change; embeddings, the head, norms, biases and routers always by AdamW.
enum class OptimizerKind : std::uint8_t { adamw, muon };
// What an orthogonal change is multiplied by, beside the learning rate: √max(1, rows / columns), as Muon was published,
// or 0.2 · √max(rows, columns), which makes it as large as AdamW's, so that learning rates carry over.
enum class MuonScale : std::uint8_t { shape, adamw };

}  // namespace inlay::options
