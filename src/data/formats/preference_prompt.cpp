#include "data/formats/preference_prompt.h"

#include <algorithm>
#include <array>

#include "data/formats/chat_messages.h"
#include "data/formats/question.h"

namespace inlay::data {
namespace {

using io::Value;

constexpr std::array<std::string_view, 4> questions = {"question", "instruction", "query", "input"};
// What else people call a prompt.
constexpr std::array<std::string_view, 5> other_prompts = {"post", "problem", "user", "dialogue", "dialog"};

bool is_blank(const Row& value) {
  if (value.is_list()) return value.value().list()->empty();
  return value.is_text() && trimmed(value.text()).empty();
}

std::optional<Row> find_filled(const Row& row, std::string_view key) {
  auto found = row.find(key);
  return found && is_blank(*found) ? std::nullopt : found;
}

// The messages of a list, or the one that stands there alone.
Value::List messages_of(const Row& row) {
  if (row.is_list()) return *row.value().list();
  row.expect_object();
  return {row.value()};
}

// Whatever the order of an object's members; null is absent.
bool same(const Value& a, const Value& b) {
  if (a.data().index() != b.data().index()) return false;
  if (const Value::List* list = a.list()) return std::ranges::equal(*list, *b.list(), same);
  if (a.map() != nullptr) {
    const auto has_all = [](const Value& of, const Value& in) {
      return std::ranges::all_of(*of.map(), [&](const Value::Member& member) {
        const Value* const other = in.find(member.key);
        return member.value.is_null() ? other == nullptr || other->is_null()
                                      : other != nullptr && same(member.value, *other);
      });
    };
    return has_all(a, b) && has_all(b, a);
  }
  if (const std::string* text = a.text()) return *text == *b.text();
  return io::shown(a) == io::shown(b);
}

// A question as TRL and axolotl have it, by its own key, or the one that the options name.
std::optional<Row> find_question(const Row& row, const FormatOptions& options) {
  if (options.field_instruction != "instruction") {
    if (auto found = find_filled(row, options.field_instruction)) return found;
  }
  for (const std::string_view key : questions) {
    if (auto found = find_filled(row, key)) return found;
  }
  return std::nullopt;
}

}  // namespace

bool is_conversation(const Row& value) {
  if (!value.is_list() || value.value().list()->empty()) return false;
  const Row first = value.element(0);
  return first.is_object() && (first.find("role") || first.find("from"));
}

std::optional<Row> find_messages(const Row& row, const FormatOptions& options) {
  if (!options.field_messages.empty()) return find_filled(row, options.field_messages);
  auto found = find_filled(row, "messages");
  return found ? found : find_filled(row, "conversations");
}

std::optional<Row> find_completion(const Row& row) {
  for (const char* key : {"completion", "output", "response"}) {
    if (auto found = row.find(key)) return found;
  }
  return std::nullopt;
}

std::optional<Row> find_label(const Row& row) {
  auto found = row.find("label");
  return found ? found : row.find("kto_tag");
}

Prompt find_prompt(const Row& row, const FormatOptions& options) {
  Prompt prompt;
  if (!options.field_messages.empty()) prompt.source = find_filled(row, options.field_messages);
  if (!prompt.source) prompt.source = find_filled(row, "prompt");
  if (!prompt.source) prompt.source = find_messages(row, options);
  if (!prompt.source) {
    prompt.source = find_question(row, options);
    prompt.is_question = prompt.source.has_value();
  }
  if (!prompt.source) return prompt;
  if (!prompt.source->is_text()) {
    prompt.messages = messages_of(*prompt.source);
    return prompt;
  }
  for (const auto& [question, answer] : earlier_turns(row)) {
    prompt.messages.push_back(message_of("user", question.value()));
    prompt.messages.push_back(message_of("assistant", answer.value()));
  }
  const auto input = prompt.is_question ? find_input(row, options, prompt.source->path()) : std::nullopt;
  prompt.messages.push_back(message_of("user", Value(with_input(prompt.source->text(), input))));
  return prompt;
}

std::vector<std::string> keys_of_prompt(const Row& row, const FormatOptions& options) {
  std::vector<std::string> keys;
  if (const auto system = find_system(row, options)) keys.push_back(system->path());
  const Prompt prompt = find_prompt(row, options);
  if (!prompt.source) return keys;
  if (prompt.source->is_text() && !earlier_turns(row).empty()) keys.emplace_back("history");
  keys.push_back(prompt.source->path());
  if (!prompt.is_question) return keys;
  if (const auto input = find_input(row, options, prompt.source->path())) keys.push_back(input->path());
  return keys;
}

std::string PromptedAnswers::role_of(const Value& message) const {
  const auto named = options_.message_property_mappings.find("role");
  const Value* role = message.find(named != options_.message_property_mappings.end() ? named->second : "role");
  if (role == nullptr || role->text() == nullptr) role = message.find("from");
  return role != nullptr && role->text() != nullptr ? roles_.of(*role->text()) : "";
}

const Value* PromptedAnswers::content_of(const Value& message) const {
  const auto named = options_.message_property_mappings.find("content");
  const Value* content = message.find(named != options_.message_property_mappings.end() ? named->second : "content");
  if (content == nullptr || content->is_null()) content = message.find("value");
  return content != nullptr && !content->is_null() ? content : nullptr;
}

// Who speaks, what is said, and which tools are called; data has other members for people.
bool PromptedAnswers::same_message(const Value& a, const Value& b) const {
  if (a.map() == nullptr || b.map() == nullptr || role_of(a) != role_of(b)) return same(a, b);
  const auto same_member = [](const Value* x, const Value* y) {
    const bool no_x = x == nullptr || x->is_null(), no_y = y == nullptr || y->is_null();
    return no_x || no_y ? no_x == no_y : same(*x, *y);
  };
  return same_member(content_of(a), content_of(b)) && same_member(a.find("tool_calls"), b.find("tool_calls"));
}

std::size_t PromptedAnswers::leading_systems(const Value::List& messages) const {
  const auto end = std::ranges::find_if(messages, [&](const Value& message) { return role_of(message) != "system"; });
  return static_cast<std::size_t>(end - messages.begin());
}

std::size_t PromptedAnswers::shared(std::span<const Value> a, std::span<const Value> b) const {
  const auto differ = std::ranges::mismatch(a, b, [&](const Value& x, const Value& y) { return same_message(x, y); });
  return static_cast<std::size_t>(differ.in1 - a.begin());
}

std::optional<std::size_t> PromptedAnswers::behind_prompt(const Prompt& prompt, std::span<const Value> before,
                                                          std::span<const Value> answer) const {
  if (before.empty() || answer.empty()) return std::nullopt;
  const std::size_t shared = this->shared(before, answer);
  if (shared == std::min(before.size(), answer.size())) return shared;
  // Messages may end with an answer themselves, which one of the two is.
  if (shared > 0 && shared + 1 == before.size() && !is_user(before.back())) return shared;
  if (!prompt.source->is_text()) return std::nullopt;
  // One message of a longer conversation, which may have it without what it is about.
  const std::string_view whole = trimmed(*content_of(before.back())->text()), text = trimmed(prompt.source->text());
  for (std::size_t i = 0; i < answer.size(); ++i) {
    const Value* const content = content_of(answer[i]);
    if (!is_user(answer[i]) || content == nullptr || content->text() == nullptr) continue;
    if (const std::string_view said = trimmed(*content->text()); said == text || said == whole) return i + 1;
  }
  return std::nullopt;
}

AnswerInPlace PromptedAnswers::place(const Prompt& prompt, const Row& answer) const {
  AnswerInPlace placed;
  const Value::List& before = prompt.messages;
  const Value::List own = answer.is_text() ? Value::List{message_of("assistant", answer.value())} : messages_of(answer);
  const std::size_t before_systems = leading_systems(before), own_systems = leading_systems(own);
  const auto join = [&](std::size_t of_prompt) {
    placed.messages.assign(before.begin(), before.begin() + static_cast<std::ptrdiff_t>(of_prompt));
    placed.messages.insert(placed.messages.end(), own.begin(), own.end());
  };
  const std::size_t last = own.empty() ? 0 : own.size() - 1;
  const bool repeats_systems = shared(std::span(before).first(before_systems), own) == before_systems;
  if (const auto behind =
          behind_prompt(prompt, std::span(before).subspan(before_systems), std::span(own).subspan(own_systems))) {
    const std::size_t systems = repeats_systems ? 0 : before_systems;
    join(systems);
    placed.begin = systems + std::min(own_systems + *behind, last);
    placed.whole = true;
    return placed;
  }
  placed.whole = before.empty();
  if (own_systems < own.size() && is_user(own[own_systems])) {
    if (before_systems < before.size() && is_user(before.back())) {
      answer.fail(fmt::format(
          "begins with a user message of its own, which differs from {}; expected answers that begin with the "
          "prompt, or that follow it",
          prompt.source->path()));
    }
    placed.whole = true;
  }
  join(repeats_systems && before_systems == before.size() ? 0 : before.size());
  placed.begin = placed.messages.size() - own.size() + (placed.whole ? last : 0);
  return placed;
}

void refuse_unread_prompt(const Row& row, const std::vector<std::string>& read) {
  const std::vector<std::string> around = unread_around(row, read);
  for (const Value::Member& member : *row.value().map()) {
    const auto found = find_filled(row, member.key);
    if (!found || std::ranges::find(read, member.key) != read.end()) continue;
    const bool named = std::ranges::find(around, member.key) != around.end() ||
                       std::ranges::find(other_prompts, member.key) != other_prompts.end();
    if (!named && !is_conversation(*found)) continue;
    found->fail(
        "is not read: a pair has its prompt under prompt, messages, conversations, question, instruction, query or "
        "input; field_messages names another");
  }
}

}  // namespace inlay::data
