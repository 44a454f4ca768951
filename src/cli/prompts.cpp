#include "cli/prompts.h"

#include <map>

#include "cli/checks.h"
#include "core/error.h"
#include "io/json.h"
#include "io/paths.h"

namespace inlay::cli {

void PromptArguments::add_to(CLI::App& command, const std::string& meaning) {
  using data::PromptKind;
  const std::map<std::string, PromptKind> kinds = {
      {"text", PromptKind::text}, {"chat", PromptKind::chat}, {"alpaca", PromptKind::alpaca}};
  command.add_option("--prompt", prompts, meaning + "; may be repeated");
  add_choice(command, "--as", as, kinds,
             "What a prompt is: text to continue (the default), a message (chat, rendered by the model's chat "
             "template), or an instruction (alpaca)");
  command.add_option("--system", system, "With --as chat: the system message");
  command.add_option("--chat-template", chat_template,
                     "With --as chat: a .jinja file, or a name such as chatml, in place of the model's own");
}

std::vector<std::int32_t> PromptArguments::encode(const std::string& prompt, const data::Tokenizer& tokenizer,
                                                  const std::string& model) const {
  data::Prompt one{.text = prompt, .kind = as.value_or(data::PromptKind::text), .system = system};
  if (one.kind != data::PromptKind::chat && !(system.empty() && chat_template.empty())) {
    user_error("--system and --chat-template are for --as chat");
  }
  if (!chat_template.empty()) one.chat_template = chat_template;
  return data::encode_prompt(one, tokenizer, model);
}

void DrawingArguments::add_to(CLI::App& command) {
  command.add_option("--temperature", temperature,
                     "0: always the most likely token; above 0: sample from softmax(logits / temperature)");
  command.add_option("--top-p", top_p, "Sample from the fewest most likely tokens whose probabilities add up to this");
  command.add_option("--seed", seed, "Random seed: the same seed gives the same text")->check(whole(0));
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

}  // namespace inlay::cli
