#pragma once

#include <functional>
#include <vector>

#include "data/choices.h"
#include "data/sampler.h"
#include "parallel/communicator.h"
#include "train/deal.h"
#include "train/engine.h"

namespace inlay::train {

// Those who evaluate together: documents are dealt to them, and all get the same result. Alone unless told otherwise.
struct EvaluationTeam {
  std::shared_ptr<parallel::Communicator> ranks = parallel::single_process();
  DealCost cost;
  // Called instead of a batch where others have one more: it joins in what they exchange.
  std::function<void()> idle = [] {};
};

struct Evaluation {
  double loss = 0;  // mean over valid labels
  double accuracy = 0;
  std::int64_t tokens = 0, valid = 0;
  model::Objective::Metrics metrics = {};  // of the objective; where there are some, loss is its own
};

// Both throw Interrupted (core/interrupt.h) between batches where Ctrl-C came, on all ranks where it came to one.

// All documents once, packed into batches no larger than the engine was planned for.
Evaluation evaluate(Engine& engine, const std::vector<Document>& documents, const EvaluationTeam& team = {});

// Of each document, the log-probabilities of its sequences' labels, in all. The engine's options must say row_losses.
std::vector<std::vector<float>> sequence_log_probs(Engine& engine, const std::vector<Document>& documents,
                                                   const EvaluationTeam& team = {});

// Of each token of each document its loss, 0 where it has no label. The engine's options must say row_losses.
std::vector<std::vector<float>> token_losses(Engine& engine, const std::vector<Document>& documents,
                                             const EvaluationTeam& team = {});

struct ChoiceEvaluation {
  double accuracy = 0;  // share of questions whose likeliest choice is the answer
  double loss = 0;      // mean over the tokens of the right choices
  std::int64_t tokens = 0, questions = 0;
};

// Label likelihood: of a question's choices the one with the highest mean log-likelihood per token counts as the
// model's. By the mean, and not the sum, a choice is not unlikely merely for being long. Of equals the first counts.
// The engine's options must say row_losses.
ChoiceEvaluation evaluate_choices(Engine& engine, const std::vector<data::Question>& questions,
                                  const EvaluationTeam& team = {});

}  // namespace inlay::train
