#include "train/samples.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "data/prompts.h"
#include "jinja/chat_template.h"
#include "train/generate.h"

namespace inlay::train {

using data::PromptKind;

namespace {

// What is no character becomes one that says so: a model may write any bytes, and files of JSON hold text.
std::string valid_text(const std::string& text) {
  using nlohmann::json;
  return json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::replace)).get<std::string>();
}

}  // namespace

Samples::Samples(const options::TrainOptions& options)
    : prompts_(options.sample_prompts),
      tokenizer_(data::Tokenizer::load(options.base_model)),
      stops_(data::stop_tokens(options.base_model, tokenizer_)),
      count_(options.sample_tokens) {
  // The template that the conversations are written by.
  std::string named = options.chat_template;
  for (const data::DatasetOptions& dataset : options.datasets) {
    if (named == "tokenizer_default") named = dataset.format.chat_template;
  }
  const bool has_template = named != "tokenizer_default" || jinja::ChatTemplate::is_in(options.base_model);
  const PromptKind kind = options.sample_as.value_or(has_template ? PromptKind::chat : PromptKind::text);
  for (const std::string& prompt : prompts_) {
    ids_.push_back(data::encode_prompt({.text = prompt, .kind = kind, .system = {}, .chat_template = named}, tokenizer_,
                                       options.base_model));
    if (ids_.back().empty())
      user_error("sample_prompts: '{}' makes no tokens with {}'s tokenizer", prompt, options.base_model);
  }
}

void Samples::check_tokens(std::int64_t vocab) const {
  for (std::size_t i = 0; i < ids_.size(); ++i) {
    for (const std::int32_t id : ids_[i]) {
      if (id < vocab) continue;
      user_error("sample_prompts: '{}': {} is not a token of this model (0 to {})", prompts_[i], id, vocab - 1);
    }
  }
}

void Samples::announce(EngineOptions& engine) const {
  std::size_t longest = 0;
  for (const std::vector<std::int32_t>& ids : ids_) longest = std::max(longest, ids.size());
  engine.decode_sequences = std::max(engine.decode_sequences, static_cast<std::int64_t>(ids_.size()));
  engine.decode_length = std::max(engine.decode_length, static_cast<std::int64_t>(longest) + count_);
}

std::vector<std::string> Samples::make(Engine& engine) const {
  const parallel::Mesh& mesh = engine.options().mesh;
  const auto answers = generate(
      engine, ids_, {.count = count_, .stops = stops_, .drawing = {}, .ranks = mesh.many() ? mesh.all.get() : nullptr});
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < ids_.size(); ++i) {
    texts.push_back(valid_text(data::answer_text(tokenizer_, ids_[i], answers[i])));
  }
  return texts;
}

}  // namespace inlay::train
