#pragma once

#include <initializer_list>
#include <string_view>
#include <utility>

#include "data/formats/format.h"

// The types that are plain text.
namespace inlay::data {

// A format with texts in the place of words in braces. What stands in a text is not looked through for further ones.
std::string filled(std::string_view format,
                   std::initializer_list<std::pair<std::string_view, std::string_view>> values);

// The words that Alpaca was trained with, up to where the answer begins. A system message stands in the place of the
// first of them.
std::string alpaca_prompt(const std::string& instruction, const std::string& input, const std::string& system = "");

// {"instruction": ..., "input": ..., "output": ...}, or whatever the options call them, in the words that Alpaca was
// trained with, or in theirs; a system message and earlier turns before it (see question.h). The answers are learned.
class AlpacaFormat final : public RowFormat {
 public:
  AlpacaFormat(const FormatOptions& options, Tokenizer tokenizer);
  Document make(const Row& row) const override;
  std::vector<std::int32_t> make_shown(const Row& row) const override;

 private:
  std::string prompt(const std::string& instruction, const std::string& input, const std::string& system) const;
  // What stands before the row's last question: earlier ones and their answers.
  Document before(const Row& row) const;
  // The prompt of the last question, which may be another one than the row has.
  std::vector<std::int32_t> prompt_tokens(const Row& row, const std::string& instruction, const std::string& input,
                                          bool first) const;

  FormatOptions options_;
  Tokenizer tokenizer_;
  bool reads_system_;  // a prompt of one's own has it where it says so
};

// {"text": ...}: all of it is learned.
class CompletionFormat final : public RowFormat {
 public:
  CompletionFormat(const FormatOptions& options, Tokenizer tokenizer);
  Document make(const Row& row) const override;

 private:
  std::string field_;
  Tokenizer tokenizer_;
};

// {"segments": [{"label": true, "text": ...}, ...]}: segments are tokenized one by one and as they are, so they must
// bring their own special tokens; those with a label are learned.
class InputOutputFormat final : public RowFormat {
 public:
  InputOutputFormat(const FormatOptions& options, Tokenizer tokenizer);
  Document make(const Row& row) const override;

 private:
  bool train_on_inputs_;
  Tokenizer tokenizer_;
};

}  // namespace inlay::data
