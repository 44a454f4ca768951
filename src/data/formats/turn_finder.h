#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "jinja/chat_template.h"

namespace inlay::data {

using jinja::ChatTemplate;
using jinja::RenderOptions;
using jinja::TemplateError;

// Where a message came to stand in the text of a conversation. A template does not tell, so it is asked again, with
// another text in the message's place: what differs is the message. Where the template speaks for the assistant to
// begin (a generation prompt), the assistant's turn begins behind that.
class TurnFinder {
 public:
  using Bytes = std::pair<std::size_t, std::size_t>;  // begin and end in the conversation's text
  struct Turn {
    std::size_t begin = 0;             // behind the generation prompt
    std::size_t content = 0, end = 0;  // what the message itself wrote
    // What the template writes behind the message where the conversation ends with it, to close the turn; absent where
    // it refuses such a conversation.
    std::optional<std::string> closing;
  };

  // text: what the template made of the messages with the options, whose add_generation_prompt is off.
  TurnFinder(const ChatTemplate& chat, const std::vector<jinja::Value>& messages, const RenderOptions& options,
             std::string_view text);

  // Nothing where the template writes the message differently as part of a longer conversation: it cannot be told
  // apart, or is not all there (without its reasoning, say).
  std::optional<Turn> find(std::size_t index) const;

 private:
  struct AtEnd {  // the conversation up to a message, and the message in it
    std::string text;
    Bytes bytes;
  };

  std::optional<std::string> render(std::vector<jinja::Value> messages, bool generation_prompt) const;
  std::optional<AtEnd> find_at_end(std::size_t index, const jinja::Value& stand_in) const;
  std::optional<Bytes> find_in_place(std::size_t index, const jinja::Value& stand_in) const;
  std::size_t turn_begin(std::size_t index, std::size_t content) const;

  const ChatTemplate& chat_;
  const std::vector<jinja::Value>& messages_;
  const RenderOptions& options_;
  std::string_view text_;
};

}  // namespace inlay::data
