#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace inlay {

// A document as it comes from data: labels stand at their tokens' positions, ignore_label where nothing is learned.
// A label counts as much as its weight says.
inline constexpr std::int32_t ignore_label = -100;

struct Document {
  std::vector<std::int32_t> input_ids;
  std::vector<std::int32_t> labels;
  std::vector<float> weights = {};  // one a token; empty: all of them are 1
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
