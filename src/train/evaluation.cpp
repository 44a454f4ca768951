#include "train/evaluation.h"

#include <algorithm>

#include "core/interrupt.h"

namespace inlay::train {

namespace {

// What a document's labels cost in all, and how many there are.
struct DocumentLoss {
  double loss = 0;
  std::int64_t labels = 0;

  double mean() const { return loss / static_cast<double>(labels); }
};

std::vector<DocumentLoss> document_losses(Engine& engine, const std::vector<Document>& documents) {
  std::vector<DocumentLoss> result;
  for (const PackedBatch& batch : batches_in_order(documents, engine.options().max_tokens)) {
    stop_where_asked("evaluating");
    const std::vector<float> losses = engine.row_losses(batch);
    for (std::size_t d = 0; d + 1 < batch.cu_seqlens.size(); ++d) {
      DocumentLoss sum;
      for (auto i = static_cast<std::size_t>(batch.cu_seqlens[d]);
           i < static_cast<std::size_t>(batch.cu_seqlens[d + 1]); ++i) {
        if (batch.targets[i] == ignore_label) continue;
        sum.loss += losses[i];
        ++sum.labels;
      }
      result.push_back(sum);
    }
  }
  return result;
}

}  // namespace

Evaluation evaluate(Engine& engine, const std::vector<Document>& documents) {
  Evaluation result;
  double loss = 0, weight = 0;
  std::int64_t correct = 0;
  for (const PackedBatch& batch : batches_in_order(documents, engine.options().max_tokens)) {
    stop_where_asked("evaluating");
    const model::LossSums sums = engine.evaluate(batch);
    loss += sums.loss;
    correct += sums.correct;
    result.tokens += batch.token_count();
    result.valid += batch.valid_count();
    weight += batch.valid_weight();
  }
  if (result.valid > 0) {
    result.loss = weight > 0 ? loss / weight : 0;
    result.accuracy = static_cast<double>(correct) / static_cast<double>(result.valid);
  }
  return result;
}

ChoiceEvaluation evaluate_choices(Engine& engine, const std::vector<data::Question>& questions) {
  const std::vector<DocumentLoss> losses = document_losses(engine, data::choice_documents(questions));
  ChoiceEvaluation result;
  double loss = 0;
  std::int64_t correct = 0;
  std::size_t first = 0;
  for (const data::Question& question : questions) {
    const auto begin = losses.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end = begin + static_cast<std::ptrdiff_t>(question.choices.size());
    const auto likeliest =
        std::min_element(begin, end, [](const DocumentLoss& a, const DocumentLoss& b) { return a.mean() < b.mean(); });
    correct += likeliest - begin == question.answer ? 1 : 0;
    const DocumentLoss& right = *(begin + question.answer);
    loss += right.loss;
    result.tokens += right.labels;
    first += question.choices.size();
  }
  result.questions = static_cast<std::int64_t>(questions.size());
  if (result.questions > 0) {
    result.loss = loss / static_cast<double>(result.tokens);
    result.accuracy = static_cast<double>(correct) / static_cast<double>(result.questions);
  }
  return result;
}

}  // namespace inlay::train
