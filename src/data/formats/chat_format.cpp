#include "data/formats/chat_format.h"

#include <algorithm>

#include "core/error.h"
#include "data/formats/chat_messages.h"
#include "data/formats/labels.h"
#include "data/formats/question.h"
#include "data/formats/text_formats.h"
#include "data/formats/token_map.h"
#include "data/formats/turn_finder.h"

namespace inlay::data {
namespace {

// How far behind a turn its end token may stand: templates put a newline or two before it.
constexpr std::size_t max_end_distance = 3;

// The name among several under which a message has something, or the first.
std::string present_name(const Row& message, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (message.find(name)) return name;
  }
  return *names.begin();
}

// For a message that has its text under a name that is not known.
std::string other_keys(const Row& message) {
  std::string keys;
  for (const auto& member : *message.value().map()) keys += (keys.empty() ? "" : ", ") + member.key;
  return fmt::format(": it has {} (message_property_mappings names others)", keys);
}

const std::string* text_of(const ChatFormat::Turn& turn) {
  const jinja::Value* content = turn.message.dict()->find("content");
  return content != nullptr && content->string() != nullptr ? &content->string()->text : nullptr;
}

// What a model is to think is easily lost: a template may write no reasoning at all, or only the last turn's. Learning
// the turn all the same would teach to answer without it.
void check_reasoning(const ChatFormat::Turn& turn, std::string_view written) {
  if (!turn.trained) return;
  const std::string_view reasoning = reasoning_of(turn.message);
  if (written.find(reasoning) != written.npos) return;
  turn.source->fail(
      fmt::format("the chat template drops the reasoning of this {} message, so the turn would be learned without it; "
                  "if the template keeps it in the last turn, end the conversation with this message; otherwise set "
                  "\"training\": false in it, take the reasoning out of the data, or name another chat_template",
                  turn.role));
}

}  // namespace

ChatFormat::ChatFormat(FormatOptions options, Tokenizer tokenizer, std::shared_ptr<const ChatTemplate> chat)
    : options_(std::move(options)), tokenizer_(std::move(tokenizer)), chat_(std::move(chat)), roles_(options_, chat_) {
  for (std::string& role : options_.roles_to_train) role = roles_.of(role);
  for (const std::string& token : options_.eot_tokens) {
    const auto id = tokenizer_.find_id(token);
    if (!id) user_error("eot_tokens: '{}' is not a token of the tokenizer", token);
    end_tokens_.push_back(*id);
  }
  if (options_.eot_tokens.empty() && tokenizer_.eos()) end_tokens_.push_back(*tokenizer_.eos());
  const auto is_assistant = [](const std::string& role) { return role == "assistant"; };
  assistant_only_ = !options_.train_on_inputs && !options_.roles_to_train.empty() &&
                    std::ranges::all_of(options_.roles_to_train, is_assistant);
}

std::optional<Row> ChatFormat::find_messages(const Row& row) const {
  if (!options_.field_messages.empty()) return row.find(options_.field_messages);
  auto found = row.find("messages");
  return found ? found : row.find("conversations");
}

std::string ChatFormat::role_of(const Row& message, std::size_t number) const {
  const auto mapped = options_.message_property_mappings.find("role");
  const std::string key =
      mapped != options_.message_property_mappings.end() ? mapped->second : present_name(message, {"role", "from"});
  const auto found = message.find(key);
  if (!found) user_error("{}: message {} has no {}, which says who speaks", message.where(), number, key);
  return roles_.of(found->text());
}

ChatFormat::Turn ChatFormat::read_turn(const Row& message, std::size_t number) const {
  if (!message.is_object()) message.fail_expected("a message, {\"role\": ..., \"content\": ...}");
  Turn turn{.role = role_of(message, number), .source = message, .number = number};
  if (!roles_.knows(turn.role)) {
    message.doubt(turn.role, roles_.unknown(number, turn.role, "not every row has it"));
  }
  turn.trained = options_.train_on_inputs ||
                 std::ranges::find(options_.roles_to_train, turn.role) != options_.roles_to_train.end();
  const std::string weight_field = options_.message_field_weight.empty()
                                       ? present_name(message, {"weight", "loss_weight"})
                                       : options_.message_field_weight;
  if (const auto weight = message.find(weight_field)) {
    if (!(weight->number() >= 0) || weight->number() > 1e6) weight->fail("expected a weight from 0 to 1e6");
    turn.weight = static_cast<float>(weight->number());
    turn.trained = turn.trained && turn.weight > 0;
    turn.marked = true;
  }
  if (const auto training = message.find(options_.message_field_training)) {
    turn.trained = training->boolean() && turn.weight > 0;
    turn.marked = true;
  }
  std::map<std::string, std::string> mappings = options_.message_property_mappings;
  mappings.try_emplace("role", present_name(message, {"role", "from"}));
  mappings.try_emplace("content", present_name(message, {"content", "value"}));
  const bool speaks = message.find(mappings.at("content")) || message.find("tool_calls") || message.find("reasoning") ||
                      message.find("reasoning_content") || message.find("thinking");
  if (!speaks) {
    user_error("{}: message {} has no {}{}", message.where(), number, mappings.at("content"),
               message.value().find(mappings.at("content")) != nullptr ? ": it is null" : other_keys(message));
  }
  io::Value mapped = message_for_template(message, mappings, {weight_field, options_.message_field_training});
  *mapped.find("role") = io::Value(turn.role);
  turn.message = jinja::from(mapped);
  return turn;
}

