#pragma once

#include "data/formats/format.h"
#include "data/formats/preference_prompt.h"

namespace inlay::data {

// {"prompt": ..., "chosen": ..., "rejected": ...}: texts, or lists of messages, or messages by themselves; the prompt
// may have another name (see preference_prompt.h) and may stand in the answers as well, or only there: then it is what
// both begin with. The document has two sequences, prompt and answer each, of which the answers have labels.
class PreferenceFormat final : public RowFormat {
 public:
  // chat: how conversations are rendered; null where the model has no template.
  PreferenceFormat(const FormatOptions& options, Tokenizer tokenizer, std::unique_ptr<RowFormat> chat);
  Document make(const Row& row) const override;
  std::string remark() const override { return chat_ ? chat_->remark() : ""; }

 private:
  Document pair(const Row& row) const;

  FormatOptions options_;
  Tokenizer tokenizer_;
  std::unique_ptr<RowFormat> chat_;
  PromptedAnswers prompted_;
};

// {"prompt": ..., "completion": ..., "label": true or false}: the same with one answer, which is desirable or not. The
// answer of a conversation alone is its last message.
class JudgedFormat final : public RowFormat {
 public:
  JudgedFormat(const FormatOptions& options, Tokenizer tokenizer, std::unique_ptr<RowFormat> chat);
  Document make(const Row& row) const override;
  std::string remark() const override { return chat_ ? chat_->remark() : ""; }

 private:
  Document answer(const Row& row) const;

  FormatOptions options_;
  Tokenizer tokenizer_;
  std::unique_ptr<RowFormat> chat_;
  PromptedAnswers prompted_;
};

}  // namespace inlay::data
