#include "data/formats/pair_format.h"

#include "data/formats/question.h"

namespace inlay::data {

namespace {

using io::Value;

// Messages that are not learned, or as they are.
void add_messages(Value::List messages, bool learned, Value::List& to) {
  for (Value& message : messages) {
    if (!learned) message.map()->push_back({"training", Value::boolean(false)});
    to.push_back(std::move(message));
  }
}

Value::List messages_of_list(const Row& list) {
  Value::List messages;
  for (const Row& message : list.elements()) messages.push_back(message.expect_object().value());
  return messages;
}

}  // namespace

PairFormat::PairFormat(FormatOptions options, std::unique_ptr<RowFormat> chat, std::unique_ptr<RowFormat> texts)
    : options_(std::move(options)), chat_(std::move(chat)), texts_(std::move(texts)) {}

std::optional<Value> PairFormat::conversation_of(const Row& row) const {
  const Row prompt = row.at(options_.field_instruction, "a text"), answer = row.at(options_.field_output, "a text");
  const bool lists = prompt.is_list() || answer.is_list();
  if (!lists && (options_.type == "prompt_completion" || chat_ == nullptr)) return std::nullopt;
  if (chat_ == nullptr) {
    row.fail(
        "its messages need a chat template, and the model has none; write chat_template: chatml, or the name or file "
        "of another");
  }
  const bool asks = options_.type == "question_answer";
  Value::List messages;
  for (const auto& [question, reply] : asks ? earlier_turns(row) : std::vector<std::pair<Row, Row>>{}) {
    add_messages({message_of("user", question.value())}, options_.train_on_inputs, messages);
    add_messages({message_of("assistant", reply.value())}, true, messages);
  }
  const auto asked = [&] {
    return with_input(prompt.text(), asks ? find_input(row, options_, options_.field_instruction) : std::nullopt);
  };
  add_messages(prompt.is_list() ? messages_of_list(prompt) : Value::List{message_of("user", Value(asked()))},
               options_.train_on_inputs, messages);
  add_messages(answer.is_list() ? messages_of_list(answer) : Value::List{message_of("assistant", Value(answer.text()))},
               true, messages);
  Value::Map conversation{{"messages", Value(std::move(messages))}};
  if (const auto system = find_system(row, options_)) conversation.push_back({options_.field_system, system->value()});
  if (const auto tools = row.find(options_.field_tools)) conversation.push_back({options_.field_tools, tools->value()});
  return Value(std::move(conversation));
}

// Of texts the template writes nothing.
std::string PairFormat::remark() const { return chat_ && options_.type == "question_answer" ? chat_->remark() : ""; }

Document PairFormat::make(const Row& row) const {
  const auto conversation = conversation_of(row);
  return conversation ? chat_->make(row.meaning(*conversation)) : texts_->make(row);
}

std::vector<std::int32_t> PairFormat::make_shown(const Row& row) const {
  const auto conversation = conversation_of(row);
  return conversation ? chat_->make_shown(row.meaning(*conversation)) : texts_->make_shown(row);
}

}  // namespace inlay::data
