#pragma once

#include <optional>
#include <span>

#include "train/self_distillation.h"

// Self-distillation on policy: before each step the model, as it is by then, answers the prompts of the step's
// documents: shown the data's answers, to learn them in its own words; or without, to learn what it would predict if it
// were.
namespace inlay::train {

class OnPolicyAnswers {
 public:
  // What it is given must outlive it.
  OnPolicyAnswers(const options::TrainOptions& options, const data::Documents& shown, Console& console)
      : options_(options), shown_(shown), console_(console), rewriter_(options) {}

  // The documents of a step that were read as these pieces, with the engine's answers. The same step of the same
  // weights has the same answers, on every process, of which each writes a part. Ctrl-C throws Interrupted.
  std::vector<Document> write(Engine& engine, std::int64_t step, std::span<const data::BatchSampler::Piece> pieces,
                              std::vector<Document> documents);
  // Of the last step's documents, the share that the model's own words are in; absent where all of them are.
  std::optional<double> share() const { return share_; }

 private:
  void say_where_none(std::int64_t rewritten);

  const options::TrainOptions& options_;
  const data::Documents& shown_;
  Console& console_;
  Rewriter rewriter_;
  std::optional<double> share_;
  bool any_ = false;
  int steps_without_ = 0;
};

// Of steps with answers of any length: by the prompts, or by the configuration alone.
BatchBounds on_policy_bounds(const options::TrainOptions& options, const model::ModelConfig& config,
                             const data::Documents& shown);
BatchBounds on_policy_bounds(const options::TrainOptions& options, const model::ModelConfig& config);

}  // namespace inlay::train
