#include "model/decoding.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "model/rope_table.h"
#include "ops/attention/decode.h"
#include "ops/sample.h"

namespace inlay::model {

namespace {

// Rows that pass at once of what is given: enough that the products are worth it, few enough that they need little
// memory. The beginnings of texts attend to each other as in training, which is quick; what follows a text that is in
// the cache reads the latter row by row.
std::int64_t first_rows_at_once(const Exec& exec) { return exec.on_cuda() ? 8192 : 1024; }
std::int64_t later_rows_at_once(const Exec& exec) { return exec.on_cuda() ? 512 : 128; }

}  // namespace

KvCache::KvCache(Exec& exec, const ModelConfig& config, DType dtype, std::int64_t sequences, std::int64_t capacity,
                 std::int64_t first_row)
    : arena_(exec.arena()), mark_(arena_.mark()), capacity_(capacity), first_row_(first_row) {
  const Shape shape{sequences, config.kv_heads, capacity, config.head_dim};
  const auto keep = [&](std::string_view name) { return arena_.keep(MemoryClass::activations, name, dtype, shape); };
  for (std::int64_t l = 0; l < config.layer_count(); ++l) {
    layers_.push_back({.keys = keep("cached keys"), .values = keep("cached values")});
  }
}

Continuation::Continuation(Exec& exec, Decoder& decoder, std::int64_t sequences, std::int64_t capacity,
                           std::int64_t shortest)
    : arena_(exec.arena()),
      mark_(arena_.mark()),
      decoder_(decoder),
      capacity_(capacity),
      chunk_(std::min(first_rows_at_once(exec), sequences * capacity)),
      texts_(static_cast<std::size_t>(sequences)),
      prefixes_(static_cast<std::size_t>(sequences)),
      drawn_(static_cast<std::size_t>(sequences)) {
  const std::int64_t long_texts = long_row(decoder.config().rope);
  const bool begins_long = long_texts > 0 && shortest > long_texts;
  const bool becomes_long = long_texts > 0 && capacity > long_texts && !begins_long;
  if (!decoder.config().attention.given() && !becomes_long) {
    cache_.emplace(exec, decoder.config(), decoder.options().compute, sequences, capacity,
                   begins_long ? long_texts : 0);
  }
  const auto keep = [&](std::string_view name, std::int64_t count) {
    return arena_.keep(MemoryClass::batch, name, DType::i32, {count});
  };
  ids_ = keep("drawn ids", sequences), sequences_ = keep("sequences", sequences);
  positions_ = keep("positions", sequences);
  given_ids_ = keep("given ids", chunk_), given_sequences_ = keep("given ids' sequences", chunk_);
  given_positions_ = keep("given ids' positions", chunk_), picked_ = keep("last rows", chunk_);
  given_starts_ = keep("given ids' texts", chunk_ + 1);
  logits_ = arena_.keep(MemoryClass::logits, "logits", DType::f32, {sequences, decoder.config().vocab});
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(sequences));
  std::iota(numbers.begin(), numbers.end(), 0);
  exec.upload(sequences_, numbers.data());
}

// As training would pack them: what was made is learned, and what was given is not.
PackedBatch Continuation::packed_texts() const {
  std::vector<Document> documents(texts_.size());
  for (std::size_t s = 0; s < texts_.size(); ++s) {
    documents[s] = {.input_ids = texts_[s], .labels = texts_[s]};
    std::fill_n(documents[s].labels.begin(), prefixes_[s], ignore_label);
  }
  return pack(documents);
}

void Continuation::give(Exec& exec, std::span<const std::vector<std::int32_t>> tokens) {
  INLAY_ASSERT(tokens.size() == texts_.size(), "{} texts for {} sequences", tokens.size(), texts_.size());
  for (std::size_t s = 0; s < texts_.size(); ++s) {
    INLAY_ASSERT(!tokens[s].empty() && static_cast<std::int64_t>(texts_[s].size() + tokens[s].size()) <= capacity_,
                 "{} tokens join {} in a place for {}", tokens[s].size(), texts_[s].size(), capacity_);
  }
  pending_ = false;
  if (cache_) pass_given(exec, tokens);
  std::vector<std::int32_t> last;
  for (std::size_t s = 0; s < texts_.size(); ++s) {
    texts_[s].insert(texts_[s].end(), tokens[s].begin(), tokens[s].end());
    prefixes_[s] = texts_[s].size();
    last.push_back(static_cast<std::int32_t>(texts_[s].size()) - 1);
  }
  if (!cache_) decoder_.next_logits(exec, logits_, packed_texts());
  exec.upload(positions_, last.data());
}