ChatFormat::Conversation ChatFormat::read(const Row& row) const {
  const auto messages = find_messages(row);
  if (!messages) {
    row.fail(fmt::format("{}: missing, expected an array of messages",
                         options_.field_messages.empty() ? "messages" : options_.field_messages));
  }
  Conversation conversation;
  for (const Row& message : messages->elements()) {
    conversation.turns.push_back(read_turn(message, conversation.turns.size() + 1));
  }
  std::vector<Turn>& turns = conversation.turns;
  if (turns.empty()) messages->fail("is empty, expected at least one message");
  auto system = row.find(options_.field_system);
  if (!system) system = find_system(row, options_);
  if (system && turns[0].role != "system") {
    turns.insert(turns.begin(),
                 {.message = jinja::message("system", system->text()), .role = "system", .source = system});
  }
  if (options_.drop_system_message && turns[0].role == "system") turns.erase(turns.begin());
  if (turns.empty()) messages->fail("has nothing but a system message, which is dropped");
  if (const auto tools = row.find(options_.field_tools)) {
    conversation.render.tools = jinja::from(tools_for_template(*tools));
  }
  fill_content(conversation);
  return conversation;
}

// Calls of tools often stand alone, and most templates look whether there is content. For those that do not it is
// empty.
void ChatFormat::fill_content(Conversation& conversation) const {
  const auto lacks = [](const Turn& turn) { return lacks_content(turn.message); };
  if (std::ranges::none_of(conversation.turns, lacks)) return;
  std::vector<jinja::Value> messages;
  for (const Turn& turn : conversation.turns) messages.push_back(turn.message);
  try {
    chat_->render(jinja::make_list(nullptr, std::move(messages)), conversation.render);
  } catch (const TemplateError&) {
    for (Turn& turn : conversation.turns) {
      if (lacks(turn)) turn.message = with_empty_content(turn.message);
    }
  }
}

// Generation blocks say what is learned where just the assistant's turns are asked for. Turns that speak for themselves
// must be told apart, so there must be a block for each.
bool ChatFormat::uses_generation(const Conversation& conversation, const RenderedChat& rendered) const {
  if (!assistant_only_ || options_.train_on_eos == "all") return false;
  if (!chat_->marks_generation() || rendered.generation_lost) return false;
  const auto spoken = static_cast<std::size_t>(
      std::ranges::count_if(conversation.turns, [](const Turn& turn) { return turn.role == "assistant"; }));
  const bool marked = std::ranges::any_of(conversation.turns, &Turn::marked);
  return !marked || rendered.generation.size() == spoken;
}

bool ChatFormat::has_special(std::string_view text) const {
  return std::ranges::any_of(tokenizer_.encode(text, false),
                             [&](std::int32_t id) { return tokenizer_.is_special(id); });
}

// Whether the template ends a turn behind its generation block, and not in it: by a conversation that ends with one.
bool ChatFormat::closes_behind_blocks(const Conversation& conversation) const {
  std::vector<jinja::Value> messages;
  for (const Turn& turn : conversation.turns) messages.push_back(turn.message);
  const auto last = std::ranges::find(conversation.turns.rbegin(), conversation.turns.rend(), "assistant", &Turn::role);
  messages.resize(static_cast<std::size_t>(conversation.turns.rend() - last));
  try {
    const RenderedChat head = chat_->render(jinja::make_list(nullptr, std::move(messages)), conversation.render);
    return !head.generation.empty() && has_special(std::string_view(head.text).substr(head.generation.back().second));
  } catch (const TemplateError&) {
    return false;
  }
}

