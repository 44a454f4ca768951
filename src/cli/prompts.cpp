#include "cli/prompts.h"

#include "core/error.h"
#include "data/formats/format.h"
#include "data/formats/text_formats.h"

namespace inlay::cli {

void PromptArguments::add_to(CLI::App& command, const std::string& meaning) {
  command.add_option("--prompt", prompts, meaning + "; may be repeated");
  command
      .add_option("--as", as,
                  "What a prompt is: text to continue, a chat message (rendered by the model's chat template), or an "
                  "alpaca instruction")
      ->check(CLI::IsMember({"text", "chat", "alpaca"}));
  command.add_option("--system", system, "With --as chat: the system message");
  command.add_option("--chat-template", chat_template, "With --as chat: a .jinja file in place of the model's own");
}

std::vector<std::int32_t> PromptArguments::encode(const std::string& prompt, const data::Tokenizer& tokenizer,
                                                  const std::string& model) const {
  if (as != "chat" && !(system.empty() && chat_template.empty())) {
    user_error("--system and --chat-template are for --as chat");
  }
  if (as == "text") return tokenizer.encode(prompt);
  if (as == "alpaca") return tokenizer.encode(data::alpaca_prompt(prompt, ""));
  data::FormatOptions format;
  if (!chat_template.empty()) format.chat_template = chat_template;
  std::vector<jinja::Value> messages;
  if (!system.empty()) messages.push_back(jinja::message("system", system));
  messages.push_back(jinja::message("user", prompt));
  const auto rendered = data::load_template(format, tokenizer, model)
                            .render(jinja::make_list(nullptr, std::move(messages)), {.add_generation_prompt = true});
  return tokenizer.encode(rendered.text, false);
}

}  // namespace inlay::cli
