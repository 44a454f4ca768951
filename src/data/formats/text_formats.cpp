#include "data/formats/text_formats.h"

#include <algorithm>

#include "core/error.h"
#include "data/formats/labels.h"

namespace inlay::data {
namespace {

// An end-of-text token, unless there is one already or the tokenizer knows none.
std::vector<std::int32_t> ended(std::vector<std::int32_t> ids, const Tokenizer& tokenizer) {
  if (const auto eos = tokenizer.eos(); eos && (ids.empty() || ids.back() != *eos)) ids.push_back(*eos);
  return ids;
}

}  // namespace

std::string filled(std::string_view format,
                   std::initializer_list<std::pair<std::string_view, std::string_view>> values) {
  std::string text;
  while (!format.empty()) {
    const auto found = std::ranges::find_if(values, [&](const auto& value) { return format.starts_with(value.first); });
    text += found != values.end() ? found->second : format.substr(0, 1);
    format.remove_prefix(found != values.end() ? found->first.size() : 1);
  }
  return text;
}

std::string alpaca_prompt(const std::string& instruction, const std::string& input) {
  if (input.empty()) {
    return fmt::format(
        "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
        "### Instruction:\n{}\n\n### Response:\n",
        instruction);
  }
  return fmt::format(
      "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
      "response that appropriately completes the request.\n\n### Instruction:\n{}\n\n### Input:\n{}\n\n### "
      "Response:\n",
      instruction, input);
}

AlpacaFormat::AlpacaFormat(const FormatOptions& options, Tokenizer tokenizer)
    : options_(options), tokenizer_(std::move(tokenizer)) {
  // One prompt given is meant for rows of both kinds.
  if (options_.no_input_format.empty()) options_.no_input_format = options_.format;
  if (options_.format.empty()) options_.format = options_.no_input_format;
}

std::string AlpacaFormat::prompt(const std::string& instruction, const std::string& input) const {
  const std::string& format = input.empty() ? options_.no_input_format : options_.format;
  return format.empty() ? alpaca_prompt(instruction, input)
                        : filled(format, {{"{instruction}", instruction}, {"{input}", input}});
}

Document AlpacaFormat::make(const Row& row) const {
  const auto input = row.find(options_.field_input);
  const std::string prompt =
      this->prompt(row.at(options_.field_instruction, "a string").text(), input ? input->text() : std::string());
  const std::string& answer = row.at(options_.field_output, "a string").text();
  Document document;
  append(document, tokenizer_.encode(prompt), options_.train_on_inputs);
  // Apart from the prompt, as the model will meet it.
  append(document, ended(tokenizer_.encode(answer, false), tokenizer_), true);
  mask_first(document);
  return document;
}

std::vector<std::int32_t> AlpacaFormat::make_shown(const Row& row) const {
  std::string instruction = row.at(options_.field_instruction, "a string").text();
  if (const auto input = row.find(options_.field_input); input && !input->text().empty()) {
    instruction += "\n" + input->text();
  }
  const std::string& answer = row.at(options_.field_output, "a string").text();
  return tokenizer_.encode(
      prompt(filled(options_.shown, {{"{instruction}", instruction}, {"{response}", answer}}), ""));
}

CompletionFormat::CompletionFormat(const FormatOptions& options, Tokenizer tokenizer)
    : field_(options.field), tokenizer_(std::move(tokenizer)) {}

Document CompletionFormat::make(const Row& row) const {
  Document document;
  append(document, ended(tokenizer_.encode(row.at(field_, "a string").text()), tokenizer_), true);
  mask_first(document);
  return document;
}

InputOutputFormat::InputOutputFormat(const FormatOptions& options, Tokenizer tokenizer)
    : train_on_inputs_(options.train_on_inputs), tokenizer_(std::move(tokenizer)) {}

Document InputOutputFormat::make(const Row& row) const {
  const Row segments = row.at("segments", "an array of {\"label\": true or false, \"text\": ...}");
  Document document;
  for (const Row& segment : segments.elements()) {
    const bool label = segment.at("label", "true or false").boolean();
    append(document, tokenizer_.encode(segment.at("text", "a string").text(), false), label || train_on_inputs_);
  }
  if (document.input_ids.empty()) segments.fail("hold no text");
  mask_first(document);
  return document;
}

}  // namespace inlay::data
