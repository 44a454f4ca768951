#include "cli/prompts.h"

#include "core/error.h"
#include "data/formats/format.h"
#include "data/formats/text_formats.h"
#include "io/paths.h"

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

void DrawingArguments::add_to(CLI::App& command) {
  command.add_option("--temperature", temperature,
                     "0: always the most likely token; above 0: sample from softmax(logits / temperature)");
  command.add_option("--top-p", top_p, "Sample from the fewest most likely tokens whose probabilities add up to this");
  command.add_option("--seed", seed, "Random seed: the same seed gives the same text");
}

model::Drawing DrawingArguments::checked() const {
  const float nucleus = top_p.value_or(1.0f), heat = temperature.value_or(0.0f);
  if (heat != 0.0f && !(heat >= 1e-6f && heat <= 1e6f)) {
    user_error("--temperature: expected 0 or a number from 1e-6 to 1e6, got {}", heat);
  }
  if (heat == 0.0f && (top_p || seed)) {
    user_error("--top-p and --seed are for sampling: give a --temperature above 0 with them");
  }
  if (!(nucleus > 0.0f && nucleus <= 1.0f)) {
    user_error("--top-p: expected a number above 0 and at most 1, got {}", nucleus);
  }
  return {.temperature = heat, .top_p = nucleus, .seed = seed.value_or(0)};
}

model::Drawing DrawingArguments::or_of_model(const std::filesystem::path& folder) const {
  const std::filesystem::path file = folder / "generation_config.json";
  if (temperature || !io::exists(file)) return checked();
  const io::Json json = io::Json::read(file);
  if (!json.find_boolean("do_sample").value_or(false)) return checked();
  DrawingArguments both = *this;
  both.temperature = static_cast<float>(json.find_number("temperature", io::non_negative_number).value_or(1.0));
  if (!both.top_p && *both.temperature > 0) {
    both.top_p = static_cast<float>(json.find_number("top_p", io::positive_number).value_or(1.0));
  }
  return both.checked();
}

std::vector<std::int32_t> stop_tokens(const std::filesystem::path& folder, const data::Tokenizer& tokenizer) {
  std::vector<std::int32_t> stops;
  if (const auto eos = tokenizer.eos()) stops.push_back(*eos);
  const std::filesystem::path file = folder / "generation_config.json";
  if (!io::exists(file)) return stops;
  const auto named = io::Json::read(file).find("eos_token_id");
  if (!named) return stops;
  for (const io::Json& id : named->is_array() ? named->elements() : std::vector<io::Json>{*named}) {
    stops.push_back(static_cast<std::int32_t>(id.as_integer({.min = 0, .max = 0x7fffffff})));
  }
  return stops;
}

}  // namespace inlay::cli
