#pragma once

#include "io/checkpoint.h"
#include "model/presets.h"
#include "support/files.h"
#include "support/fixtures.h"

namespace inlay::testing {

// A fixture's architecture with more layers, random weights and a few documents: deep enough that slabs and buffers
// take turns several times.
struct DeepModel {
  explicit DeepModel(std::int64_t layers = 7, const std::string& fixture = "llama_linear_sharded");

  std::unique_ptr<train::Engine> engine(train::EngineOptions options) const;

  TempFolder folder;
  model::ModelConfig config;
  std::vector<PackedBatch> batches;  // two micro-batches, the first the larger
};

}  // namespace inlay::testing
