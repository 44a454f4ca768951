#include <inlay/tokenizer.h>

#include "core/parallel.h"
#include "data/tokenizer/tokenizer.h"
#include "io/json.h"
#include "io/value.h"
#include "jinja/chat_template.h"

namespace inlay {

struct Tokenizer::Parts {
  data::Tokenizer tokenizer;
};

Tokenizer::Tokenizer(const std::string& path)
    : parts_(std::make_shared<const Parts>(Parts{data::Tokenizer::load(path)})) {}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool special) const {
  return parts_->tokenizer.encode(text, special);
}

std::vector<std::vector<std::int32_t>> Tokenizer::encode(std::span<const std::string_view> texts, bool special,
                                                         int threads) const {
  std::vector<std::vector<std::int32_t>> result(texts.size());
  parallel_each(texts.size(), threads, [&](std::size_t i) { result[i] = parts_->tokenizer.encode(texts[i], special); });
  return result;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  return parts_->tokenizer.decode(ids, skip_special);
}

std::vector<std::string> Tokenizer::decode(std::span<const std::vector<std::int32_t>> texts, bool skip_special,
                                           int threads) const {
  std::vector<std::string> result(texts.size());
  parallel_each(texts.size(), threads, [&](std::size_t i) { result[i] = decode(texts[i], skip_special); });
  return result;
}

std::int32_t Tokenizer::vocab_size() const { return parts_->tokenizer.vocab_size(); }
std::optional<std::int32_t> Tokenizer::id_of(std::string_view token) const { return parts_->tokenizer.find_id(token); }
std::optional<std::string> Tokenizer::token_of(std::int32_t id) const { return parts_->tokenizer.text(id); }
std::optional<std::int32_t> Tokenizer::bos() const { return parts_->tokenizer.bos(); }
std::optional<std::int32_t> Tokenizer::eos() const { return parts_->tokenizer.eos(); }
std::optional<std::int32_t> Tokenizer::pad() const { return parts_->tokenizer.pad(); }

struct ChatTemplate::Parts {
  jinja::ChatTemplate chat_template;
};

ChatTemplate::ChatTemplate(const std::string& path)
    : parts_(std::make_shared<const Parts>(Parts{jinja::ChatTemplate::load(path)})) {}

ChatTemplate ChatTemplate::from_text(std::string_view text) {
  ChatTemplate result;
  result.parts_ = std::make_shared<const Parts>(Parts{jinja::ChatTemplate("chat template", text)});
  return result;
}

namespace {

jinja::Value value_of(std::string_view json, const std::string& name) {
  return jinja::from(io::read_value(json, name));
}

jinja::RenderOptions render_options(const ChatTemplate::Options& options) {
  jinja::RenderOptions result{.add_generation_prompt = options.add_generation_prompt};
  if (!options.tools.empty()) result.tools = value_of(options.tools, "tools");
  if (!options.documents.empty()) result.documents = value_of(options.documents, "documents");
  if (options.variables.empty()) return result;
  const io::Value variables = io::read_value(options.variables, "variables");
  if (variables.map() == nullptr) user_error("variables: expected an object, got {}", io::shown(variables));
  for (const auto& [key, value] : *variables.map()) result.variables.emplace_back(key, jinja::from(value));
  return result;
}

jinja::Value messages_of(std::string_view json) {
  const io::Value messages = io::read_value(json, "messages");
  if (messages.list() == nullptr) user_error("messages: expected an array, got {}", io::shown(messages));
  return jinja::from(messages);
}

}  // namespace

std::string ChatTemplate::render(std::string_view messages, const Options& options) const {
  return parts_->chat_template.render(messages_of(messages), render_options(options)).text;
}

std::vector<std::string> ChatTemplate::render(std::span<const std::string_view> conversations, const Options& options,
                                              int threads) const {
  const jinja::RenderOptions shared = render_options(options);
  std::vector<std::string> result(conversations.size());
  parallel_each(conversations.size(), threads, [&](std::size_t i) {
    result[i] = parts_->chat_template.render(messages_of(conversations[i]), shared).text;
  });
  return result;
}

}  // namespace inlay
