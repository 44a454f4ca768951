#include "train/evaluation.h"

namespace inlay::train {

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

Evaluation evaluate(Engine& engine, const std::vector<Document>& documents) {
  Evaluation result;
  double loss = 0;
  std::int64_t correct = 0;
  for (const PackedBatch& batch : batches_in_order(documents, engine.options().max_tokens)) {
    const model::LossSums sums = engine.evaluate(batch);
    loss += sums.loss;
    correct += sums.correct;
    result.tokens += batch.token_count();
    result.valid += batch.valid_count();
  }
  if (result.valid > 0) {
    result.loss = loss / static_cast<double>(result.valid);
    result.accuracy = static_cast<double>(correct) / static_cast<double>(result.valid);
  }
  return result;
}

}  // namespace inlay::train
