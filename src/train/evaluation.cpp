#include "train/evaluation.h"

#include <algorithm>
#include <cmath>

#include "core/interrupt.h"

namespace inlay::train {

namespace {

// This rank's batches, one after the other, with the documents that each holds. Batches are those of one process, in
// its order, where there is but one; else documents are dealt so that all ranks finish together.
struct Dealt {
  std::vector<std::vector<std::size_t>> batches;
  std::int64_t rounds = 0;  // batches of the rank that has most
};

Dealt deal_documents(const std::vector<Document>& documents, std::int64_t max_tokens, const EvaluationTeam& team) {
  std::vector<DealItem> items;
  std::vector<std::size_t> batch_of;
  std::int64_t room = 0;
  for (const Document& document : documents) {
    const auto length = static_cast<std::int64_t>(document.input_ids.size());
    const bool next = items.empty() || length > room;
    room = (next ? max_tokens : room) - length;
    batch_of.push_back(items.empty() ? 0 : batch_of.back() + (next ? 1 : 0));
    items.push_back({.size = length, .cost = team.cost.of(length)});
  }
  const int size = team.ranks->size();
  Deal deal =
      size == 1 ? deal_whole(items, batch_of, size) : deal_items(items, batch_of, max_tokens, size, team.cost.pass);
  return {deal.ranks[static_cast<std::size_t>(team.ranks->rank())], deal.passes()};
}

// All ranks make as many rounds, and stop before the same one.
template <class Visit>
void visit_batches(const Engine& engine, const std::vector<Document>& documents, const EvaluationTeam& team,
                   const Visit& visit) {
  const Dealt dealt = deal_documents(documents, engine.options().max_tokens, team);
  for (std::size_t round = 0; round < static_cast<std::size_t>(dealt.rounds); ++round) {
    stop_where_asked("evaluating", team.ranks->any(interrupt_requested(), "evaluating"));
    if (round >= dealt.batches.size()) {
      team.idle();
      continue;
    }
    std::vector<Document> batch;
    for (const std::size_t d : dealt.batches[round]) batch.push_back(documents[d]);
    visit(pack(batch), dealt.batches[round]);
  }
}

// What a document's labels cost in all, and how many there are.
struct DocumentLoss {
  double loss = 0;
  std::int64_t labels = 0;

