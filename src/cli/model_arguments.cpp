#include "cli/model_arguments.h"

#include <algorithm>

#include "core/error.h"

namespace inlay::cli {

std::unique_ptr<train::Engine> load_engine(const ModelArguments& arguments, const model::ModelConfig& config,
                                           const std::vector<Document>& documents, Purpose purpose, Console& console) {
  std::int64_t longest = 1, total = 0;
  for (const Document& d : documents) {
    longest = std::max(longest, static_cast<std::int64_t>(d.input_ids.size()));
    total += static_cast<std::int64_t>(d.input_ids.size());
  }
  const bool training = purpose == Purpose::gradients || purpose == Purpose::gradients_and_logits;
  train::EngineOptions options;
  options.device = train::resolve_device(arguments.device);
  options.compute = train::resolve_dtype(arguments.dtype, options.device);
  options.training = training;
  options.optimizer_state = false;
  options.policy = model::ActivationPolicy::parse(arguments.policy);
  options.max_document = longest;
  options.max_tokens =
      training ? std::max(total, longest) : std::clamp(total, longest, std::max(longest, arguments.max_tokens));
  if (purpose == Purpose::gradients_and_logits) options.logit_rows = longest;
  if (purpose == Purpose::generation) options.decode_sequences = 1, options.decode_length = longest;
  options.row_losses = purpose == Purpose::choices;
  auto engine = train::Engine::create(config, options);
  const io::Checkpoint weights(arguments.model);
  engine->load(weights, [&](std::uint64_t done, std::uint64_t all) { console.progress("loading weights", done, all); });
  return engine;
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
  return load_engine(arguments, config, longest, Purpose::generation, console);
}

}  // namespace inlay::cli
