#pragma once

#include "data/formats/format.h"
#include "data/formats/roles.h"

// Where rows of answers to be compared have what was asked, under the names and in the shapes that TRL, axolotl and
// LLaMA-Factory read.
namespace inlay::data {

// What the answers of a row follow.
struct Prompt {
  std::optional<Row> source;  // where the row has it; nothing: nowhere but in its answers
  io::Value::List messages;
  bool is_question = false;  // a text with a name that says so, which a template makes a message of
};
Prompt find_prompt(const Row& row, const FormatOptions& options);
// The keys of what is read before an answer.
std::vector<std::string> keys_of_prompt(const Row& row, const FormatOptions& options);

// A list of objects that say who speaks.
bool is_conversation(const Row& value);

// The messages of a row, whatever they are called.
std::optional<Row> find_messages(const Row& row, const FormatOptions& options);
// The answer that is judged, and whether it is a good one: completion or, as LLaMA-Factory has it, output or response;
// label, or kto_tag.
std::optional<Row> find_completion(const Row& row);
std::optional<Row> find_label(const Row& row);

// An answer as the end of a conversation.
struct AnswerInPlace {
  io::Value::List messages;
  std::size_t begin = 0;  // of the answer
  bool whole = false;     // the row has it with its prompt, so that another answer tells best where it begins
};

// Compares and joins messages, whatever their members are called.
class PromptedAnswers {
 public:
  explicit PromptedAnswers(const FormatOptions& options) : options_(options), roles_(options) {}

  // Answers may repeat the prompt. A UserError where one has a prompt of its own.
  AnswerInPlace place(const Prompt& prompt, const Row& answer) const;
  // How many messages both begin with.
  std::size_t shared(std::span<const io::Value> a, std::span<const io::Value> b) const;
  // That somebody asks for something.
  bool is_user(const io::Value& message) const { return role_of(message) == "user"; }

 private:
  std::string role_of(const io::Value& message) const;
  const io::Value* content_of(const io::Value& message) const;
  bool same_message(const io::Value& a, const io::Value& b) const;
  std::size_t leading_systems(const io::Value::List& messages) const;
  // Behind the prompt's last message, where the answer has it again; counted without messages of the system.
  std::optional<std::size_t> behind_prompt(const Prompt& prompt, std::span<const io::Value> prompt_messages,
                                           std::span<const io::Value> answer) const;

  FormatOptions options_;
  Roles roles_;
};

// A UserError for a row without a prompt that has something that may be one. `read`: the keys of its answers.
void refuse_unread_prompt(const Row& row, const std::vector<std::string>& read);

}  // namespace inlay::data
