#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/sequence_role.h"

namespace inlay {

// A document as it comes from data: labels stand at their tokens' positions, ignore_label where nothing is learned.
// A label counts as much as its weight says.
inline constexpr std::int32_t ignore_label = -100;
constexpr bool is_label(std::int32_t value) { return value >= 0; }

// A document of several sequences, which do not see each other but are learned from together: nothing could predict a
// sequence's first token, so its label says that a sequence begins, and which.
constexpr std::int32_t sequence_mark(SequenceRole role) { return -1000 - static_cast<std::int32_t>(role); }
constexpr bool marks_sequence(std::int32_t label) { return label <= sequence_mark(SequenceRole::plain); }
constexpr SequenceRole marked_role(std::int32_t label) { return static_cast<SequenceRole>(-1000 - label); }

// What another model has predicted at some positions: the likeliest tokens and their log-probabilities, as many for
// each token of a document or batch; ids of -1 where there are fewer.
struct KeptPredictions {
  std::int64_t per_token = 0;
  std::vector<std::int32_t> ids = {};
  std::vector<float> log_probs = {};
};

struct Document {
  std::vector<std::int32_t> input_ids;
  std::vector<std::int32_t> labels;
  std::vector<float> weights = {};    // one a token; empty: all of them are 1
  std::vector<float> reference = {};  // of each sequence, its log-probability by the reference model; empty: unknown
  KeptPredictions kept = {};          // at a token's position, of that token: like its label
  // What another model sees in place of the tokens before the first label, to predict what follows; empty: the same.
  std::vector<std::int32_t> others_prompt = {};

  std::int64_t others_length() const;  // tokens that it sees
};

// Cuts off what is beyond so many tokens; whether there was any.
bool truncate(Document& document, std::size_t most);

// Documents laid end to end. Padding does not exist. Position i predicts targets[i], which is the label of the next
// token of the same document; a document's last position predicts nothing.
struct PackedBatch {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;     // ignore_label where there is none
  std::vector<std::int32_t> positions;   // restart at every document
  std::vector<std::int32_t> cu_seqlens;  // documents + 1 offsets
  std::vector<std::int32_t> valid_rows;  // ascending positions whose target counts
  std::vector<float> weights;            // of the targets; empty: all of them are 1
  std::vector<std::int32_t> roles;       // SequenceRole of every sequence; empty: all are plain
  std::vector<float> reference;          // of every sequence; empty: unknown
  KeptPredictions kept;                  // of the targets
  // As another model sees the documents, where their prompts are others to it: one batch, without targets, and for each
  // token here the row there that predicts the same target.
  std::vector<PackedBatch> others;
  std::vector<std::int32_t> others_rows;

  std::int64_t token_count() const { return static_cast<std::int64_t>(tokens.size()); }
  std::int64_t document_count() const { return static_cast<std::int64_t>(cu_seqlens.size()) - 1; }
  std::int64_t valid_count() const { return static_cast<std::int64_t>(valid_rows.size()); }
  // What the loss of the batch is divided by to be a mean: the weights of its valid targets.
  double valid_weight() const;
  // Of each document, the tokens before the first one that is learned; all of them where none is.
  std::vector<std::int32_t> prefix_lengths() const;
};

PackedBatch pack(std::span<const Document> documents);
// Documents in order, cut into batches of at most max_tokens; a longer document makes a batch alone.
std::vector<PackedBatch> batches_in_order(const std::vector<Document>& documents, std::int64_t max_tokens);

}  // namespace inlay
