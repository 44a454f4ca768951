#include "data/prompts.h"

#include "data/formats/format.h"
#include "data/formats/text_formats.h"
#include "data/tokenizer/text_stream.h"
#include "io/json.h"
#include "io/paths.h"

namespace inlay::data {

std::vector<std::int32_t> encode_prompt(const Prompt& prompt, const Tokenizer& tokenizer,
                                        const std::filesystem::path& model) {
  if (prompt.kind == PromptKind::text) return tokenizer.encode(prompt.text);
  if (prompt.kind == PromptKind::alpaca) return tokenizer.encode(alpaca_prompt(prompt.text, ""));
  FormatOptions format;
  format.chat_template = prompt.chat_template;
  std::vector<jinja::Value> messages;
  if (!prompt.system.empty()) messages.push_back(jinja::message("system", prompt.system));
  messages.push_back(jinja::message("user", prompt.text));
  const auto rendered = load_template(format, tokenizer, model)
                            .render(jinja::make_list(nullptr, std::move(messages)), {.add_generation_prompt = true});
  return tokenizer.encode(rendered.text, false);
}

std::vector<std::int32_t> stop_tokens(const std::filesystem::path& model, const Tokenizer& tokenizer) {
  std::vector<std::int32_t> stops;
  if (const auto eos = tokenizer.eos()) stops.push_back(*eos);
  const std::filesystem::path file = model / "generation_config.json";
  if (!io::exists(file)) return stops;
  const auto named = io::Json::read(file).find("eos_token_id");
  if (!named) return stops;
  for (const io::Json& id : named->is_array() ? named->elements() : std::vector<io::Json>{*named}) {
    stops.push_back(static_cast<std::int32_t>(id.as_integer({.min = 0, .max = 0x7fffffff})));
  }
  return stops;
}

std::string answer_text(const Tokenizer& tokenizer, const std::vector<std::int32_t>& prompt,
                        const std::vector<std::int32_t>& answer) {
  TextStream stream(tokenizer, prompt);
  std::string text;
  for (const std::int32_t id : answer) text += stream.add(id);
  return text + stream.finish();
}

}  // namespace inlay::data
