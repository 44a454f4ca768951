#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "train/engine.h"

namespace inlay::testing {

// What a plan is made for: documents as long as allowed, every label counted. A run of any other batch takes less.
inline PackedBatch largest_batch(const train::EngineOptions& o) {
  std::vector<Document> documents;
  for (std::int64_t left = o.max_tokens; left > 0; left -= o.max_document) {
    Document document;
    document.input_ids.assign(static_cast<std::size_t>(std::min(left, o.max_document)), 1);
    document.labels = document.input_ids;
    documents.push_back(std::move(document));
  }
  return pack(documents);
}

}  // namespace inlay::testing
