#pragma once

#include <optional>

#include "data/formats/format.h"
#include "data/formats/roles.h"

namespace inlay::data {

// Conversations through the model's chat template. What is learned: what generation blocks wrote, where the template
// has them; otherwise the turns that TurnFinder finds.
class ChatFormat final : public RowFormat {
 public:
  ChatFormat(FormatOptions options, Tokenizer tokenizer, std::shared_ptr<const ChatTemplate> chat);
  Document make(const Row& row) const override;
  std::vector<std::int32_t> make_shown(const Row& row) const override;
  // Where an answer's end is asked for, and is no token that could be learned.
  std::string remark() const override;

  struct Turn {
    jinja::Value message;
    std::string role;
    std::optional<Row> source;  // where it stands in the data
    std::size_t number = 0;     // among the row's messages, from 1
    bool trained = false;
    float weight = 1.0f;
    bool marked = false;  // the message itself says whether, or how much
  };

 private:
  struct Conversation {
    std::vector<Turn> turns;
    RenderOptions render;
  };
  struct TokenSpan {
    std::size_t begin, end;
    const Turn* turn;
    std::size_t content;  // where the message's own words begin; what stands before them leads there
    bool closed;          // what ends the turn follows, as the template's own; else the message may have written it
  };

  Conversation read(const Row& row) const;
  void fill_content(Conversation& conversation) const;
  void check_roles(const Row& row, const Conversation& conversation, const std::string& text) const;
  RenderedChat render(const Row& row, const Conversation& conversation, std::vector<jinja::Value> messages,
                      const RenderOptions& options) const;
  Turn read_turn(const Row& message, std::size_t number) const;  // counted from 1
  std::string role_of(const Row& message, std::size_t number) const;
  std::optional<Row> find_messages(const Row& row) const;
  bool uses_generation(const Conversation& conversation, const RenderedChat& rendered) const;
  std::vector<TokenSpan> spans(const Conversation& conversation, const RenderedChat& rendered,
                               const std::vector<std::int32_t>& ids) const;
  void learn(const std::vector<TokenSpan>& spans, Document& document) const;
  void learn_ends(const std::vector<TokenSpan>& spans, Document& document) const;
  std::vector<TokenSpan> generation_spans(const Conversation& conversation, const RenderedChat& rendered,
                                          const std::vector<std::int32_t>& ids) const;
  bool closes_behind_blocks(const Conversation& conversation) const;
  bool has_special(std::string_view text) const;
  std::optional<std::size_t> find_end(const std::vector<std::int32_t>& ids, const TokenSpan& span) const;
  bool ends_turn(std::int32_t id) const;

  FormatOptions options_;
  Tokenizer tokenizer_;
  std::shared_ptr<const ChatTemplate> chat_;
  Roles roles_;
  std::vector<std::int32_t> end_tokens_;
  bool assistant_only_;
};

}  // namespace inlay::data