// The largest passes that there may be, however many tokens are given.
void Continuation::rehearse_given(Exec& exec) {
  const auto pass = [&](std::int64_t rows, bool beginnings) {
    DecodeRows given = {.tokens = given_ids_.slice_rows(0, rows),
                        .places = {given_sequences_.slice_rows(0, rows), given_positions_.slice_rows(0, rows)}};
    if (beginnings) {
      for (std::int64_t start = 0; start < rows; start += capacity_) {
        given.host_cu_seqlens.push_back(static_cast<std::int32_t>(start));
      }
      given.host_cu_seqlens.push_back(static_cast<std::int32_t>(rows));
      given.cu_seqlens = given_starts_.slice_rows(0, static_cast<std::int64_t>(given.host_cu_seqlens.size()));
    }
    const std::int64_t ends = std::min(rows, logits_.dim(0));
    decoder_.decode(exec, logits_.slice_rows(0, ends), given, *cache_,
                    ends == rows ? View() : picked_.slice_rows(0, ends));
  };
  pass(chunk_, true);
  pass(std::min(chunk_, later_rows_at_once(exec)), false);
}

// Rows of all sequences, one after the other. The logits of those that end in a chunk are made with it.
void Continuation::pass_given(Exec& exec, std::span<const std::vector<std::int32_t>> tokens) {
  if (exec.planning()) return rehearse_given(exec);
  std::vector<std::int32_t> ids, sequences, positions, ends;
  std::vector<std::int32_t> starts;  // of texts whose beginning is here, and where the last one ends
  std::size_t done = 0;              // sequences whose logits are made
  const auto pass = [&] {
    if (ids.empty()) return;
    const auto rows = static_cast<std::int64_t>(ids.size()), picked = static_cast<std::int64_t>(ends.size());
    const auto upload = [&](View to, const std::vector<std::int32_t>& from) {
      const View part = to.slice_rows(0, static_cast<std::int64_t>(from.size()));
      exec.upload(part, from.data());
      return part;
    };
    DecodeRows given = {.tokens = upload(given_ids_, ids),
                        .places = {upload(given_sequences_, sequences), upload(given_positions_, positions)}};
    if (!starts.empty()) {
      starts.push_back(static_cast<std::int32_t>(rows));
      given.cu_seqlens = upload(given_starts_, starts);
      given.host_cu_seqlens = starts;
    }
    const auto first = static_cast<std::int64_t>(done);
    decoder_.decode(exec, picked > 0 ? logits_.slice_rows(first, first + picked) : View(), given, *cache_,
                    picked == rows ? View() : upload(picked_, ends));
    done += ends.size();
    ids.clear(), sequences.clear(), positions.clear(), ends.clear(), starts.clear();
  };
  for (std::size_t s = 0; s < tokens.size(); ++s) {
    const std::size_t room = static_cast<std::size_t>(chunk_), count = tokens[s].size();
    // A text is not begun in one chunk and continued in the next as long as it fits into one.
    const std::size_t beginning = texts_[s].empty() ? std::min(count, room) : 0;
    if (starts.empty() != (beginning == 0) || ids.size() + beginning > room) pass();
    if (beginning > 0) starts.push_back(static_cast<std::int32_t>(ids.size()));
    const auto most_later = static_cast<std::size_t>(std::min(chunk_, later_rows_at_once(exec)));
    for (std::size_t i = 0; i < count; ++i) {
      if (i == beginning && i > 0) pass();
      if (i + 1 == count) ends.push_back(static_cast<std::int32_t>(ids.size()));
      ids.push_back(tokens[s][i]);
      sequences.push_back(static_cast<std::int32_t>(s));
      positions.push_back(static_cast<std::int32_t>(texts_[s].size() + i));
      if (i >= beginning && ids.size() == most_later) pass();
    }
  }
  pass();
}

void Continuation::draw(Exec& exec, const Drawing& drawing) {
  if (drawing.top_p < 1.0f && drawing.temperature > 0) {
    ops::keep_nucleus(exec, logits_, drawing.temperature, drawing.top_p);
  }
  ops::sample(exec, ids_, logits_,
              {.temperature = drawing.temperature,
               .seed = drawing.seed,
               .first_sequence = drawing.first_sequence,
               .positions = positions_});
}

