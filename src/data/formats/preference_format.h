#pragma once

#include "data/formats/format.h"

namespace inlay::data {

// {"prompt": ..., "chosen": ..., "rejected": ...}: texts, or lists of messages; without a prompt it is what both
// conversations begin with; {"messages": [...], "chosen": {...}, "rejected": {...}} is the same with messages before
// them. The document has two sequences, prompt and answer each, of which the answers have labels.
class PreferenceFormat final : public RowFormat {
 public:
  // chat: how conversations are rendered; null where the model has no template.
  PreferenceFormat(const FormatOptions& options, Tokenizer tokenizer, std::unique_ptr<RowFormat> chat);
  Document make(const Row& row) const override;

 private:
  Document pair(const Row& row) const;

  FormatOptions options_;
  Tokenizer tokenizer_;
  std::unique_ptr<RowFormat> chat_;
};

// {"prompt": ..., "completion": ..., "label": true or false}: texts or lists of messages. One sequence, which is
// desirable or not.
class JudgedFormat final : public RowFormat {
 public:
  JudgedFormat(const FormatOptions& options, Tokenizer tokenizer, std::unique_ptr<RowFormat> chat);
  Document make(const Row& row) const override;

 private:
  Document answer(const Row& row) const;

  FormatOptions options_;
  Tokenizer tokenizer_;
  std::unique_ptr<RowFormat> chat_;
};

}  // namespace inlay::data
