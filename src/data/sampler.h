#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/documents.h"

namespace inlay::data {

// What happens to documents longer than sequence_len (the key excess_length_strategy): cut off, cut into several,
// refused, or left out.
enum class Oversized : std::uint8_t { truncate, split, raise, drop };

// Raised whenever shuffled documents are packed into other micro-batches than before: a run cannot go on from the
// checkpoint of a version that packed differently.
constexpr int packing_version = 2;

struct BatchOptions {
  std::int64_t sequence_len = 2048;
  std::int64_t micro_batch_size = 1;
  bool sample_packing = true;
  std::uint64_t seed = 0;
  bool shuffle = true;
  Oversized oversized = Oversized::truncate;
};

// Decides which documents stand in which micro-batch of which epoch. With packing a micro-batch takes whole documents
// up to micro_batch_size x sequence_len tokens; without, micro_batch_size documents. Every document stands in exactly
// one micro-batch of every epoch (those that were dropped in none; the pieces of those that were split wherever they
// fit). What a micro-batch holds depends on lengths, options, epoch and index alone, so a run resumes from (epoch,
// index).
//
// Shuffled: documents in an order keyed by (seed, epoch), each into one of a bounded number of open micro-batches,
// where the least room remains; then the micro-batches in another random order. Nothing is sorted by length: a step of
// documents of one length would be a biased sample of the data. Unshuffled: file order throughout.
//
// Keeps the plan of one epoch; asking in order is cheap, jumping between epochs plans each time. Not thread-safe.
class BatchSampler {
 public:
  // Lengths in tokens, all at least 1. UserError where an option makes no sense, where a document is too long and
  // options say to raise, and where nothing is left after dropping.
  BatchSampler(const std::vector<std::int64_t>& lengths, const BatchOptions& options);
  // Leaves out what holds nothing to learn, after documents were cut or split; UserError where that is everything.
  BatchSampler(const Documents& documents, const BatchOptions& options);

  // A document, or one of the pieces that it was split into, whose numbers come behind those of all documents.
  struct Piece {
    std::int64_t document = 0, begin = 0, length = 0;
  };

  std::int64_t batches_per_epoch(std::int64_t epoch) const;
  // Numbers of pieces. Without splitting they are the documents' own.
  std::vector<std::int64_t> documents_of(std::int64_t epoch, std::int64_t index) const;
  // Of all that are used.
  const std::vector<std::int64_t>& kept() const { return kept_; }
  Piece piece(std::int64_t number) const;
  // Tokens of the micro-batch, and the most that any micro-batch may have (for the memory plan).
  std::int64_t tokens_of(std::int64_t epoch, std::int64_t index) const;
  std::int64_t max_tokens() const { return options_.micro_batch_size * options_.sequence_len; }

  // A piece's length, after truncation.
  std::int64_t length_of(std::int64_t number) const { return piece(number).length; }
  // Its labels that count, and their weights together. Where only lengths are known, every label does.
  std::int64_t labels_of(std::int64_t number) const;
  double weight_of(std::int64_t number) const;

  std::int64_t document_count() const { return documents_; }
  std::int64_t tokens_per_epoch() const { return tokens_; }
  std::int64_t truncated_documents() const { return truncated_; }
  std::int64_t truncated_tokens() const { return truncated_tokens_; }
  std::int64_t split_documents() const { return split_; }
  std::int64_t dropped_documents() const { return dropped_; }
  std::int64_t unlabelled_pieces() const { return unlabelled_; }
  // The share of max_tokens() that an epoch's micro-batches fill on average.
  double efficiency(std::int64_t epoch) const;

  const BatchOptions& options() const { return options_; }

 private:
  // Micro-batch i holds documents[offsets[i]] to documents[offsets[i + 1]].
  struct Plan {
    std::int64_t epoch = -1;
    std::vector<std::int64_t> documents, offsets;
  };

  void count_labels(const Documents& documents);
  void leave_out_unlabelled(const Documents& documents);
  // In which micro-batch each document of an order is. There are tens of millions of either in large data, so neither
  // is an object of its own.
  struct Packing {
    std::vector<std::uint32_t> batch_of;
    std::uint32_t batches = 0;

    void put(std::uint32_t batch) { batch_of.push_back(batch); }
    std::uint32_t open_batch();
  };
  std::int64_t pieces() const { return std::ssize(lengths_) + std::ssize(rest_); }
  const Plan& plan(std::int64_t epoch) const;
  Packing pack_best_fit(std::span<const std::int64_t> order) const;
  Packing pack_in_order(std::span<const std::int64_t> order) const;
  std::span<const std::int64_t> batch(std::int64_t epoch, std::int64_t index) const;

  BatchOptions options_;
  std::vector<std::int32_t> lengths_;  // of every document, or its first piece
  std::vector<Piece> rest_;            // the others of those that were split
  std::vector<std::int64_t> kept_;     // numbers of the pieces that are used
  std::vector<std::int32_t> labels_;   // of every piece, those that count; empty: all but the first
  std::vector<double> weights_;        // of every piece's labels together; empty: as many as there are
  std::int64_t documents_ = 0, tokens_ = 0, truncated_ = 0, truncated_tokens_ = 0, split_ = 0, dropped_ = 0,
               unlabelled_ = 0;
  mutable Plan plan_;
};

// Pieces by their numbers. One from inside a document begins as documents do: with a label that is masked.
std::vector<Document> read_pieces(const BatchSampler& sampler, const Documents& documents,
                                  std::span<const std::int64_t> numbers);

}  // namespace inlay::data
