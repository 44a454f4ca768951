#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/batch.h"
#include "data/sampler.h"
#include "options/train_options.h"
#include "train/deal.h"

namespace inlay::train {

// A rank among those that share a run's steps.
struct StepTeam {
  int rank = 0, size = 1;
  DealCost cost;
  // A loss of the model's is not a sum over documents (experts' balance): micro-batches stay whole, so that the step is
  // that of one process.
  bool whole_batches = false;
};

// What one rank does of a step, and what it must know of the others.
struct TeamStep {
  std::vector<PackedBatch> micro_batches;  // perhaps none
  std::int64_t first_micro_batch = 0;      // the first one's number among those of all ranks
  std::int64_t passes = 0;                 // micro-batches of the rank that has most
  // Over all ranks.
  std::int64_t tokens = 0, valid = 0;
  double weight = 0;     // of the valid labels together
  double imbalance = 0;  // expected: the dearest rank over the mean, less one
};

// Documents in place of those that were read as these pieces; the same on all ranks.
using ReplaceDocuments = std::function<std::vector<Document>(std::span<const data::BatchSampler::Piece> pieces,
                                                             std::vector<Document> documents)>;

// A run's micro-batches, step after step and epoch after epoch. One process has the sampler's own; several deal a
// step's documents among themselves, so that all finish together, and pack what they got anew.
class BatchStream {
 public:
  BatchStream(const data::BatchSampler& sampler, const data::Documents& documents, std::int64_t epoch,
              std::int64_t batch, const StepTeam& team = {}, ReplaceDocuments replace = {})
      : sampler_(sampler),
        documents_(documents),
        team_(team),
        replace_(std::move(replace)),
        epoch_(epoch),
        batch_(batch) {}

  // An optimizer step over so many of the sampler's micro-batches, or over what is left of the epoch, so that a step
  // never mixes epochs.
  TeamStep next_step(std::int64_t micro_batches);
  // The sampler's next micro-batch, of all ranks.
  std::int64_t epoch() const { return epoch_; }
  std::int64_t batch() const { return batch_; }

 private:
  // A step's documents were replaced by others, of other lengths.
  TeamStep replaced(const std::vector<std::int64_t>& numbers) const;
  TeamStep share_of(const Deal& deal) const;
  void weigh_alone(TeamStep& share) const;

  const data::BatchSampler& sampler_;
  const data::Documents& documents_;
  StepTeam team_;
  ReplaceDocuments replace_;
  std::int64_t epoch_, batch_;
};

// The pieces of `count` micro-batches of the sampler, from one on, and who gets which.
struct DealtStep {
  std::vector<std::int64_t> pieces;   // numbers
  std::vector<std::size_t> batch_of;  // the micro-batch that each comes from, counted from the step's first
  Deal deal;                          // of their places in `pieces`
};
DealtStep deal_step(const data::BatchSampler& sampler, std::int64_t epoch, std::int64_t first, std::int64_t count,
                    const StepTeam& team);
// What all ranks wait for the dearest one, as a share of what they compute: over the first steps of an epoch.
double mean_imbalance(const data::BatchSampler& sampler, std::int64_t micro_batches, const StepTeam& team,
                      std::int64_t epoch = 0, std::int64_t most = 50);

// "data: 16 micro-batches per step on 8 ranks, which differ by 1.2 % on average (longest rank over mean)"
std::string team_text(const data::BatchSampler& sampler, std::int64_t micro_batches, const StepTeam& team);

// Optimizer steps of a whole run, of so many micro-batches each. Ctrl-C is heard where many epochs must be counted.
std::int64_t total_steps(const options::TrainOptions& options, const data::BatchSampler& sampler,
                         std::int64_t micro_batches);

}  // namespace inlay::train
