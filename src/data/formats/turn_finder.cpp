#include "data/formats/turn_finder.h"

#include <algorithm>

#include "core/utf8.h"
#include "data/formats/chat_messages.h"

namespace inlay::data {
namespace {

// Of characters for private use, so that no message begins or ends like it.
constexpr std::string_view stand_in_text = "\xEF\xA3\xBE\xEE\x80\x80inlay\xEE\x80\x81\xEF\xA3\xBF";

std::string_view role_of(const jinja::Value& message) {
  const jinja::Value* role = message.dict()->find("role");
  return role != nullptr && role->string() != nullptr ? std::string_view(role->string()->text) : "";
}

// A message of the same role that says something else.
jinja::Value stand_in_for(const jinja::Value& message) {
  return jinja::message(std::string(role_of(message)), std::string(stand_in_text));
}

// The part of a text that is not in the other one as well, at its beginning or end; of whole characters.
TurnFinder::Bytes difference(std::string_view text, std::string_view other) {
  const auto is_inside = [](std::string_view of, std::size_t at) {  // a character
    return at < of.size() && (static_cast<unsigned char>(of[at]) & 0xC0) == 0x80;
  };
  auto begin = static_cast<std::size_t>(std::ranges::mismatch(text, other).in1 - text.begin());
  while (begin > 0 && (is_inside(text, begin) || is_inside(other, begin))) --begin;
  const std::size_t most = std::min(text.size(), other.size()) - begin;
  std::size_t same = 0;
  while (same < most && text[text.size() - 1 - same] == other[other.size() - 1 - same]) ++same;
  while (same > 0 && is_inside(text, text.size() - same)) --same;
  return {begin, text.size() - same};
}

}  // namespace

TurnFinder::TurnFinder(const ChatTemplate& chat, const std::vector<jinja::Value>& messages,
                       const RenderOptions& options, std::string_view text)
    : chat_(chat), messages_(messages), options_(options), text_(text) {}

// Nothing where the template refuses the messages: parts of a conversation need not be conversations.
std::optional<std::string> TurnFinder::render(std::vector<jinja::Value> messages, bool generation_prompt) const {
  RenderOptions options = options_;
  options.add_generation_prompt = generation_prompt;
  try {
    return chat_.render(jinja::make_list(nullptr, std::move(messages)), options).text;
  } catch (const TemplateError&) {
    return std::nullopt;
  }
}

std::optional<TurnFinder::Turn> TurnFinder::find(std::size_t index) const {
  const jinja::Value stand_in = stand_in_for(messages_[index]);
  const auto at_end = find_at_end(index, stand_in);
  std::optional<Bytes> found;
  if (at_end && text_.starts_with(std::string_view(at_end->text).substr(0, at_end->bytes.second))) {
    found = at_end->bytes;
  } else {
    found = find_in_place(index, stand_in);
    const auto words = [](std::string_view text, Bytes bytes) {
      return trimmed(text.substr(bytes.first, bytes.second - bytes.first));
    };
    if (found && at_end && words(text_, *found) != words(at_end->text, at_end->bytes)) return std::nullopt;
  }
  if (!found) return std::nullopt;
  Turn turn{.begin = turn_begin(index, found->first), .content = found->first, .end = found->second};
  if (at_end) turn.closing = at_end->text.substr(at_end->bytes.second);
  return turn;
}

std::optional<TurnFinder::AtEnd> TurnFinder::find_at_end(std::size_t index, const jinja::Value& stand_in) const {
  std::vector<jinja::Value> head(messages_.begin(), messages_.begin() + static_cast<std::ptrdiff_t>(index) + 1);
  auto real = index + 1 == messages_.size() ? std::optional(std::string(text_)) : render(head, false);
  head.back() = stand_in;
  const auto other = render(std::move(head), false);
  if (!real || !other || other->find(stand_in_text) == std::string::npos) return std::nullopt;
  const Bytes bytes = difference(*real, *other);
  return AtEnd{std::move(*real), bytes};
}

// The whole conversation, of which nothing but the message may differ.
std::optional<TurnFinder::Bytes> TurnFinder::find_in_place(std::size_t index, const jinja::Value& stand_in) const {
  std::vector<jinja::Value> messages = messages_;
  messages[index] = stand_in;
  const auto other = render(std::move(messages), false);
  if (!other) return std::nullopt;
  const std::size_t at = other->find(stand_in_text);
  if (at == std::string::npos) return std::nullopt;
  const Bytes bytes = difference(text_, *other);
  const std::size_t behind = text_.size() - bytes.second;
  const bool alone = bytes.first == at && behind == other->size() - at - stand_in_text.size();
  return alone ? std::optional(bytes) : std::nullopt;
}

// What the model is given before its turn is not for it to learn; what comes then, is: also where that is not the
// message itself, but the name of a channel, say.
std::size_t TurnFinder::turn_begin(std::size_t index, std::size_t content) const {
  if (role_of(messages_[index]) != "assistant") return content;
  const std::vector<jinja::Value> before(messages_.begin(), messages_.begin() + static_cast<std::ptrdiff_t>(index));
  const auto prompt = render(before, true);
  const auto turn_only = render(before, false);
  if (!prompt || !turn_only || prompt->size() <= turn_only->size()) return content;  // there is no such prompt
  return prompt->size() <= content && text_.starts_with(*prompt) ? prompt->size() : content;
}

}  // namespace inlay::data
