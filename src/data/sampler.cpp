#include "data/sampler.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/philox.h"

namespace inlay::data {
namespace {

// Micro-batches that wait for documents at one time. With 128, even lengths spread evenly up to a whole micro-batch,
// the hardest case, fill 97 %.
constexpr std::size_t most_open = 128;

// The two shuffles of an epoch draw from streams of their own.
enum class Purpose : std::uint64_t { documents = 0, batches = 1 };

template <class T>
void shuffle(std::vector<T>& items, std::uint64_t seed, std::int64_t epoch, Purpose purpose) {
  const Philox philox{seed};
  const std::uint64_t stream = 2 * static_cast<std::uint64_t>(epoch) + static_cast<std::uint64_t>(purpose);
  for (std::size_t i = items.size(); i > 1; --i) {
    std::swap(items[i - 1], items[random_below(philox, i, stream, i)]);
  }
}

void check(const BatchOptions& options) {
  if (options.sequence_len < 1) user_error("sequence_len: expected a positive integer, got {}", options.sequence_len);
  if (options.micro_batch_size < 1) {
    user_error("micro_batch_size: expected a positive integer, got {}", options.micro_batch_size);
  }
  constexpr std::int64_t limit = std::numeric_limits<std::int32_t>::max();  // offsets in a batch are 32-bit
  if (options.micro_batch_size > limit / options.sequence_len) {
    user_error("micro_batch_size x sequence_len: {} x {} tokens are more than a micro-batch can have ({})",
               options.micro_batch_size, options.sequence_len, limit);
  }
}

}  // namespace

BatchSampler::BatchSampler(const std::vector<std::int64_t>& lengths, const BatchOptions& options) : options_(options) {
  check(options_);
  const std::int64_t limit = options_.sequence_len;
  lengths_.reserve(lengths.size());
  kept_.reserve(lengths.size());
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const std::int64_t length = lengths[i];
    INLAY_ASSERT(length >= 1, "document {} has {} tokens", i, length);
    if (length > limit && options_.oversized == Oversized::raise) {
      user_error(
          "document {} has {} tokens, sequence_len is {}: set sequence_len to at least {}, or excess_length_strategy "
          "to truncate, split or drop",
          i + 1, length, limit, *std::max_element(lengths.begin(), lengths.end()));
    }
    const auto document = static_cast<std::int64_t>(i);
    lengths_.push_back(static_cast<std::int32_t>(std::min(length, limit)));
    if (length > limit && options_.oversized == Oversized::drop) {
      ++dropped_;
      continue;
    }
    kept_.push_back(document);
    ++documents_;
    if (length > limit && options_.oversized == Oversized::split) {
      ++split_;
      for (std::int64_t begin = limit; begin < length; begin += limit) {
        kept_.push_back(static_cast<std::int64_t>(lengths.size() + rest_.size()));
        rest_.push_back({document, begin, std::min(limit, length - begin)});
      }
    } else if (length > limit) {
      ++truncated_;
      truncated_tokens_ += length - limit;
    }
  }
  if (kept_.empty()) {
    if (lengths.empty()) user_error("there are no documents to make batches of");
    user_error(
        "all {} documents are longer than sequence_len ({}), and excess_length_strategy is drop: nothing is left",
        lengths.size(), limit);
  }
  for (const std::int64_t number : kept_) tokens_ += length_of(number);
}

BatchSampler::BatchSampler(const Documents& documents, const BatchOptions& options)
    : BatchSampler(documents.lengths(), options) {
  count_labels(documents);
  leave_out_unlabelled(documents);
}

BatchSampler::Piece BatchSampler::piece(std::int64_t number) const {
  const auto documents = std::ssize(lengths_);
  if (number >= documents) return rest_[static_cast<std::size_t>(number - documents)];
  return {number, 0, lengths_[static_cast<std::size_t>(number)]};
}

std::int64_t BatchSampler::labels_of(std::int64_t number) const {
  return labels_.empty() ? length_of(number) - 1 : labels_[static_cast<std::size_t>(number)];
}

double BatchSampler::weight_of(std::int64_t number) const {
  return weights_.empty() ? static_cast<double>(labels_of(number)) : weights_[static_cast<std::size_t>(number)];
}

// A piece's first label is masked: nothing stands before it.
void BatchSampler::count_labels(const Documents& documents) {
  labels_.reserve(static_cast<std::size_t>(pieces()));
  for (std::int64_t number = 0; number < pieces(); ++number) {
    const Piece piece = this->piece(number);
    const auto labels = documents.read_labels(piece.document, piece.begin + 1, piece.length - 1);
    const auto weights = documents.read_weights(piece.document, piece.begin + 1, piece.length - 1);
    labels_.push_back(static_cast<std::int32_t>(std::ranges::count_if(labels, is_label)));
    if (weights.empty() && weights_.empty()) continue;
    if (weights_.empty()) weights_.assign(labels_.begin(), labels_.end() - 1);
    double sum = 0;
    for (std::size_t i = 0; i < labels.size(); ++i) {
      if (is_label(labels[i])) sum += weights.empty() ? 1.0 : static_cast<double>(weights[i]);
    }
    weights_.push_back(sum);
  }
}

void BatchSampler::leave_out_unlabelled(const Documents& documents) {
  std::erase_if(kept_, [&](std::int64_t number) {
    if (labels_of(number) > 0) return false;
    ++unlabelled_;
    tokens_ -= length_of(number);
    if (number < documents.size()) --documents_;
    return true;
  });
  if (kept_.empty()) {
    user_error("none of the {} documents has anything to learn within sequence_len ({} tokens)", documents.size(),
               options_.sequence_len);
  }
}

