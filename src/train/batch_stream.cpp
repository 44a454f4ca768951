#include "train/batch_stream.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/interrupt.h"
#include "core/text.h"

namespace inlay::train {

namespace {

// What a document takes of a micro-batch, whoever sees more of it.
std::int64_t room_of(const Document& document, const data::BatchOptions& options) {
  return options.sample_packing ? std::max(std::ssize(document.input_ids), document.others_length()) : 1;
}

// Documents by micro-batch, and each one's.
struct Replaced {
  std::vector<Document> documents;
  std::vector<std::size_t> batch_of;
};

// Each into the first micro-batch that has room.
Replaced in_micro_batches(std::vector<Document> documents, const data::BatchOptions& options) {
  const std::int64_t room =
      options.sample_packing ? options.micro_batch_size * options.sequence_len : options.micro_batch_size;
  std::vector<std::vector<Document>> batches;
  std::vector<std::int64_t> left;
  for (Document& document : documents) {
    const std::int64_t size = room_of(document, options);
    const auto found = std::ranges::find_if(left, [&](std::int64_t free) { return free >= size; });
    const std::size_t at = static_cast<std::size_t>(found - left.begin());
    if (found == left.end()) {
      left.push_back(room);
      batches.emplace_back();
    }
    left[at] -= size;
    batches[at].push_back(std::move(document));
  }
  Replaced result;
  for (std::size_t batch = 0; batch < batches.size(); ++batch) {
    for (Document& document : batches[batch]) {
      result.documents.push_back(std::move(document));
      result.batch_of.push_back(batch);
    }
  }
  return result;
}

Deal deal_of(std::span<const DealItem> items, std::span<const std::size_t> batch_of, const data::BatchSampler& sampler,
             const StepTeam& team) {
  if (team.size == 1 || team.whole_batches) return deal_whole(items, batch_of, team.size);
  const data::BatchOptions& options = sampler.options();
  const std::int64_t capacity = options.sample_packing ? sampler.max_tokens() : options.micro_batch_size;
  return deal_items(items, batch_of, capacity, team.size, team.cost.pass);
}

}  // namespace

TeamStep BatchStream::next_step(std::int64_t micro_batches) {
  if (batch_ >= sampler_.batches_per_epoch(epoch_)) {
    ++epoch_;
    batch_ = 0;
  }
  const std::int64_t count = std::min(micro_batches, sampler_.batches_per_epoch(epoch_) - batch_);
  const DealtStep step = deal_step(sampler_, epoch_, batch_, count, team_);
  batch_ += count;
  if (replace_) return replaced(step.pieces);

  TeamStep share = share_of(step.deal);
  for (const std::int64_t number : step.pieces) {
    share.tokens += sampler_.length_of(number);
    share.valid += sampler_.labels_of(number);
    share.weight += sampler_.weight_of(number);
  }
  for (const std::vector<std::size_t>& places : step.deal.ranks[static_cast<std::size_t>(team_.rank)]) {
    std::vector<std::int64_t> numbers;
    for (const std::size_t place : places) numbers.push_back(step.pieces[place]);
    share.micro_batches.push_back(pack(data::read_pieces(sampler_, documents_, numbers)));
  }
  weigh_alone(share);
  return share;
}

TeamStep BatchStream::share_of(const Deal& deal) const {
  return {.first_micro_batch = deal.before(team_.rank), .passes = deal.passes(), .imbalance = deal.imbalance()};
}

// As it always was, to the last bit.
void BatchStream::weigh_alone(TeamStep& share) const {
  if (team_.size > 1) return;
  share.weight = 0;
  for (const PackedBatch& batch : share.micro_batches) share.weight += batch.valid_weight();
}

TeamStep BatchStream::replaced(const std::vector<std::int64_t>& numbers) const {
  std::vector<data::BatchSampler::Piece> pieces;
  for (const std::int64_t number : numbers) pieces.push_back(sampler_.piece(number));
  const data::BatchOptions& options = sampler_.options();
  const Replaced step = in_micro_batches(replace_(pieces, data::read_pieces(sampler_, documents_, numbers)), options);
  std::vector<DealItem> items;
  for (const Document& document : step.documents) {
    items.push_back({.size = room_of(document, options), .cost = team_.cost.of(std::ssize(document.input_ids))});
  }
  const Deal deal = deal_of(items, step.batch_of, sampler_, team_);
  TeamStep share = share_of(deal);
  for (const Document& document : step.documents) {
    const PackedBatch alone = pack(std::span(&document, 1));
    share.tokens += alone.token_count();
    share.valid += alone.valid_count();
    share.weight += alone.valid_weight();
  }
  for (const std::vector<std::size_t>& places : deal.ranks[static_cast<std::size_t>(team_.rank)]) {
    std::vector<Document> together;
    for (const std::size_t place : places) together.push_back(step.documents[place]);
    share.micro_batches.push_back(pack(together));
  }
  weigh_alone(share);
  return share;
}

DealtStep deal_step(const data::BatchSampler& sampler, std::int64_t epoch, std::int64_t first, std::int64_t count,
                    const StepTeam& team) {
  const data::BatchOptions& options = sampler.options();
  DealtStep step;
  std::vector<DealItem> items;
  for (std::int64_t i = 0; i < count; ++i) {
    for (const std::int64_t number : sampler.documents_of(epoch, first + i)) {
      const std::int64_t length = sampler.length_of(number);
      step.pieces.push_back(number);
      step.batch_of.push_back(static_cast<std::size_t>(i));
      items.push_back({.size = options.sample_packing ? length : 1, .cost = team.cost.of(length)});
    }
  }
  step.deal = deal_of(items, step.batch_of, sampler, team);
  return step;
}

double mean_imbalance(const data::BatchSampler& sampler, std::int64_t micro_batches, const StepTeam& team,
                      std::int64_t epoch, std::int64_t most) {
  const std::int64_t batches = sampler.batches_per_epoch(epoch);
  double dearest = 0, mean = 0;
  std::int64_t steps = 0;
  for (std::int64_t first = 0; first < batches && steps < most; first += micro_batches, ++steps) {
    const Deal deal = deal_step(sampler, epoch, first, std::min(micro_batches, batches - first), team).deal;
    dearest += *std::ranges::max_element(deal.costs);
    mean += std::accumulate(deal.costs.begin(), deal.costs.end(), 0.0) / team.size;
  }
  return dearest / mean - 1;
}

std::string team_text(const data::BatchSampler& sampler, std::int64_t micro_batches, const StepTeam& team) {
  return fmt::format(
      "data: {} micro-batches per step on {} ranks, which differ by {:.1f} % on average (longest rank over mean)",
      format_count(micro_batches), team.size, 100 * mean_imbalance(sampler, micro_batches, team));
}

namespace {

std::int64_t steps_per_epoch(const data::BatchSampler& sampler, std::int64_t epoch, std::int64_t micro_batches) {
  return (sampler.batches_per_epoch(epoch) + micro_batches - 1) / micro_batches;
}

}  // namespace

std::int64_t total_steps(const options::TrainOptions& o, const data::BatchSampler& sampler,
                         std::int64_t micro_batches) {
  if (o.max_steps > 0) return o.max_steps;
  std::int64_t steps = 0;
  const auto whole = static_cast<std::int64_t>(std::floor(o.num_epochs));
  // Only shuffled documents that are packed make more or fewer batches from epoch to epoch.
  const bool varies = o.shuffle && o.sample_packing;
  for (std::int64_t epoch = 0; epoch < (varies ? whole : std::min<std::int64_t>(whole, 1)); ++epoch) {
    stop_where_asked("counting the steps of all epochs");
    steps += steps_per_epoch(sampler, epoch, micro_batches);
  }
  if (!varies) steps *= whole;
  const double rest = o.num_epochs - static_cast<double>(whole);
  if (rest > 0) {
    steps += static_cast<std::int64_t>(
        std::ceil(rest * static_cast<double>(steps_per_epoch(sampler, whole, micro_batches))));
  }
  return std::max<std::int64_t>(steps, 1);
}

}  // namespace inlay::train
