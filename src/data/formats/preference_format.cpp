#include "data/formats/preference_format.h"

#include <algorithm>

#include "data/formats/labels.h"
#include "data/formats/question.h"

namespace inlay::data {
namespace {

using io::Value;

// A message that says itself whether it is learned.
Value marked(const Value& message, const std::string& field, bool trained) {
  Value result = message;
  Value::Map* members = result.map();
  if (members == nullptr) return result;  // the chat format will say what is wrong with it
  std::erase_if(*members, [&](const Value::Member& member) { return member.key == field; });
  members->push_back({field, Value::boolean(trained)});
  return result;
}

// The row is too long, and the options leave such rows out; or there is nothing to prefer in it.
struct LeftOut {};

// What make() makes, or nothing to learn, which is left out and counted.
template <class Make>
Document made(const Make& make) {
  try {
    return make();
  } catch (const LeftOut&) {
    return {.input_ids = {0}, .labels = {ignore_label}};
  }
}

bool has_key(const Row& row, std::string_view key) { return row.value().find(key) != nullptr; }

// Prompts and answers as sequences, of which the answers have labels.
class Answers {
 public:
  Answers(const FormatOptions& options, const Tokenizer& tokenizer, const RowFormat* chat, const Row& row)
      : options_(options), tokenizer_(tokenizer), chat_(chat), row_(row), prompt_(find_prompt(row, options)) {}

  const Prompt& prompt() const { return prompt_; }

  // Texts that no template is meant for. Whole texts, without a prompt, are no messages.
  bool are_texts(std::initializer_list<Row> answers) const {
    if (!std::ranges::all_of(answers, &Row::is_text)) return false;
    if (!prompt_.source) return true;
    // A row of many may have no system message, or no history, and is written as those that have.
    const bool with_more = find_system(row_, options_) || prompt_.messages.size() > 1 ||
                           (chat_ != nullptr && (has_key(row_, options_.field_system) ||
                                                 has_key(row_, "system_prompt") || has_key(row_, "history")));
    return prompt_.source->is_text() && !prompt_.is_question && !with_more &&
           options_.chat_template == "tokenizer_default";
  }

  Document of_text(const Row& answer) const {
    Document document;
    append(document, tokenizer_.encode(prompt_.source ? prompt_.source->text() : std::string()), false);
    std::vector<std::int32_t> ids = tokenizer_.encode(answer.text(), document.input_ids.empty());
    if (const auto eos = tokenizer_.eos(); eos && (ids.empty() || ids.back() != *eos)) ids.push_back(*eos);
    append(document, ids, true);
    return document;
  }

  Document of_messages(const Value::List& all, std::size_t answer) const {
    if (chat_ == nullptr) {
      row_.fail(
          "conversations need a chat template, and the model has none; give the dataset a chat_template: chatml, or "
          "the name or file of another");
    }
    Value::List messages;
    for (std::size_t i = 0; i < all.size(); ++i) {
      messages.push_back(marked(all[i], options_.message_field_training, i >= answer));
    }
    Value::Map members = {{"messages", Value(std::move(messages))}};
    if (const auto tools = row_.find(options_.field_tools)) members.push_back({options_.field_tools, tools->value()});
    if (const auto system = find_system(row_, options_)) members.push_back({options_.field_system, system->value()});
    const Value conversation(std::move(members));
    return chat_->make(row_.meaning(conversation));
  }