std::vector<ChatFormat::TokenSpan> ChatFormat::generation_spans(const Conversation& conversation,
                                                                const RenderedChat& rendered,
                                                                const std::vector<std::int32_t>& ids) const {
  const TokenMap map(tokenizer_, rendered.text, ids);
  std::vector<std::size_t> spoken;
  for (std::size_t i = 0; i < conversation.turns.size(); ++i) {
    if (conversation.turns[i].role == "assistant") spoken.push_back(i);
  }
  const bool one_each = spoken.size() == rendered.generation.size();
  for (std::size_t k = 0; k < spoken.size(); ++k) {
    const auto [begin, end] = one_each ? rendered.generation[k] : std::pair(std::size_t{0}, rendered.text.size());
    check_reasoning(conversation.turns[spoken[k]], std::string_view(rendered.text).substr(begin, end - begin));
  }
  std::vector<TokenSpan> result;
  std::optional<bool> closed;  // asked for where a block ends with a special token: that may be the end, or lead there
  for (std::size_t k = 0; k < rendered.generation.size(); ++k) {
    static const Turn plain{.role = "assistant", .trained = true};
    const auto [begin, end] = map.tokens(rendered.generation[k].first, rendered.generation[k].second);
    const bool special = end > begin && tokenizer_.is_special(ids[end - 1]) && !ends_turn(ids[end - 1]);
    if (special && !closed) closed = closes_behind_blocks(conversation);
    result.push_back({begin, end, one_each ? &conversation.turns[spoken[k]] : &plain, begin, special && *closed});
  }
  return result;
}

std::vector<ChatFormat::TokenSpan> ChatFormat::spans(const Conversation& conversation, const RenderedChat& rendered,
                                                     const std::vector<std::int32_t>& ids) const {
  if (uses_generation(conversation, rendered)) return generation_spans(conversation, rendered, ids);
  const TokenMap map(tokenizer_, rendered.text, ids);
  const std::string_view text = rendered.text;
  const std::vector<Turn>& turns = conversation.turns;
  std::vector<jinja::Value> messages;
  for (const Turn& turn : turns) messages.push_back(turn.message);
  const TurnFinder finder(*chat_, messages, conversation.render, rendered.text);
  std::vector<TokenSpan> result;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    if (!turns[i].trained && options_.train_on_eos != "all") continue;
    const auto found = finder.find(i);
    check_reasoning(turns[i], found ? text.substr(found->begin, found->end - found->begin) : text);
    if (found) {
      const auto [begin, end] = map.tokens(found->begin, found->end);
      const std::size_t content = map.tokens(found->content, found->end).first;
      result.push_back({begin, end, &turns[i], content, !found->closing || has_special(*found->closing)});
    } else if (turns[i].trained) {
      turns[i].source->fail(
          fmt::format("the chat template writes this {} message differently in the middle of a conversation, so that "
                      "its tokens cannot be told from the others; end the conversation with it, do not train on it, or "
                      "use a template with {{% generation %}} blocks",
                      turns[i].role));
    }
  }
  return result;
}

bool ChatFormat::ends_turn(std::int32_t id) const { return std::ranges::find(end_tokens_, id) != end_tokens_.end(); }

// The named end tokens first. Templates may end a turn by another one; that is known by its place. It follows the
// message, unless the message itself wrote it: with a call of a tool, say, or inside a generation block.
std::optional<std::size_t> ChatFormat::find_end(const std::vector<std::int32_t>& ids, const TokenSpan& span) const {
  const bool named = !options_.eot_tokens.empty(), any = span.end > span.content;
  if (any && ends_turn(ids[span.end - 1])) return span.end - 1;
  const std::size_t last = std::min(ids.size(), span.end + max_end_distance + 1);
  std::optional<std::size_t> special;  // the first one behind the span
  for (std::size_t i = span.end; i < last && (named || !special); ++i) {
    if (ends_turn(ids[i])) return i;
    if (!special && tokenizer_.is_special(ids[i])) special = i;
  }
  if (named) return std::nullopt;
  if (span.closed) return special;
  if (any && tokenizer_.is_special(ids[span.end - 1])) return span.end - 1;
  return special == span.end ? special : std::nullopt;
}

void ChatFormat::learn(const std::vector<TokenSpan>& spans, Document& document) const {
  const bool weighted = std::ranges::any_of(spans, [](const TokenSpan& span) { return span.turn->weight != 1.0f; });
  if (weighted) document.weights.assign(document.input_ids.size(), 1.0f);
  for (const TokenSpan& span : spans) {
    if (!span.turn->trained) continue;
    for (std::size_t i = span.begin; i < span.end; ++i) {
      document.labels[i] = document.input_ids[i];
      if (weighted) document.weights[i] = span.turn->weight;
    }
  }
}

void ChatFormat::learn_ends(const std::vector<TokenSpan>& spans, Document& document) const {
  std::optional<std::size_t> last;
  for (const TokenSpan& span : spans) {
    const auto end = find_end(document.input_ids, span);
    if (!end) continue;
    const bool wanted = options_.train_on_eos == "all" || (options_.train_on_eos == "turn" && span.turn->trained);
    document.labels[*end] = wanted ? document.input_ids[*end] : ignore_label;
    if (!document.weights.empty() && span.turn->trained) document.weights[*end] = span.turn->weight;
    if (span.turn->trained) last = end;
  }
  if (options_.train_on_eos == "last" && last) document.labels[*last] = document.input_ids[*last];
}

