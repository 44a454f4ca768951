#pragma once

#include <vector>

#include "data/sampler.h"
#include "train/engine.h"

namespace inlay::train {

struct Evaluation {
  double loss = 0;  // mean over valid labels
  double accuracy = 0;
  std::int64_t tokens = 0, valid = 0;
};

// All documents once, packed into batches no larger than the engine was planned for.
Evaluation evaluate(Engine& engine, const std::vector<Document>& documents);

// Documents in order, cut into batches of at most max_tokens; a longer document makes a batch alone.
std::vector<PackedBatch> batches_in_order(const std::vector<Document>& documents, std::int64_t max_tokens);

}  // namespace inlay::train
