#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "backend/replay.h"
#include "model/decoder.h"
#include "parallel/communicator.h"

// Text from a model, one token after the other: every token is computed once, and its keys and values are kept for
// those that follow.
namespace inlay::model {

// What one layer has seen, [sequences, kv_heads, capacity, head_dim]; the layout is explained in
// ops/attention/decode.h.
struct LayerCache {
  View keys, values;
};

// Keys and values of sequences, each of which may be of any length up to the capacity. The memory is taken from the
// bottom of the arena, and given back at the end with everything that was taken after it.
class KvCache {
 public:
  // first_row: of the rotary table, where position 0 is (model/rope_table.h).
  KvCache(Exec& exec, const ModelConfig& config, DType dtype, std::int64_t sequences, std::int64_t capacity,
          std::int64_t first_row = 0);
  ~KvCache() { arena_.release_to(mark_); }
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  const LayerCache& layer(std::size_t index) const { return layers_[index]; }
  std::int64_t capacity() const { return capacity_; }
  std::int64_t first_row() const { return first_row_; }

 private:
  Arena& arena_;
  std::size_t mark_;
  std::int64_t capacity_, first_row_;
  std::vector<LayerCache> layers_;
};

// How the next tokens are chosen. Random numbers belong to the seed, the sequence's number and the position alone.
struct Drawing {
  float temperature = 0.0f;  // 0: always the likeliest token
  float top_p = 1.0f;        // drawn from the nucleus: the fewest likeliest tokens that have this much probability
  std::uint64_t seed = 0;
  std::int64_t first_sequence = 0;  // number of the first one: sequences of one number and seed are the same text

  bool operator==(const Drawing&) const = default;
};

// Sequences that grow by tokens that are given, many at once, and by tokens that are drawn, one of each at a time. Keys
// and values are kept; where the model attends by a rule, which may change what earlier tokens see, or where a text may
// grow from a length at which the model rotates in one way to one at which it rotates in another, the whole text passes
// again for every token.
class Continuation {
 public:
  // shortest: no text will be given that is shorter. In a plan any number of tokens may be given.
  Continuation(Exec& exec, Decoder& decoder, std::int64_t sequences, std::int64_t capacity, std::int64_t shortest = 1);
  // As a cache does, with one or without: what was taken from the bottom of the arena since is given back.
  ~Continuation() { arena_.release_to(mark_); }
  Continuation(const Continuation&) = delete;
  Continuation& operator=(const Continuation&) = delete;

  std::int64_t capacity() const { return capacity_; }
  // Kernels and copies of a step, where it was recorded.
  std::size_t step_launches() const { return step_.recorded_count(); }
  // What a sequence holds: without what was drawn last, which has not joined it yet.
  const std::vector<std::int32_t>& text(std::size_t sequence) const { return texts_[sequence]; }
  // All but the first tokens of a sequence are forgotten.
  void rewind(std::size_t sequence, std::size_t length) { texts_[sequence].resize(length); }
  // At least one token joins every sequence; what was drawn last does not.
  void give(Exec& exec, std::span<const std::vector<std::int32_t>> tokens);
  // What was drawn last joins its sequences, and the next tokens are drawn, one of each; waits for them.
  const std::vector<std::int32_t>& next(Exec& exec, const Drawing& drawing);
  // The same on several ranks, of which the first one draws for all.
  const std::vector<std::int32_t>& next(Exec& exec, const Drawing& drawing, parallel::Communicator& ranks);

 private:
  PackedBatch packed_texts() const;
  void pass_given(Exec& exec, std::span<const std::vector<std::int32_t>> tokens);
  void rehearse_given(Exec& exec);
  void draw(Exec& exec, const Drawing& drawing);

  Arena& arena_;
  std::size_t mark_;
  Decoder& decoder_;
  std::int64_t capacity_, chunk_;  // chunk_: rows that are given at once, at most
  std::optional<KvCache> cache_;
  View ids_, sequences_, positions_, logits_;  // of what was drawn, and of the last token of every sequence
  View given_ids_, given_sequences_, given_positions_, given_starts_, picked_;
  std::vector<std::vector<std::int32_t>> texts_;
  std::vector<std::size_t> prefixes_;  // of texts_: given, and not made, for rules that speak of it
  std::vector<std::int32_t> drawn_;
  bool pending_ = false;  // drawn_ has not joined
  backend::Replay step_;
  Drawing recorded_;  // what step_ does
};

struct WritingOptions {
  std::int64_t count = 32;          // new tokens of each text, at most
  std::vector<std::int32_t> stops;  // each ends a text
  bool keep_stop = false;           // and is its last token
  Drawing drawing;
  // Those that write these texts together, or none. Hosts may round otherwise, and texts that part would end at
  // different lengths, while weights are gathered for every token: so all go on with what the first one has drawn.
  parallel::Communicator* ranks = nullptr;
  std::function<void(std::size_t text, std::int32_t token)> made;  // called with every token as it is made
  std::function<void(std::size_t text)> ended;                     // no further token comes of this text
  // done of total steps, after each.
  std::function<void(std::int64_t done, std::int64_t total)> progress;
};

// What follows each of the prompts, all at once, until every text has stopped.
std::vector<std::vector<std::int32_t>> continue_texts(Exec& exec, Decoder& decoder,
                                                      std::span<const std::vector<std::int32_t>> prompts,
                                                      const WritingOptions& options);

struct SamplingOptions {
  std::int64_t sequences = 1;  // all at once
  std::int64_t length = 0;     // of each, the start token included
  std::int32_t start_token = 0;
  float temperature = 1.0f;  // 0: always the likeliest token
  std::uint64_t seed = 0;
  std::int32_t stop_token = -1;     // ends a sequence, and is its last token; -1: none does
  std::int64_t first_sequence = 0;  // as in Drawing
};

// done of total positions, after each.
using SamplingProgress = std::function<void(std::int64_t done, std::int64_t total)>;

// Sequences that the model writes by itself, each from the start token on.
std::vector<std::vector<std::int32_t>> sample(Exec& exec, Decoder& decoder, const SamplingOptions& options,
                                              const SamplingProgress& progress = {});

}  // namespace inlay::model