 private:
  const FormatOptions& options_;
  const Tokenizer& tokenizer_;
  const RowFormat* chat_;
  const Row& row_;
  Prompt prompt_;
};

// One more sequence of the document. Weights tell the answer's labels from the prompt's, where those count as well.
void add_sequence(Document& document, Document sequence, SequenceRole role, const FormatOptions& options,
                  const Row& row) {
  const auto most = static_cast<std::size_t>(options.most_tokens);
  if (most > 0 && sequence.input_ids.size() > most) {
    if (options.longer == Longer::raise) {
      row.fail(
          fmt::format("prompt and answer have {} tokens, sequence_len is {}: set sequence_len to at least that, or "
                      "excess_length_strategy to truncate or drop",
                      sequence.input_ids.size(), most));
    }
    if (options.longer == Longer::leave_out) throw LeftOut{};
    truncate(sequence, most);
  }
  if (sequence.input_ids.empty()) row.fail("there is no text in it");
  sequence.labels.front() = ignore_label;
  if (!has_labels(sequence)) {
    row.fail(most > 0 ? fmt::format("nothing of an answer is left within sequence_len, {} tokens", most)
                      : std::string("an answer is empty"));
  }
  if (options.learns_prompts) {
    std::vector<float> weights(sequence.labels.size(), 1.0f);
    for (std::size_t i = 1; role == SequenceRole::chosen && i < sequence.labels.size(); ++i) {
      if (is_label(sequence.labels[i])) continue;
      sequence.labels[i] = sequence.input_ids[i];
      weights[i] = 0.0f;
    }
    document.weights.insert(document.weights.end(), weights.begin(), weights.end());
  }
  sequence.labels.front() = sequence_mark(role);
  document.input_ids.insert(document.input_ids.end(), sequence.input_ids.begin(), sequence.input_ids.end());
  document.labels.insert(document.labels.end(), sequence.labels.begin(), sequence.labels.end());
}

// Whether its two sequences are the same, maybe of what sequence_len has left of them.
bool is_tie(const Document& pair) {
  const auto mark = std::find_if(pair.labels.begin() + 1, pair.labels.end(), marks_sequence);
  const auto rejected = pair.input_ids.begin() + (mark - pair.labels.begin());
  return std::equal(pair.input_ids.begin(), rejected, rejected, pair.input_ids.end());
}

}  // namespace

PreferenceFormat::PreferenceFormat(const FormatOptions& options, Tokenizer tokenizer, std::unique_ptr<RowFormat> chat)
    : options_(options), tokenizer_(std::move(tokenizer)), chat_(std::move(chat)), prompted_(options) {}

Document PreferenceFormat::make(const Row& row) const {
  return made([&] {
    Document document = pair(row);
    if (!options_.learns_chosen && is_tie(document)) throw LeftOut{};
    return document;
  });
}

Document PreferenceFormat::pair(const Row& row) const {
  const Answers answers(options_, tokenizer_, chat_.get(), row);
  const Row chosen = row.at(options_.field_chosen, "a text, or a list of messages");
  const Row rejected = row.at(options_.field_rejected, "a text, or a list of messages");
  const std::vector<std::string> keys = {options_.field_chosen, options_.field_rejected};
  const auto both = [&](const auto& of_chosen, const auto& of_rejected) {
    Document document;
    add_sequence(document, of_chosen(), SequenceRole::chosen, options_, row);
    add_sequence(document, of_rejected(), SequenceRole::rejected, options_, row);
    return document;
  };
  if (answers.are_texts({chosen, rejected})) {
    if (!answers.prompt().source) refuse_unread_prompt(row, keys);
    return both([&] { return answers.of_text(chosen); }, [&] { return answers.of_text(rejected); });
  }
  AnswerInPlace good = prompted_.place(answers.prompt(), chosen), bad = prompted_.place(answers.prompt(), rejected);
  if (good.whole || bad.whole) {
    // The prompt is what both begin with; each must have something of its own.
    const std::size_t a = good.messages.size(), b = bad.messages.size();
    std::size_t shared = prompted_.shared(good.messages, bad.messages);
    if (shared > 0 && shared == a && shared == b) --shared;
    if (shared > 0 && (shared == a || shared == b)) row.fail("chosen and rejected do not differ in their last message");
    good.begin = bad.begin = shared;
    const auto asks = [&](const Value& message) { return prompted_.is_user(message); };
    const bool asked =
        std::any_of(good.messages.begin(), good.messages.begin() + static_cast<std::ptrdiff_t>(shared), asks);
    if (!asked && (std::ranges::any_of(good.messages, asks) || std::ranges::any_of(bad.messages, asks))) {
      row.fail("chosen and rejected begin with different messages, so that there is no prompt that both answer");
    }
    if (!asked) refuse_unread_prompt(row, keys);
  }
  return both([&] { return answers.of_messages(good.messages, good.begin); },
              [&] { return answers.of_messages(bad.messages, bad.begin); });
}

JudgedFormat::JudgedFormat(const FormatOptions& options, Tokenizer tokenizer, std::unique_ptr<RowFormat> chat)
    : options_(options), tokenizer_(std::move(tokenizer)), chat_(std::move(chat)), prompted_(options) {}

Document JudgedFormat::make(const Row& row) const {
  return made([&] { return answer(row); });
}

Document JudgedFormat::answer(const Row& row) const {
  const auto label = find_label(row);
  const bool desirable = (label ? *label : row.at("label", "true or false")).boolean();
  const Answers answers(options_, tokenizer_, chat_.get(), row);
  const auto make = [&] {
    auto completion = find_completion(row);
    if (!completion) completion = find_messages(row, options_);  // which end with it
    if (!completion) completion = row.at("completion", "a text, or a list of messages");
    if (answers.are_texts({*completion})) {
      if (!answers.prompt().source) refuse_unread_prompt(row, {completion->path()});
      return answers.of_text(*completion);
    }
    const AnswerInPlace placed = prompted_.place(answers.prompt(), *completion);
    if (placed.begin < placed.messages.size() && prompted_.is_user(placed.messages[placed.begin])) {
      completion->fail("ends with a user message; expected an answer");
    }
    if (!answers.prompt().source && placed.messages.size() == 1) refuse_unread_prompt(row, {completion->path()});
    return answers.of_messages(placed.messages, placed.begin);
  };
  Document document;
  add_sequence(document, make(), desirable ? SequenceRole::desirable : SequenceRole::undesirable, options_, row);
  return document;
}

}  // namespace inlay::data
