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

// The words that Alpaca was trained with, up to where the answer begins.
std::string alpaca_prompt(const std::string& instruction, const std::string& input);

// {"instruction": ..., "input": ..., "output": ...}, or whatever the options call them, in the words that Alpaca was
// trained with, or in theirs. The answer is learned.
class AlpacaFormat final : public RowFormat {
 public:
  AlpacaFormat(const FormatOptions& options, Tokenizer tokenizer);
  Document make(const Row& row) const override;
  std::vector<std::int32_t> make_shown(const Row& row) const override;

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
