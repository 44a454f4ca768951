#include "data/formats/format.h"

#include <array>

#include "core/error.h"
#include "data/formats/chat_format.h"
#include "data/formats/preference_format.h"
#include "data/formats/text_formats.h"
#include "io/paths.h"

namespace inlay::data {
namespace {

constexpr std::array<std::string_view, 6> types = {"chat_template", "alpaca",     "completion",
                                                   "input_output",  "preference", "judged"};

// Conversations are rendered by it; a model without a template has none.
std::unique_ptr<RowFormat> chat_of(FormatOptions options, const Tokenizer& tokenizer,
                                   const std::filesystem::path& model) {
  options.field_messages = "messages";
  try {
    auto chat = std::make_shared<const ChatTemplate>(load_template(options, tokenizer, model));
    return std::make_unique<ChatFormat>(options, tokenizer, std::move(chat));
  } catch (const UserError&) {
    if (options.chat_template != "tokenizer_default") throw;
    return nullptr;
  }
}

}  // namespace

std::span<const std::string_view> format_types() { return types; }

std::string detect_type(const Row& row) {
  if (row.find("input_ids")) return "tokens";
  if (row.find("chosen") && row.find("rejected")) return "preference";
  if (row.find("completion") && row.find("label")) return "judged";
  if (row.find("messages") || row.find("conversations")) return "chat_template";
  if (row.find("instruction") && row.find("output")) return "alpaca";
  if (row.find("segments")) return "input_output";
  if (row.find("text")) return "completion";
  row.fail(
      "the row does not tell its type: none of input_ids, chosen with rejected, completion with label, messages, "
      "conversations, instruction with output, segments or text is in it; give the dataset a type");
}

ChatTemplate load_template(const FormatOptions& options, const Tokenizer& tokenizer,
                           const std::filesystem::path& model) {
  if (options.chat_template == "tokenizer_default") return ChatTemplate::load(model);
  if (!io::exists(options.chat_template)) {
    user_error("chat_template: '{}' is neither tokenizer_default nor a .jinja file that is there",
               options.chat_template);
  }
  ChatTemplate chat = ChatTemplate::load(options.chat_template);
  const auto name = [&](const char* key, std::optional<std::int32_t> id) {
    if (id) chat.set_special_token(key, tokenizer.text(*id).value_or(""));
  };
  name("bos_token", tokenizer.bos());
  name("eos_token", tokenizer.eos());
  name("pad_token", tokenizer.pad());
  return chat;
}

std::unique_ptr<RowFormat> make_format(const FormatOptions& options, const Tokenizer& tokenizer,
                                       const std::filesystem::path& model) {
  if (options.type == "chat_template") {
    auto chat = std::make_shared<const ChatTemplate>(load_template(options, tokenizer, model));
    return std::make_unique<ChatFormat>(options, tokenizer, std::move(chat));
  }
  if (options.type == "alpaca") return std::make_unique<AlpacaFormat>(options, tokenizer);
  if (options.type == "completion") return std::make_unique<CompletionFormat>(options, tokenizer);
  if (options.type == "preference") {
    return std::make_unique<PreferenceFormat>(options, tokenizer, chat_of(options, tokenizer, model));
  }
  if (options.type == "judged") {
    return std::make_unique<JudgedFormat>(options, tokenizer, chat_of(options, tokenizer, model));
  }
  INLAY_ASSERT(options.type == "input_output", "a dataset of type {}", options.type);
  return std::make_unique<InputOutputFormat>(options, tokenizer);
}

}  // namespace inlay::data