std::uint32_t BatchSampler::Packing::open_batch() {
  INLAY_ASSERT(batches < std::numeric_limits<std::uint32_t>::max(), "{} micro-batches in an epoch", batches);
  return batches++;
}

// Documents come in the epoch's random order and stay in it: each goes where the most room is, unless it fits well,
// that is, fills at least half of the least room that holds it. Were the small ones to go into every gap that they fit
// into, a micro-batch with a large gap would collect them.
BatchSampler::Packing BatchSampler::pack_best_fit(std::span<const std::int64_t> order) const {
  struct Open {
    std::int64_t room;
    std::uint32_t batch;
    auto operator<=>(const Open&) const = default;
  };
  Packing packing;
  packing.batch_of.reserve(order.size());
  std::vector<Open> open;  // sorted: least room first, ties by age
  for (const std::int64_t document : order) {
    const std::int64_t length = length_of(document);
    Open target{max_tokens(), packing.batches};
    if (auto fitting = std::ranges::lower_bound(open, Open{length, 0}); fitting != open.end()) {
      if (fitting->room > 2 * length) fitting = open.end() - 1;
      target = *fitting;
      open.erase(fitting);
    } else {
      packing.open_batch();
      if (open.size() == most_open) open.erase(open.begin());  // the fullest one: it has the least to gain
    }
    packing.put(target.batch);
    target.room -= length;
    if (target.room > 0) open.insert(std::ranges::lower_bound(open, target), target);
  }
  return packing;
}

BatchSampler::Packing BatchSampler::pack_in_order(std::span<const std::int64_t> order) const {
  Packing packing;
  packing.batch_of.reserve(order.size());
  std::int64_t room = 0;
  for (const std::int64_t document : order) {
    const std::int64_t cost = options_.sample_packing ? length_of(document) : options_.sequence_len;
    if (cost > room) {
      packing.open_batch();
      room = max_tokens();
    }
    packing.put(packing.batches - 1);
    room -= cost;
  }
  return packing;
}

const BatchSampler::Plan& BatchSampler::plan(std::int64_t epoch) const {
  INLAY_ASSERT(epoch >= 0, "epoch {}", epoch);
  if (plan_.epoch == epoch) return plan_;
  std::vector<std::int64_t> order = kept_;
  if (options_.shuffle) shuffle(order, options_.seed, epoch, Purpose::documents);
  const bool best_fit = options_.shuffle && options_.sample_packing;
  const Packing packing = best_fit ? pack_best_fit(order) : pack_in_order(order);
  std::vector<std::uint32_t> batches(packing.batches);
  std::iota(batches.begin(), batches.end(), 0u);
  if (best_fit) shuffle(batches, options_.seed, epoch, Purpose::batches);

  // Each micro-batch's documents, in their order, behind those of the micro-batches before it.
  std::vector<std::int64_t> end_of(packing.batches);
  for (const std::uint32_t batch : packing.batch_of) ++end_of[batch];
  plan_ = {};
  Plan fresh{.epoch = epoch, .documents = std::vector<std::int64_t>(order.size()), .offsets = {0}};
  fresh.offsets.reserve(batches.size() + 1);
  for (const std::uint32_t batch : batches) {
    const std::int64_t begin = fresh.offsets.back();
    fresh.offsets.push_back(begin + std::exchange(end_of[batch], begin));
  }
  for (std::size_t i = 0; i < order.size(); ++i) {
    fresh.documents[static_cast<std::size_t>(end_of[packing.batch_of[i]]++)] = order[i];
  }
  plan_ = std::move(fresh);
  return plan_;
}

std::int64_t BatchSampler::batches_per_epoch(std::int64_t epoch) const {
  return static_cast<std::int64_t>(plan(epoch).offsets.size()) - 1;
}

std::span<const std::int64_t> BatchSampler::batch(std::int64_t epoch, std::int64_t index) const {
  INLAY_ASSERT(0 <= index && index < batches_per_epoch(epoch), "micro-batch {} of epoch {}, which has {}", index, epoch,
               batches_per_epoch(epoch));
  const Plan& current = plan(epoch);
  const auto begin = static_cast<std::size_t>(current.offsets[static_cast<std::size_t>(index)]);
  const auto end = static_cast<std::size_t>(current.offsets[static_cast<std::size_t>(index) + 1]);
  return std::span(current.documents).subspan(begin, end - begin);
}

std::vector<std::int64_t> BatchSampler::documents_of(std::int64_t epoch, std::int64_t index) const {
  const auto documents = batch(epoch, index);
  return {documents.begin(), documents.end()};
}

std::int64_t BatchSampler::tokens_of(std::int64_t epoch, std::int64_t index) const {
  std::int64_t tokens = 0;
  for (const std::int64_t document : batch(epoch, index)) tokens += length_of(document);
  return tokens;
}

double BatchSampler::efficiency(std::int64_t epoch) const {
  return static_cast<double>(tokens_) /
         (static_cast<double>(batches_per_epoch(epoch)) * static_cast<double>(max_tokens()));
}

std::vector<Document> read_pieces(const BatchSampler& sampler, const Documents& documents,
                                  std::span<const std::int64_t> numbers) {
  std::vector<Document> pieces;
  for (const std::int64_t number : numbers) {
    const BatchSampler::Piece piece = sampler.piece(number);
    pieces.push_back(documents.read(piece.document, piece.begin, piece.length));
    std::int32_t& first = pieces.back().labels.front();
    if (!marks_sequence(first)) first = ignore_label;  // nothing precedes it that could predict it
  }
  return pieces;
}

}  // namespace inlay::data
