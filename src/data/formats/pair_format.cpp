#include "data/formats/pair_format.h"

namespace inlay::data {

namespace {

using io::Value;

// Adds what a row has as a message, or as a list of them. Those of the prompt are not learned.
void add_messages(const Row& part, const char* role, bool learned, Value::List& messages) {
  const auto add = [&](Value message) {
    if (!learned) message.map()->push_back({"training", Value::boolean(false)});
    messages.push_back(std::move(message));
  };
  if (!part.is_list()) {
    add(Value(Value::Map{{"role", Value(std::string(role))}, {"content", Value(part.text())}}));
    return;
  }
  for (const Row& message : part.elements()) add(message.expect_object().value());
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
  Value::List messages;
  add_messages(prompt, "user", options_.train_on_inputs, messages);
  add_messages(answer, "assistant", true, messages);
  Value::Map conversation{{"messages", Value(std::move(messages))}};
  for (const std::string& key : {options_.field_system, options_.field_tools}) {
    if (const auto found = row.find(key)) conversation.push_back({key, found->value()});
  }
  return Value(std::move(conversation));
}

Document PairFormat::make(const Row& row) const {
  const auto conversation = conversation_of(row);
  return conversation ? chat_->make(row.meaning(*conversation)) : texts_->make(row);
}

std::vector<std::int32_t> PairFormat::make_shown(const Row& row) const {
  const auto conversation = conversation_of(row);
  return conversation ? chat_->make_shown(row.meaning(*conversation)) : texts_->make_shown(row);
}

}  // namespace inlay::data
