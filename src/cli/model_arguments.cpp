#include "cli/model_arguments.h"

#include <algorithm>

#include "core/error.h"
#include "io/paths.h"

namespace inlay::cli {

const std::string& ModelArguments::text_folder() const {
  return !adapter.empty() && io::exists(std::filesystem::path(adapter) / "tokenizer.json") ? adapter : model;
}

std::unique_ptr<train::Engine> load_engine(const ModelArguments& arguments, const model::ModelConfig& config,
                                           const std::vector<Document>& documents, train::Purpose purpose,
                                           Console& console) {
  std::int64_t longest = 1, total = 0;
  for (const Document& d : documents) {
    longest = std::max(longest, static_cast<std::int64_t>(d.input_ids.size()));
    total += static_cast<std::int64_t>(d.input_ids.size());
  }
  train::EngineOptions options =
      train::engine_options(purpose, train::resolve_machine(arguments.device, arguments.dtype), {.document = longest});
  options.policy = model::ActivationPolicy::parse(arguments.policy);
  // Gradients are those of one batch of everything.
  options.max_tokens =
      options.training ? std::max(total, longest) : std::clamp(total, longest, std::max(longest, arguments.max_tokens));
  return train::load_engine(arguments.model, config, options, console, arguments.adapter);
}

std::unique_ptr<train::Engine> load_generator(const ModelArguments& arguments, const model::ModelConfig& config,
                                              const std::vector<std::vector<std::int32_t>>& prompts, std::int64_t count,
                                              std::string_view source, Console& console) {
  std::vector<Document> longest(1);
  for (const std::vector<std::int32_t>& prompt : prompts) {
    if (prompt.empty()) user_error("{}: expected text, got nothing", source);
    for (const std::int32_t id : prompt) {
      if (id >= 0 && id < config.vocab) continue;
      user_error("{}: {} is not a token of this model (0 to {})", source, id, config.vocab - 1);
    }
    const std::size_t length = prompt.size() + static_cast<std::size_t>(count);
    if (length > longest[0].input_ids.size()) longest[0].input_ids.resize(length);
  }
  return load_engine(arguments, config, longest, train::Purpose::generation, console);
}

}  // namespace inlay::cli
