#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/batch.h"
#include "data/formats/row.h"
#include "data/tokenizer/tokenizer.h"
#include "jinja/chat_template.h"

namespace inlay::data {

using jinja::ChatTemplate;
using jinja::RenderedChat;
using jinja::RenderOptions;
using jinja::TemplateError;

// What happens to sequences that are longer than is wanted.
enum class Longer : std::uint8_t { cut, leave_out, raise };

// How the rows of a dataset become tokens and labels. Names and meanings are axolotl's.
struct FormatOptions {
  std::string type = "auto";  // one of format_types(), or auto: what the first row looks like

  // chat_template: where a row has its messages. Empty: messages, or conversations.
  std::string field_messages, field_tools = "tools", field_system = "system";
  // From the names that the template wants (role, content, ...) to those of the data. Empty: role or from, content or
  // value.
  std::map<std::string, std::string> message_property_mappings;
  // From roles that the template wants to those of the data. Empty: human is user, gpt is assistant.
  std::map<std::string, std::vector<std::string>> roles;
  bool drop_system_message = false;
  // tokenizer_default (the model's own), a .jinja file, the name of a known one, or tokenizer_default_fallback_NAME.
  std::string chat_template = "tokenizer_default";

  // What is learned: the turns of these roles, unless a message says otherwise by a boolean, or by a weight of 0.
  std::vector<std::string> roles_to_train = {"assistant"};
  std::string message_field_training = "training";
  std::string message_field_weight;  // empty: weight, or loss_weight
  // Which of the tokens that end a turn are learned: those of turns that are learned (turn), of every turn (all), the
  // last one of the turns that are learned (last), or none.
  std::string train_on_eos = "turn";
  std::vector<std::string> eot_tokens;  // that end a turn; empty: the tokenizer's end-of-text token
  bool train_on_inputs = false;         // turns of all roles; of the other types, the prompt as well

  std::string field = "text";  // completion: where a row has its text

  // alpaca, prompt_completion, question_answer: where a row has these, and the prompt that {instruction}, {input} and
  // {system} (with an empty line behind it, where there is one) are put into, with an input and without; empty:
  // Alpaca's own.
  std::string field_instruction = "instruction", field_input = "input", field_output = "output";
  std::string format, no_input_format;

  // preference: where a row has its answers.
  std::string field_chosen = "chosen", field_rejected = "rejected";
  // preference, judged: the longest sequence, whose answers count as wholes; 0: any. And whether the prompts of chosen
  // answers have labels as well, with a weight of 0 in the answer.
  std::int64_t most_tokens = 0;
  Longer longer = Longer::cut;
  bool learns_prompts = false;
  bool learns_chosen = false;  // by themselves, too: also where the other answer is the same

  // A document is followed by a prompt to write its last answer anew, which shows that answer: a text with
  // {instruction} and {response} in it. Empty: by nothing.
  std::string shown;

  // What another model has predicted comes with the rows, under this name (see kept.h).
  bool reads_predictions = false;
  std::string logprobs_field = "logprobs";

  // Whether preferences are learned: only then is a longest sequence given.
  bool of_preferences() const { return most_tokens > 0; }

  bool operator==(const FormatOptions&) const = default;
};

// Makes documents of the rows of one type. Immutable, so threads may share it.
class RowFormat {
 public:
  virtual ~RowFormat() = default;
  // A row that is not as the type wants it is a UserError that names the row and the key.
  virtual Document make(const Row& row) const = 0;
  // The prompt of the row's last answer with FormatOptions::shown in the place of what was asked. Empty where the
  // answer is not a text. A UserError for types that have no prompts and answers.
  virtual std::vector<std::int32_t> make_shown(const Row& row) const;
  // What people should know of all rows, whatever they hold; empty: nothing.
  virtual std::string remark() const { return {}; }
};

// The types of text: chat_template, alpaca, completion, input_output, prompt_completion,
// question_answer, preference, judged.
std::span<const std::string_view> format_types();

// The options with the type that a row looks like, and the names that it has its parts under; `tokens` (input_ids, see
// token_rows.h) is one of the types. `said`: what was found, for people. UserError where the row looks like none.
struct DetectedFormat {
  FormatOptions options;
  std::string said;
};
DetectedFormat detect_format(const FormatOptions& options, const Row& row);

// The model's own chat template, or the file that the options name, which meets the model's special tokens all the
// same.
ChatTemplate load_template(const FormatOptions& options, const Tokenizer& tokenizer,
                           const std::filesystem::path& model);

// The text of the template that a name stands for (as FormatOptions::chat_template has it), unless it is the model's
// own. A UserError where there is no such template.
std::optional<std::string> template_text(const std::string& name, const std::filesystem::path& model);

// A model's chat template is read only where the type needs one.
std::unique_ptr<RowFormat> make_format(const FormatOptions& options, const Tokenizer& tokenizer,
                                       const std::filesystem::path& model);

}  // namespace inlay::data