  double mean() const { return loss / static_cast<double>(labels); }
};

std::vector<DocumentLoss> document_losses(Engine& engine, const std::vector<Document>& documents,
                                          const EvaluationTeam& team) {
  const std::size_t count = documents.size();
  std::vector<double> sums(2 * count, 0.0);  // losses, then labels
  visit_batches(engine, documents, team, [&](const PackedBatch& batch, const std::vector<std::size_t>& numbers) {
    const std::vector<float> losses = engine.row_losses(batch);
    for (std::size_t d = 0; d < numbers.size(); ++d) {
      for (auto i = static_cast<std::size_t>(batch.cu_seqlens[d]);
           i < static_cast<std::size_t>(batch.cu_seqlens[d + 1]); ++i) {
        if (batch.targets[i] == ignore_label) continue;
        sums[numbers[d]] += losses[i];
        ++sums[count + numbers[d]];
      }
    }
  });
  sums = team.ranks->sum(sums, "evaluating choices");
  std::vector<DocumentLoss> result;
  for (std::size_t d = 0; d < count; ++d) result.push_back({sums[d], std::llround(sums[count + d])});
  return result;
}

}  // namespace

Evaluation evaluate(Engine& engine, const std::vector<Document>& documents, const EvaluationTeam& team) {
  double correct = 0, tokens = 0, valid = 0;
  model::BatchWeight weight;
  model::LossSums all;
  const model::Objective& objective = engine.decoder().objective();
  visit_batches(engine, documents, team, [&](const PackedBatch& batch, const std::vector<std::size_t>&) {
    const model::LossSums sums = engine.evaluate(batch);
    const model::BatchWeight mine = objective.weight(batch);
    all.loss += sums.loss;
    correct += static_cast<double>(sums.correct);
    tokens += static_cast<double>(batch.token_count());
    valid += static_cast<double>(batch.valid_count());
    weight.units += mine.units;
    weight.labels += mine.labels;
    all.parts.resize(sums.parts.size());
    for (std::size_t i = 0; i < sums.parts.size(); ++i) all.parts[i] += sums.parts[i];
  });
  std::vector<double> values = {all.loss, correct, tokens, valid, weight.units, weight.labels};
  all.parts.resize(engine.decoder().objective().part_count());  // a rank may have had nothing to evaluate
  values.insert(values.end(), all.parts.begin(), all.parts.end());
  values = team.ranks->sum(values, "evaluating");
  Evaluation result{.tokens = std::llround(values[2]), .valid = std::llround(values[3])};
  if (result.valid == 0) return result;
  all.loss = values[0];
  all.parts.assign(values.begin() + 6, values.end());
  result.loss = values[4] > 0 ? objective.evaluation_loss(all, {.units = values[4], .labels = values[5]}) : 0;
  result.accuracy = values[1] / values[3];
  if (objective.counts_documents()) result.metrics = objective.metrics(all.parts);
  return result;
}

std::vector<std::vector<float>> sequence_log_probs(Engine& engine, const std::vector<Document>& documents,
                                                   const EvaluationTeam& team) {
  std::vector<std::size_t> first;  // of each document's sequences, among those of all
  std::size_t count = 0;
  for (const Document& document : documents) {
    first.push_back(count);
    count += static_cast<std::size_t>(std::ranges::count_if(document.labels, marks_sequence));
  }
  std::vector<double> sums(count, 0.0);
  visit_batches(engine, documents, team, [&](const PackedBatch& batch, const std::vector<std::size_t>& numbers) {
    const std::vector<float> losses = engine.row_losses(batch);
    std::size_t s = 0;
    for (const std::size_t number : numbers) {
      const std::size_t end = number + 1 < first.size() ? first[number + 1] : count;
      for (std::size_t sequence = first[number]; sequence < end; ++sequence, ++s) {
        const auto begin = static_cast<std::size_t>(batch.cu_seqlens[s]);
        for (std::size_t i = begin; i < static_cast<std::size_t>(batch.cu_seqlens[s + 1]); ++i) {
          sums[sequence] -= static_cast<double>(losses[i]);
        }
      }
    }
  });
  sums = team.ranks->sum(sums, "the reference's log-probabilities");
  std::vector<std::vector<float>> result;
  for (std::size_t d = 0; d < documents.size(); ++d) {
    const std::size_t end = d + 1 < first.size() ? first[d + 1] : count;
    result.emplace_back(sums.begin() + static_cast<std::ptrdiff_t>(first[d]),
                        sums.begin() + static_cast<std::ptrdiff_t>(end));
  }
  return result;
}

std::vector<std::vector<float>> token_losses(Engine& engine, const std::vector<Document>& documents,
                                             const EvaluationTeam& team) {
  std::vector<std::vector<float>> result;
  std::vector<std::size_t> first;  // of each document's tokens, among those of all
  std::size_t count = 0;
  for (const Document& document : documents) {
    first.push_back(count);
    count += document.input_ids.size();
  }
  std::vector<double> losses(count, 0.0);
  visit_batches(engine, documents, team, [&](const PackedBatch& batch, const std::vector<std::size_t>& numbers) {
    const std::vector<float> rows = engine.row_losses(batch);
    for (std::size_t d = 0; d < numbers.size(); ++d) {
      const auto begin = static_cast<std::size_t>(batch.cu_seqlens[d]),
                 end = static_cast<std::size_t>(batch.cu_seqlens[d + 1]);
      // A position's loss is that of the token behind it.
      for (std::size_t i = begin; i + 1 < end; ++i)
        losses[first[numbers[d]] + i + 1 - begin] = static_cast<double>(rows[i]);
    }
  });
  losses = team.ranks->sum(losses, "losses of tokens");
  for (std::size_t d = 0; d < documents.size(); ++d) {
    const auto begin = losses.begin() + static_cast<std::ptrdiff_t>(first[d]);
    result.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(documents[d].input_ids.size()));
  }
  return result;
}

ChoiceEvaluation evaluate_choices(Engine& engine, const std::vector<data::Question>& questions,
                                  const EvaluationTeam& team) {
  const std::vector<DocumentLoss> losses = document_losses(engine, data::choice_documents(questions), team);
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
