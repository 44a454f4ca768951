#include "core/batch.h"

#include <algorithm>

#include "core/error.h"

namespace inlay {

bool truncate(Document& document, std::size_t most) {
  if (document.input_ids.size() <= most) return false;
  document.input_ids.resize(most);
  document.labels.resize(most);
  if (!document.weights.empty()) document.weights.resize(most);
  return true;
}

double PackedBatch::valid_weight() const {
  if (weights.empty()) return static_cast<double>(valid_count());
  double sum = 0;
  for (const std::int32_t row : valid_rows) sum += static_cast<double>(weights[static_cast<std::size_t>(row)]);
  return sum;
}

std::vector<std::int32_t> PackedBatch::prefix_lengths() const {
  std::vector<std::int32_t> lengths;
  for (std::size_t d = 0; d + 1 < cu_seqlens.size(); ++d) {
    const std::int32_t begin = cu_seqlens[d], end = cu_seqlens[d + 1];
    const auto first = std::ranges::lower_bound(valid_rows, begin);
    lengths.push_back(first != valid_rows.end() && *first < end ? *first - begin + 1 : end - begin);
  }
  return lengths;
}

PackedBatch pack(std::span<const Document> documents) {
  PackedBatch batch;
  const bool weighted = std::ranges::any_of(documents, [](const Document& d) { return !d.weights.empty(); });
  batch.cu_seqlens.push_back(0);
  for (const Document& document : documents) {
    const std::size_t length = document.input_ids.size();
    INLAY_ASSERT(document.labels.size() == length, "{} labels for {} tokens", document.labels.size(), length);
    INLAY_ASSERT(document.weights.empty() || document.weights.size() == length, "{} weights for {} tokens",
                 document.weights.size(), length);
    for (std::size_t i = 0; i < length; ++i) {
      const std::int32_t target = i + 1 < length ? document.labels[i + 1] : ignore_label;
      if (target != ignore_label) batch.valid_rows.push_back(static_cast<std::int32_t>(batch.tokens.size()));
      batch.tokens.push_back(document.input_ids[i]);
      batch.targets.push_back(target);
      batch.positions.push_back(static_cast<std::int32_t>(i));
      if (weighted)
        batch.weights.push_back(i + 1 < length && !document.weights.empty() ? document.weights[i + 1] : 1.0f);
    }
    batch.cu_seqlens.push_back(static_cast<std::int32_t>(batch.tokens.size()));
  }
  return batch;
}

std::vector<PackedBatch> batches_in_order(const std::vector<Document>& documents, std::int64_t max_tokens) {
  std::vector<PackedBatch> batches;
  std::size_t begin = 0;
  while (begin < documents.size()) {
    std::size_t end = begin;
    std::int64_t tokens = 0;
    while (end < documents.size()) {
      const auto length = static_cast<std::int64_t>(documents[end].input_ids.size());
      if (end > begin && tokens + length > max_tokens) break;
      tokens += length;
      ++end;
    }
    batches.push_back(pack(std::span(documents).subspan(begin, end - begin)));
    begin = end;
  }
  return batches;
}

}  // namespace inlay