// A role of the data's own must at least get into the text.
void ChatFormat::check_roles(const Row& row, const Conversation& conversation, const std::string& text) const {
  for (const Turn& turn : conversation.turns) {
    if (roles_.knows(turn.role)) continue;
    const std::string* content = text_of(turn);
    if (content == nullptr || text.find(trimmed(*content)) != text.npos) continue;
    row.fail(roles_.unknown(turn.number, turn.role, "the chat template leaves it out"));
  }
}

RenderedChat ChatFormat::render(const Row& row, const Conversation& conversation, std::vector<jinja::Value> messages,
                                const RenderOptions& options) const {
  try {
    return chat_->render(jinja::make_list(nullptr, std::move(messages)), options);
  } catch (const TemplateError& error) {
    const auto odd = std::ranges::find_if(conversation.turns, [&](const Turn& t) { return !roles_.knows(t.role); });
    row.fail(fmt::format(
        "the chat template refuses the conversation: {}{}", error.what(),
        odd == conversation.turns.end() ? "" : "; " + roles_.unknown(odd->number, odd->role, "that may be why")));
  }
}

std::vector<std::int32_t> ChatFormat::make_shown(const Row& row) const {
  const Conversation conversation = read(row);
  const auto& turns = conversation.turns;
  const auto answer = std::find_if(turns.rbegin(), turns.rend(), [](const Turn& turn) { return turn.trained; });
  const auto question = std::find_if(answer, turns.rend(), [](const Turn& turn) { return turn.role == "user"; });
  if (question == turns.rend() || text_of(*answer) == nullptr || text_of(*question) == nullptr) return {};
  std::vector<jinja::Value> messages;
  for (auto turn = turns.begin(); turn != question.base() - 1; ++turn) messages.push_back(turn->message);
  messages.push_back(jinja::message(
      "user", filled(options_.shown, {{"{instruction}", *text_of(*question)}, {"{response}", *text_of(*answer)}})));
  RenderOptions options = conversation.render;
  options.add_generation_prompt = true;
  return tokenizer_.encode(render(row, conversation, std::move(messages), options).text, false);
}

std::string ChatFormat::remark() const {
  if (options_.train_on_eos == "none") return {};
  const io::Value nothing;
  const Row nowhere(nothing, "the chat template");
  const auto turn = [&](const char* role, const char* text) {
    return Turn{.message = jinja::message(role, text), .role = role, .source = nowhere, .trained = true};
  };
  const Conversation probe{.turns = {turn("user", "Is it?"), turn("assistant", "It is.")}, .render = {}};
  const std::vector<jinja::Value> messages = {probe.turns[0].message, probe.turns[1].message};
  std::string closing;
  try {
    const RenderedChat rendered = chat_->render(jinja::make_list(nullptr, messages), probe.render);
    const std::vector<std::int32_t> ids = tokenizer_.encode(rendered.text, false);
    const std::vector<TokenSpan> found = spans(probe, rendered, ids);
    if (found.empty() || find_end(ids, found.back())) return {};
    const auto answer = TurnFinder(*chat_, messages, probe.render, rendered.text).find(1);
    if (answer && answer->closing) closing = trimmed(*answer->closing);
  } catch (const UserError&) {  // rows may say more than this one, and if they do not, they have the same error
    return {};
  }
  const std::string what = "the end of an answer is not learned, so that the model may not know where to stop: ";
  if (closing.empty()) return what + "the chat template writes nothing after an answer";
  return what + fmt::format(
                    "the chat template writes '{}' there, which is not a token of this tokenizer; special_tokens: "
                    "{{eos_token: \"{}\"}} adds it, or name a chat_template that ends answers with a token",
                    closing, closing);
}

Document ChatFormat::make(const Row& row) const {
  const Conversation conversation = read(row);
  std::vector<jinja::Value> messages;
  for (const Turn& turn : conversation.turns) messages.push_back(turn.message);
  const RenderedChat rendered = render(row, conversation, std::move(messages), conversation.render);
  check_roles(row, conversation, rendered.text);
  Document document;
  append(document, tokenizer_.encode(rendered.text, false), false);
  if (document.input_ids.empty()) row.fail("the chat template makes an empty text of the conversation");
  const auto found = spans(conversation, rendered, document.input_ids);
  learn(found, document);
  learn_ends(found, document);
  mask_first(document);
  return document;
}

}  // namespace inlay::data
