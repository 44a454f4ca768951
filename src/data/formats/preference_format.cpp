#include "data/formats/preference_format.h"

#include <algorithm>

#include "data/formats/labels.h"

namespace inlay::data {
namespace {

using io::Value;

// The messages of a list, or the one that stands there alone.
Value::List messages_of(const Row& row) {
  if (row.is_list()) return *row.value().list();
  row.expect_object();
  return {row.value()};
}

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

bool same(const Value& a, const Value& b) {
  if (a.data().index() != b.data().index()) return false;
  if (const Value::List* list = a.list()) return std::ranges::equal(*list, *b.list(), same);
  if (const Value::Map* map = a.map()) {
    return std::ranges::equal(*map, *b.map(), [](const Value::Member& x, const Value::Member& y) {
      return x.key == y.key && same(x.value, y.value);
    });
  }
  if (const std::string* text = a.text()) return *text == *b.text();
  return io::shown(a) == io::shown(b);
}

// Prompt and answer as one sequence, of which the answer has labels.
class Answers {
 public:
  Answers(const FormatOptions& options, const Tokenizer& tokenizer, const RowFormat* chat, const Row& row)
      : options_(options), tokenizer_(tokenizer), chat_(chat), row_(row) {}

  Document of(const std::optional<Row>& prompt, const Row& answer) const {
    if (answer.is_text() && (!prompt || prompt->is_text())) return of_text(prompt, answer);
    Value::List before;
    if (prompt && prompt->is_text()) {
      before.push_back(message("user", prompt->value()));
    } else if (prompt) {
      before = messages_of(*prompt);
    }
    if (!answer.is_text()) return of_messages(before, messages_of(answer));
    return of_messages(before, {message("assistant", answer.value())});
  }

  Document of_messages(const Value::List& before, const Value::List& answer) const {
    if (chat_ == nullptr) row_.fail("conversations need a chat template; give the dataset a chat_template");
    Value::List messages;
    for (const Value& message : before) messages.push_back(marked(message, options_.message_field_training, false));
    for (const Value& message : answer) messages.push_back(marked(message, options_.message_field_training, true));
    Value::Map members = {{"messages", Value(std::move(messages))}};
    for (const std::string& key : {options_.field_tools, options_.field_system}) {
      if (const auto found = row_.find(key)) members.push_back({key, found->value()});
    }
    const Value conversation(std::move(members));
    return chat_->make(row_.meaning(conversation));
  }

 private:
  static Value message(const char* role, const Value& content) {
    return Value(Value::Map{{"role", Value(std::string(role))}, {"content", content}});
  }

  Document of_text(const std::optional<Row>& prompt, const Row& answer) const {
    Document document;
    append(document, tokenizer_.encode(prompt ? prompt->text() : std::string()), false);
    std::vector<std::int32_t> ids = tokenizer_.encode(answer.text(), document.input_ids.empty());
    if (const auto eos = tokenizer_.eos(); eos && (ids.empty() || ids.back() != *eos)) ids.push_back(*eos);
    append(document, ids, true);
    return document;
  }

  const FormatOptions& options_;
  const Tokenizer& tokenizer_;
  const RowFormat* chat_;
  const Row& row_;
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
    : options_(options), tokenizer_(std::move(tokenizer)), chat_(std::move(chat)) {}

Document PreferenceFormat::make(const Row& row) const {
  return made([&] {
    Document document = pair(row);
    if (!options_.learns_chosen && is_tie(document)) throw LeftOut{};
    return document;
  });
}

Document PreferenceFormat::pair(const Row& row) const {
  const Answers answers(options_, tokenizer_, chat_.get(), row);
  const Row chosen = row.at("chosen", "a text, or a list of messages");
  const Row rejected = row.at("rejected", "a text, or a list of messages");
  auto prompt = row.find("prompt");
  if (!prompt) prompt = row.find(options_.field_messages.empty() ? "messages" : options_.field_messages);
  Document document;
  if (prompt || !chosen.is_list() || !rejected.is_list()) {
    add_sequence(document, answers.of(prompt, chosen), SequenceRole::chosen, options_, row);
    add_sequence(document, answers.of(prompt, rejected), SequenceRole::rejected, options_, row);
    return document;
  }
  // The prompt is what both begin with; each must have something of its own.
  const Value::List &a = *chosen.value().list(), &b = *rejected.value().list();
  std::size_t shared = 0;
  while (shared < a.size() && shared < b.size() && same(a[shared], b[shared])) ++shared;
  if (shared == a.size() && shared == b.size()) throw LeftOut{};
  if (shared == a.size() || shared == b.size()) row.fail("chosen and rejected do not differ in their last message");
  const auto part = [&](const Value::List& list, std::size_t begin, std::size_t end) {
    return Value::List(list.begin() + static_cast<std::ptrdiff_t>(begin),
                       list.begin() + static_cast<std::ptrdiff_t>(end));
  };
  const Value::List before = part(a, 0, shared);
  add_sequence(document, answers.of_messages(before, part(a, shared, a.size())), SequenceRole::chosen, options_, row);
  add_sequence(document, answers.of_messages(before, part(b, shared, b.size())), SequenceRole::rejected, options_, row);
  return document;
}

JudgedFormat::JudgedFormat(const FormatOptions& options, Tokenizer tokenizer, std::unique_ptr<RowFormat> chat)
    : options_(options), tokenizer_(std::move(tokenizer)), chat_(std::move(chat)) {}

Document JudgedFormat::make(const Row& row) const {
  return made([&] { return answer(row); });
}

Document JudgedFormat::answer(const Row& row) const {
  const Answers answers(options_, tokenizer_, chat_.get(), row);
  auto prompt = row.find("prompt");
  if (!prompt) prompt = row.find(options_.field_messages.empty() ? "messages" : options_.field_messages);
  const bool desirable = row.at("label", "true or false").boolean();
  Document document;
  add_sequence(document, answers.of(prompt, row.at("completion", "a text, or a list of messages")),
               desirable ? SequenceRole::desirable : SequenceRole::undesirable, options_, row);
  return document;
}

}  // namespace inlay::data
