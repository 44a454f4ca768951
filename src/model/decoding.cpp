#include "model/decoding.h"

#include <algorithm>

#include "model/rope_table.h"
#include "ops/sample.h"

namespace inlay::model {

using backend::ScratchScope;

namespace {

constexpr std::int64_t positions_a_look = 16;  // with a stop token: how many may be sampled in vain

// Row after row what each sequence is, from the device's [positions, sequences]; cut after the stop token.
std::vector<std::vector<std::int32_t>> read_sequences(Exec& exec, ConstView ids, std::int32_t stop_token) {
  const std::int64_t positions = ids.dim(0), sequences = ids.dim(1);
  std::vector<std::int32_t> all(static_cast<std::size_t>(ids.size()));
  exec.download(all.data(), ids);
  std::vector<std::vector<std::int32_t>> result(static_cast<std::size_t>(sequences));
  for (std::int64_t s = 0; s < sequences; ++s) {
    std::vector<std::int32_t>& text = result[static_cast<std::size_t>(s)];
    for (std::int64_t p = 0; p < positions; ++p) {
      text.push_back(all[static_cast<std::size_t>(p * sequences + s)]);
      if (p > 0 && text.back() == stop_token) break;  // the start token may be the stop token as well
    }
  }
  return result;
}

bool all_stopped(const std::vector<std::vector<std::int32_t>>& texts, std::int32_t stop_token) {
  return std::all_of(texts.begin(), texts.end(), [&](const std::vector<std::int32_t>& text) {
    return text.size() > 1 && text.back() == stop_token;
  });
}

}  // namespace

KvCache::KvCache(Exec& exec, const ModelConfig& config, DType dtype, std::int64_t sequences, std::int64_t capacity,
                 std::int64_t first_row)
    : arena_(exec.arena()), mark_(arena_.mark()), capacity_(capacity), first_row_(first_row) {
  const Shape shape{sequences, config.kv_heads, capacity, config.head_dim};
  const auto keep = [&](std::string_view name) { return arena_.keep(MemoryClass::activations, name, dtype, shape); };
  for (std::int64_t l = 0; l < config.layer_count(); ++l) {
    layers_.push_back({.keys = keep("cached keys"), .values = keep("cached values")});
  }
  origin_ = arena_.keep(MemoryClass::batch, "origin", DType::i32, {sequences});
  exec.fill_zero(origin_);
}

Continuation::Continuation(Exec& exec, Decoder& decoder, std::int64_t sequences, std::int64_t capacity,
                           std::int64_t prefix)
    : arena_(exec.arena()), mark_(arena_.mark()), decoder_(decoder), sequences_(sequences), prefix_(prefix) {
  const std::int64_t long_texts = long_row(decoder.config().rope);
  const bool begins_long = long_texts > 0 && prefix > long_texts;
  const bool becomes_long = long_texts > 0 && capacity > long_texts && !begins_long;
  if (decoder.config().attention.given() || becomes_long) return;
  cache_.emplace(exec, decoder.config(), decoder.options().compute, sequences, capacity, begins_long ? long_texts : 0);
}

// As training would pack them: what was made is learned, and what was given is not.
PackedBatch Continuation::texts(std::int64_t length) const {
  std::vector<Document> documents(static_cast<std::size_t>(sequences_));
  for (std::int64_t s = 0; s < sequences_; ++s) {
    Document& document = documents[static_cast<std::size_t>(s)];
    for (std::int64_t p = 0; p < length; ++p) {
      const std::int32_t token = tokens_[static_cast<std::size_t>(p * sequences_ + s)];
      document.input_ids.push_back(token);
      document.labels.push_back(p < prefix_ ? ignore_label : token);
    }
  }
  return pack(documents);
}

void Continuation::append(Exec& exec, View logits, ConstView tokens, std::int64_t position) {
  if (cache_) return decoder_.decode(exec, logits, tokens, *cache_, position);
  tokens_.resize(static_cast<std::size_t>((position + 1) * sequences_));
  exec.download(tokens_.data() + position * sequences_, tokens);
  if (!logits.absent()) decoder_.next_logits(exec, logits, texts(position + 1));
}

std::vector<std::vector<std::int32_t>> sample(Exec& exec, Decoder& decoder, const SamplingOptions& options,
                                              const SamplingProgress& progress) {
  const std::int64_t sequences = options.sequences, length = options.length;
  INLAY_ASSERT(sequences >= 1 && length >= 1, "sample: {} sequences of {} tokens", sequences, length);
  Arena& arena = exec.arena();
  arena.begin_phase("sampling");
  // The last token is made from those before it, and needs no place.
  Continuation continuation(exec, decoder, sequences, std::max<std::int64_t>(length - 1, 1), 1);
  View ids = arena.keep(MemoryClass::batch, "sampled ids", DType::i32, {length, sequences});
  const auto ids_at = [&](std::int64_t position) {
    return ids.slice_rows(position, position + 1).reshape({sequences});
  };
  const ScratchScope scope(arena);
  View logits = arena.scratch(MemoryClass::logits, "logits", DType::f32, {sequences, decoder.config().vocab});

  const std::vector<std::int32_t> start(static_cast<std::size_t>(sequences), options.start_token);
  exec.upload(ids_at(0), start.data());
  for (std::int64_t position = exec.planning() ? std::max<std::int64_t>(length - 2, 0) : 0; position + 1 < length;
       ++position) {
    continuation.append(exec, logits, ids_at(position), position);
    ops::sample(exec, ids_at(position + 1), logits,
                {.temperature = options.temperature,
                 .seed = options.seed,
                 .first_sequence = options.first_sequence,
                 .position = position});
    if (progress) progress(position + 1, length - 1);
    if (options.stop_token < 0 || (position + 1) % positions_a_look != 0) continue;
    auto texts = read_sequences(exec, ids.slice_rows(0, position + 2), options.stop_token);
    if (all_stopped(texts, options.stop_token)) return texts;
  }
  return read_sequences(exec, ids, options.stop_token);
}

}  // namespace inlay::model