const std::vector<std::int32_t>& Continuation::next(Exec& exec, const Drawing& drawing) {
  if (!pending_) {
    draw(exec, drawing);
  } else {
    for (std::size_t s = 0; s < texts_.size(); ++s) {
      texts_[s].push_back(drawn_[s]);
      INLAY_ASSERT(static_cast<std::int64_t>(texts_[s].size()) <= capacity_, "more than {} tokens", capacity_);
    }
    const auto step = [&] {
      ops::advance(exec, positions_);
      if (cache_) {
        decoder_.decode(exec, logits_, {.tokens = ids_, .places = {sequences_, positions_}}, *cache_);
      } else {
        decoder_.next_logits(exec, logits_, packed_texts());
      }
      draw(exec, drawing);
    };
    if (!(drawing == recorded_)) step_.forget();
    recorded_ = drawing;
    // Weights that come from elsewhere come by other lanes, and the rows of experts are counted by the host.
    const bool repeats = cache_ && decoder_.traffic() == nullptr && decoder_.config().experts.count == 0;
    repeats ? step_.run(exec, step) : step();
  }
  exec.download(drawn_.data(), ids_);
  pending_ = true;
  return drawn_;
}

const std::vector<std::int32_t>& Continuation::next(Exec& exec, const Drawing& drawing, parallel::Communicator& ranks) {
  next(exec, drawing);
  const std::size_t bytes = drawn_.size() * sizeof(std::int32_t);
  const std::string drawn =
      ranks.from_leader({reinterpret_cast<const char*>(drawn_.data()), bytes}, "tokens of a text that is written");
  INLAY_ASSERT(drawn.size() == bytes, "{} bytes of drawn tokens where {} are expected", drawn.size(), bytes);
  std::memcpy(drawn_.data(), drawn.data(), bytes);
  exec.upload(ids_, drawn_.data());
  return drawn_;
}

std::vector<std::vector<std::int32_t>> continue_texts(Exec& exec, Decoder& decoder,
                                                      std::span<const std::vector<std::int32_t>> prompts,
                                                      const WritingOptions& options) {
  INLAY_ASSERT(!prompts.empty() && options.count >= 0, "{} tokens after {} prompts", options.count, prompts.size());
  exec.arena().begin_phase("sampling");
  std::size_t shortest = prompts[0].size(), longest = 0;
  for (const std::vector<std::int32_t>& prompt : prompts) {
    shortest = std::min(shortest, prompt.size()), longest = std::max(longest, prompt.size());
  }
  // The last token is made from those before it, and needs no place.
  Continuation texts(exec, decoder, static_cast<std::int64_t>(prompts.size()),
                     static_cast<std::int64_t>(longest) + std::max<std::int64_t>(options.count - 1, 0),
                     static_cast<std::int64_t>(shortest));
  texts.give(exec, prompts);
  std::vector<std::vector<std::int32_t>> made(prompts.size());
  std::vector<char> stopped(prompts.size());
  // No step needs more than the second: a plan needs no others.
  const std::int64_t steps = exec.planning() ? std::min<std::int64_t>(options.count, 2) : options.count;
  for (std::int64_t step = 0; step < steps; ++step) {
    if (std::all_of(stopped.begin(), stopped.end(), [](char s) { return s != 0; })) break;
    const bool together = options.ranks != nullptr && !exec.planning();
    const std::vector<std::int32_t>& ids =
        together ? texts.next(exec, options.drawing, *options.ranks) : texts.next(exec, options.drawing);
    if (exec.planning()) continue;
    for (std::size_t s = 0; s < made.size(); ++s) {
      if (stopped[s] != 0) continue;
      const bool stop = std::find(options.stops.begin(), options.stops.end(), ids[s]) != options.stops.end();
      stopped[s] = stop || step + 1 == options.count ? 1 : 0;
      if (!stop || options.keep_stop) {
        made[s].push_back(ids[s]);
        if (options.made) options.made(s, ids[s]);
      }
      if (stopped[s] != 0 && options.ended) options.ended(s);
    }
    if (options.progress) options.progress(step + 1, options.count);
  }
  return made;
}

std::vector<std::vector<std::int32_t>> sample(Exec& exec, Decoder& decoder, const SamplingOptions& options,
                                              const SamplingProgress& progress) {
  INLAY_ASSERT(options.sequences >= 1 && options.length >= 1, "sample: {} sequences of {} tokens", options.sequences,
               options.length);
  const std::vector<std::vector<std::int32_t>> starts(static_cast<std::size_t>(options.sequences),
                                                      {options.start_token});
  WritingOptions writing = {
      .count = options.length - 1,
      .keep_stop = true,
      .drawing = {.temperature = options.temperature, .seed = options.seed, .first_sequence = options.first_sequence},
      .progress = progress};
  if (options.stop_token >= 0) writing.stops = {options.stop_token};
  std::vector<std::vector<std::int32_t>> texts = continue_texts(exec, decoder, starts, writing);
  for (std::vector<std::int32_t>& text : texts) text.insert(text.begin(), options.start_token);
  return texts;
}

}  // namespace inlay::model
