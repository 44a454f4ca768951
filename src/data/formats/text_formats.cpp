#include "data/formats/text_formats.h"

#include <algorithm>

#include "core/error.h"
#include "data/formats/labels.h"
#include "data/formats/question.h"

namespace inlay::data {
namespace {

// An end-of-text token, unless there is one already or the tokenizer knows none.
std::vector<std::int32_t> ended(std::vector<std::int32_t> ids, const Tokenizer& tokenizer) {
  if (const auto eos = tokenizer.eos(); eos && (ids.empty() || ids.back() != *eos)) ids.push_back(*eos);
  return ids;
}

std::string alpaca_turn(const std::string& instruction, const std::string& input) {
  const std::string about = input.empty() ? "" : fmt::format("### Input:\n{}\n\n", input);
  return fmt::format("### Instruction:\n{}\n\n{}### Response:\n", instruction, about);
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

std::string alpaca_prompt(const std::string& instruction, const std::string& input, const std::string& system) {
  const char* const first =
      input.empty()
          ? "Below is an instruction that describes a task. Write a response that appropriately completes the request."
          : "Below is an instruction that describes a task, paired with an input that provides further context. "
            "Write a response that appropriately completes the request.";
  return fmt::format("{}\n\n{}", system.empty() ? first : system, alpaca_turn(instruction, input));
}

AlpacaFormat::AlpacaFormat(const FormatOptions& options, Tokenizer tokenizer)
    : options_(options), tokenizer_(std::move(tokenizer)) {
  // One prompt given is meant for rows of both kinds.
  if (options_.no_input_format.empty()) options_.no_input_format = options_.format;
  if (options_.format.empty()) options_.format = options_.no_input_format;
  const bool names_system = (options_.format + options_.no_input_format).find("{system}") != std::string::npos;
  reads_system_ = !options_.drop_system_message && (options_.format.empty() || names_system);
}

std::string AlpacaFormat::prompt(const std::string& instruction, const std::string& input,
                                 const std::string& system) const {
  const std::string& format = input.empty() ? options_.no_input_format : options_.format;
  if (format.empty()) return alpaca_prompt(instruction, input, system);
  const std::string lead = system.empty() ? "" : system + "\n\n";
  return filled(format, {{"{instruction}", instruction}, {"{input}", input}, {"{system}", lead}});
}

Document AlpacaFormat::before(const Row& row) const {
  Document document;
  // A prompt and its completion are taken as they are.
  if (options_.type == "prompt_completion") return document;
  for (const auto& [question, answer] : earlier_turns(row)) {
    append(document, prompt_tokens(row, question.text(), "", document.input_ids.empty()), options_.train_on_inputs);
    append(document, ended(tokenizer_.encode(answer.text(), false), tokenizer_), true);
  }
  return document;
}

std::vector<std::int32_t> AlpacaFormat::prompt_tokens(const Row& row, const std::string& instruction,
                                                      const std::string& input, bool first) const {
  if (first) {
    const auto system = reads_system_ ? find_system(row, options_) : std::nullopt;
    return tokenizer_.encode(prompt(instruction, input, system ? system->text() : ""));
  }
  const bool own = !options_.format.empty();
  return tokenizer_.encode("\n\n" + (own ? prompt(instruction, input, "") : alpaca_turn(instruction, input)), false);
}

Document AlpacaFormat::make(const Row& row) const {
  const auto input = find_input(row, options_, options_.field_instruction);
  const std::string& instruction = row.at(options_.field_instruction, "a string").text();
  const std::string& answer = row.at(options_.field_output, "a string").text();
  Document document = before(row);
  append(document, prompt_tokens(row, instruction, input ? input->text() : "", document.input_ids.empty()),
         options_.train_on_inputs);
  // Apart from the prompt, as the model will meet it.
  append(document, ended(tokenizer_.encode(answer, false), tokenizer_), true);
  mask_first(document);
  return document;
}

std::vector<std::int32_t> AlpacaFormat::make_shown(const Row& row) const {
  const std::string instruction = with_input(row.at(options_.field_instruction, "a string").text(),
                                             find_input(row, options_, options_.field_instruction));
  const std::string& answer = row.at(options_.field_output, "a string").text();
  Document document = before(row);
  append(document,
         prompt_tokens(row, filled(options_.shown, {{"{instruction}", instruction}, {"{response}", answer}}), "",
                       document.input_ids.empty()),
         false);
  return document.input_ids;
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
