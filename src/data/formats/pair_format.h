#pragma once

#include <memory>

#include "data/formats/format.h"

namespace inlay::data {

// Rows of a prompt and what is to follow it, under the names field_instruction and field_output. prompt_completion: the
// texts as they are. question_answer: a conversation of two messages, or "Question: ... Answer: ..." where the model
// has no chat template, with the row's system message, input and earlier turns (see question.h). Either of the two may
// be a list of messages, which makes the row a conversation as well.
class PairFormat final : public RowFormat {
 public:
  // chat: absent where there is no template. texts: for rows that are no conversations.
  PairFormat(FormatOptions options, std::unique_ptr<RowFormat> chat, std::unique_ptr<RowFormat> texts);
  Document make(const Row& row) const override;
  std::vector<std::int32_t> make_shown(const Row& row) const override;
  std::string remark() const override;

 private:
  // The row as a conversation; nothing where it is texts.
  std::optional<io::Value> conversation_of(const Row& row) const;

  FormatOptions options_;
  std::unique_ptr<RowFormat> chat_, texts_;
};

}  // namespace inlay::data
