#include "cli/model_arguments.h"

#include <algorithm>

namespace inlay::cli {

std::unique_ptr<train::Engine> load_engine(const ModelArguments& arguments, const model::ModelConfig& config,
                                           const std::vector<Document>& documents, Purpose purpose,
                                           train::Console& console) {
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

}  // namespace inlay::cli
