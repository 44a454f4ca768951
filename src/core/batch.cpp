#include "core/batch.h"

#include "core/error.h"

namespace inlay {

PackedBatch pack(std::span<const Document> documents) {
  PackedBatch batch;
  batch.cu_seqlens.push_back(0);
  for (const Document& document : documents) {
    const std::size_t length = document.input_ids.size();
    INLAY_ASSERT(document.labels.size() == length, "{} labels for {} tokens", document.labels.size(), length);
    for (std::size_t i = 0; i < length; ++i) {
      const std::int32_t target = i + 1 < length ? document.labels[i + 1] : ignore_label;
      if (target != ignore_label) batch.valid_rows.push_back(static_cast<std::int32_t>(batch.tokens.size()));
      batch.tokens.push_back(document.input_ids[i]);
      batch.targets.push_back(target);
      batch.positions.push_back(static_cast<std::int32_t>(i));
    }
    batch.cu_seqlens.push_back(static_cast<std::int32_t>(batch.tokens.size()));
  }
  return batch;
}

}  // namespace inlay
