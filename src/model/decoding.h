#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "model/decoder.h"

// Text from a model, one token after the other: every token is computed once, and its keys and values are kept for
// those that follow.
namespace inlay::model {

// What one layer has seen, [sequences, kv_heads, capacity, head_dim]; the layout is explained in
// ops/attention/decode.h.
struct LayerCache {
  View keys, values;

  // The place of one position, [sequences, kv_heads, head_dim].
  View key(std::int64_t position) const { return place(keys, position); }
  View value(std::int64_t position) const { return place(values, position); }

 private:
  static View place(View cache, std::int64_t position) {
    const std::int64_t capacity = cache.dim(2), width = cache.dim(3);
    return cache.reshape({cache.dim(0), cache.dim(1), capacity * width})
        .slice_cols(position * width, (position + 1) * width);
  }
};

// Keys and values of sequences that grow together: all of them are of one length at any time. The memory is taken from
// the bottom of the arena, and given back at the end with everything that was taken after it.
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
  ConstView origin() const { return origin_; }  // int32 [sequences], zeros

 private:
  Arena& arena_;
  std::size_t mark_;
  std::int64_t capacity_, first_row_;
  std::vector<LayerCache> layers_;
  View origin_;
};

// Sequences of one length that grow by a token at a time. Keys and values are kept; where the model attends by a rule,
// which may change what earlier tokens see, or where the text grows from a length at which the model rotates in one way
// to one at which it rotates in another, the whole text passes again for every token.
class Continuation {
 public:
  // prefix: how many of the first tokens are given and not made, for rules that speak of them.
  Continuation(Exec& exec, Decoder& decoder, std::int64_t sequences, std::int64_t capacity, std::int64_t prefix);
  // As a cache does, with one or without: what was taken from the bottom of the arena since is given back.
  ~Continuation() { arena_.release_to(mark_); }
  Continuation(const Continuation&) = delete;
  Continuation& operator=(const Continuation&) = delete;

  // One token of every sequence, int32 [sequences] on the device, at `position`. logits, fp32 [sequences, vocab],
  // become those of the tokens that follow; absent where nobody asks. Planning may begin at any position.
  void append(Exec& exec, View logits, ConstView tokens, std::int64_t position);

 private:
  PackedBatch texts(std::int64_t length) const;

  Arena& arena_;
  std::size_t mark_;
  Decoder& decoder_;
  std::int64_t sequences_, prefix_;
  std::optional<KvCache> cache_;
  std::vector<std::int32_t> tokens_;  // without a cache: position after position, of all sequences
};

struct SamplingOptions {
  std::int64_t sequences = 1;  // all at once
  std::int64_t length = 0;     // of each, the start token included
  std::int32_t start_token = 0;
  float temperature = 1.0f;  // 0: always the likeliest token
  std::uint64_t seed = 0;
  std::int32_t stop_token = -1;     // ends a sequence, and is its last token; -1: none does
  std::int64_t first_sequence = 0;  // number of the first one: sequences of one number and seed are the same text
};

// done of total positions, after each.
using SamplingProgress = std::function<void(std::int64_t done, std::int64_t total)>;

// Sequences that the model writes by itself, each from the start token on. Ids stay on the device until the end; with a
// stop token they are looked at now and then, to see whether all have stopped. Planning goes through the last position
// alone: no other needs as much.
std::vector<std::vector<std::int32_t>> sample(Exec& exec, Decoder& decoder, const SamplingOptions& options,
                                              const SamplingProgress& progress = {});

}  // namespace inlay::model
