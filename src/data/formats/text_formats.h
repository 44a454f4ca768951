#pragma once

#include "data/formats/format.h"

// The types that are plain text.
namespace inlay::data {

// The words that Alpaca was trained with, up to where the answer begins.
std::string alpaca_prompt(const std::string& instruction, const std::string& input);

// {"instruction": ..., "input": ..., "output": ...}, or whatever the options call them, in the words that Alpaca was
// trained with, or in theirs. The answer is learned.
class AlpacaFormat final : public RowFormat {
 public:
  AlpacaFormat(const FormatOptions& options, Tokenizer tokenizer);
  Document make(const Row& row) const override;

 private:
  std::string prompt(const std::string& instruction, const std::string& input) const;

  FormatOptions options_;
  Tokenizer tokenizer_;
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
