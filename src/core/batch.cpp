#include "core/batch.h"

#include <algorithm>

#include "core/error.h"

namespace inlay {

bool truncate(Document& document, std::size_t most) {
  if (document.input_ids.size() <= most) return false;
  document.input_ids.resize(most);
  document.labels.resize(most);
  if (!document.weights.empty()) document.weights.resize(most);
  if (const auto kept = static_cast<std::size_t>(document.kept.per_token); kept > 0) {
    document.kept.ids.resize(most * kept);
    document.kept.log_probs.resize(most * kept);
  }
  return true;
}

double PackedBatch::valid_weight() const {
  if (weights.empty()) return static_cast<double>(valid_count());
  double sum = 0;
  for (const std::int32_t row : valid_rows) sum += static_cast<double>(weights[static_cast<std::size_t>(row)]);
  return sum;
}

std::vector<std::int32_t> PackedBatch::prefix_lengths() const {
  std::vector<std::int32_t> lengths;
  for (std::size_t d = 0; d + 1 < cu_seqlens.size(); ++d) {
    const std::int32_t begin = cu_seqlens[d], end = cu_seqlens[d + 1];
    const auto first = std::ranges::lower_bound(valid_rows, begin);
    lengths.push_back(first != valid_rows.end() && *first < end ? *first - begin + 1 : end - begin);
  }
  return lengths;
}

namespace {

bool has_sequences(const Document& document) {
  return !document.labels.empty() && marks_sequence(document.labels.front());
}

// What is kept of the tokens that each position predicts.
void pack_kept(PackedBatch& batch, const Document& document) {
  const auto width = static_cast<std::size_t>(batch.kept.per_token), length = document.input_ids.size();
  const auto own = static_cast<std::size_t>(document.kept.per_token);
  for (std::size_t i = 0; i < length; ++i) {
    for (std::size_t k = 0; k < width; ++k) {
      const bool known = i + 1 < length && k < own;
      batch.kept.ids.push_back(known ? document.kept.ids[(i + 1) * own + k] : -1);
      batch.kept.log_probs.push_back(known ? document.kept.log_probs[(i + 1) * own + k] : 0.0f);
    }
  }
}

// The documents as another model sees them. Rows before the first label's predict no target, so any row will do for
// them.
void pack_others(PackedBatch& batch, std::span<const Document> documents) {
  std::vector<Document> seen;
  std::int32_t offset = 0;
  for (const Document& document : documents) {
    const auto& ids = document.input_ids;
    const auto first = std::ranges::find_if(document.labels, is_label) - document.labels.begin();
    Document& other = seen.emplace_back();
    other.input_ids = document.others_prompt;
    const bool same = other.input_ids.empty();
    other.input_ids.insert(other.input_ids.end(), same ? ids.begin() : ids.begin() + first, ids.end());
    other.labels.assign(other.input_ids.size(), ignore_label);
    const auto longer = static_cast<std::int32_t>(std::ssize(other.input_ids) - std::ssize(ids));
    for (std::int32_t i = 0; i < std::ssize(ids); ++i) {
      batch.others_rows.push_back(offset + (i + 1 < first ? 0 : i + longer));
    }
    offset += static_cast<std::int32_t>(other.input_ids.size());
  }
  batch.others.push_back(pack(seen));
}

}  // namespace

std::int64_t Document::others_length() const {
  const auto length = std::ssize(input_ids);
  if (others_prompt.empty()) return length;
  return std::ssize(others_prompt) + length - (std::ranges::find_if(labels, is_label) - labels.begin());
}

PackedBatch pack(std::span<const Document> documents) {
  PackedBatch batch;
  const bool weighted = std::ranges::any_of(documents, [](const Document& d) { return !d.weights.empty(); });
  const bool roles = std::ranges::any_of(documents, has_sequences);
  const bool referred = std::ranges::any_of(documents, [](const Document& d) { return !d.reference.empty(); });
  for (const Document& d : documents) batch.kept.per_token = std::max(batch.kept.per_token, d.kept.per_token);
  batch.cu_seqlens.push_back(0);
  for (const Document& document : documents) {
    const std::size_t length = document.input_ids.size();
    INLAY_ASSERT(document.labels.size() == length, "{} labels for {} tokens", document.labels.size(), length);
    INLAY_ASSERT(document.weights.empty() || document.weights.size() == length, "{} weights for {} tokens",
                 document.weights.size(), length);
    std::size_t sequences = 0;
    std::int32_t position = 0;
    for (std::size_t i = 0; i < length; ++i) {
      if (i == 0 || marks_sequence(document.labels[i])) {
        if (i > 0) batch.cu_seqlens.push_back(static_cast<std::int32_t>(batch.tokens.size()));
        const SequenceRole role = has_sequences(document) ? marked_role(document.labels[i]) : SequenceRole::plain;
        if (roles) batch.roles.push_back(static_cast<std::int32_t>(role));
        if (referred) {
          const bool known = sequences < document.reference.size();
          batch.reference.push_back(known ? document.reference[sequences] : 0.0f);
        }
        position = 0;
        ++sequences;
      }
      const std::int32_t target =
          i + 1 < length && is_label(document.labels[i + 1]) ? document.labels[i + 1] : ignore_label;
      if (target != ignore_label) batch.valid_rows.push_back(static_cast<std::int32_t>(batch.tokens.size()));
      batch.tokens.push_back(document.input_ids[i]);
      batch.targets.push_back(target);
      batch.positions.push_back(position++);
      if (weighted)
        batch.weights.push_back(i + 1 < length && !document.weights.empty() ? document.weights[i + 1] : 1.0f);
    }
    if (batch.kept.per_token > 0) pack_kept(batch, document);
    batch.cu_seqlens.push_back(static_cast<std::int32_t>(batch.tokens.size()));
  }
  const bool differently = std::ranges::any_of(documents, [](const Document& d) { return !d.others_prompt.empty(); });
  INLAY_ASSERT(!differently || !roles, "documents of several sequences have one prompt");
  if (differently) pack_others(batch, documents);
  return batch;
}

std::vector<PackedBatch> batches_in_order(const std::vector<Document>& documents, std::int64_t max_tokens) {
  std::vector<PackedBatch> batches;
  std::size_t begin = 0;
  while (begin < documents.size()) {
    std::size_t end = begin;
    std::int64_t tokens = 0;
    while (end < documents.size()) {
      const auto length = static_cast<std::int64_t>(documents[end].input_ids.size());
      if (end > begin && tokens + length > max_tokens) break;
      tokens += length;
      ++end;
    }
    batches.push_back(pack(std::span(documents).subspan(begin, end - begin)));
    begin = end;
  }
  return batches;
}

}  // namespace inlay
