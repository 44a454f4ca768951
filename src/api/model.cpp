#include <inlay/model.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "core/interrupt.h"
#include "data/prompts.h"
#include "io/paths.h"
#include "model/families/family.h"
#include "train/generate.h"
#include "train/gradients.h"
#include "train/session.h"

namespace inlay {

namespace {

void check_tokens(const std::vector<std::int32_t>& tokens, std::int64_t vocab, const std::string& what) {
  if (tokens.empty()) user_error("{}: expected token ids, got none", what);
  for (const std::int32_t id : tokens) {
    if (id < 0 || id >= vocab) user_error("{}: {} is not a token of this model (0 to {})", what, id, vocab - 1);
  }
}

}  // namespace

struct Model::Parts {
  // What an engine has memory for.
  enum class Use : std::uint8_t { generation, logits, gradients };

  std::string folder;
  Options options;
  model::ModelConfig config;
  train::Machine machine;
  std::unique_ptr<train::Engine> engine;
  Use use = Use::generation;
  std::int64_t room = 0;
  std::optional<data::Tokenizer> tokenizer;  // where it was asked for: reading a large one takes a while

  static std::int64_t rounded_up(std::int64_t tokens, Use use) {
    if (use != Use::generation) return (tokens + 63) / 64 * 64;
    std::int64_t room = 256;  // a cache of keys and values is small
    while (room < tokens) room *= 2;
    return room;
  }

  // An engine that has memory for so many tokens of this use.
  train::Engine& ready(Use wanted, std::int64_t tokens) {
    if (engine != nullptr && use == wanted && tokens <= room) return *engine;
    engine.reset();  // first: two of them may not fit
    use = wanted;
    room = rounded_up(tokens, wanted);
    using train::Purpose;
    const Purpose purpose = wanted == Use::generation  ? Purpose::generation
                            : wanted == Use::gradients ? Purpose::gradients
                                                       : Purpose::evaluation;
    train::EngineOptions engine_options = train::engine_options(purpose, machine, {.tokens = room, .document = room});
    if (wanted == Use::logits) engine_options.logit_rows = room;
    Console console(options.quiet);
    engine = train::load_engine(folder, config, engine_options, console, options.adapter);
    // What it says later, it says to nobody: the console is gone by then.
    engine->exec().set_messages([](backend::Message, std::string_view) {});
    return *engine;
  }
};

Model::Model(const std::string& folder) : Model(folder, Options{}) {}

Model::Model(const std::string& folder, const Options& options)
    : parts_(std::make_unique<Parts>(Parts{.folder = folder,
                                           .options = options,
                                           .config = model::load_config(folder),
                                           .machine = train::resolve_machine(options.device, options.dtype)})) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

const std::string& Model::folder() const { return parts_->folder; }
std::int64_t Model::vocab_size() const { return parts_->config.vocab; }
std::int64_t Model::parameter_count() const { return parts_->config.parameter_count(); }

std::vector<std::int32_t> Model::stop_tokens() const {
  if (!parts_->tokenizer) {
    const std::string& adapter = parts_->options.adapter;
    const bool own = !adapter.empty() && io::exists(std::filesystem::path(adapter) / "tokenizer.json");
    parts_->tokenizer = data::Tokenizer::load(own ? adapter : parts_->folder);
  }
  return data::stop_tokens(parts_->folder, *parts_->tokenizer);
}

std::vector<std::int32_t> Model::generate(const std::vector<std::int32_t>& prompt, const Sampling& sampling) {
  check_tokens(prompt, vocab_size(), "prompt");
  if (sampling.max_new_tokens < 1) user_error("max_new_tokens: expected at least 1, got {}", sampling.max_new_tokens);
  const float temperature = sampling.temperature;
  if (temperature != 0.0f && !(temperature >= 1e-6f && temperature <= 1e6f)) {
    user_error("temperature: expected 0 or a number from 1e-6 to 1e6, got {}", temperature);
  }
  if (!(sampling.top_p > 0.0f && sampling.top_p <= 1.0f)) {
    user_error("top_p: expected a number above 0 and at most 1, got {}", sampling.top_p);
  }
  const SignalShield shield;
  struct Enough {};
  std::vector<std::int32_t> made;
  train::GenerateOptions options{.count = sampling.max_new_tokens,
                                 .stops = sampling.stops,
                                 .drawing = {.temperature = temperature,
                                             .top_p = sampling.top_p,
                                             .seed = sampling.seed,
                                             .first_sequence = sampling.sequence}};
  options.made = [&](std::size_t, std::int32_t id) {
    made.push_back(id);
    if (sampling.made && !sampling.made(id)) throw Enough{};
  };
  train::Engine& engine =
      parts_->ready(Parts::Use::generation, static_cast<std::int64_t>(prompt.size()) + sampling.max_new_tokens);
  try {
    train::generate(engine, prompt, options);
  } catch (const Enough&) {
    // What was made is what was wanted.
  }
  return made;
}

std::vector<float> Model::logits(const std::vector<std::int32_t>& tokens) {
  check_tokens(tokens, vocab_size(), "tokens");
  const SignalShield shield;
  train::Engine& engine = parts_->ready(Parts::Use::logits, static_cast<std::int64_t>(tokens.size()));
  const std::vector<Document> alone{{.input_ids = tokens, .labels = tokens}};
  std::vector<std::int32_t> rows(tokens.size());
  std::iota(rows.begin(), rows.end(), 0);
  return engine.decoder().logits(engine.exec(), pack(alone), rows);
}

Model::Gradients Model::gradients(const std::vector<TrainingDocument>& documents) {
  if (!parts_->options.adapter.empty()) {
    user_error("gradients: of an adapter only `inlay grad --adapter` gives them; load the model without one");
  }
  std::vector<Document> ours;
  std::int64_t tokens = 0;
  for (const TrainingDocument& document : documents) {
    const std::string what = "document " + std::to_string(ours.size());
    check_tokens(document.input_ids, vocab_size(), what);
    if (document.labels.size() != document.input_ids.size()) {
      user_error("{}: {} labels for {} tokens", what, document.labels.size(), document.input_ids.size());
    }
    if (!document.weights.empty() && document.weights.size() != document.input_ids.size()) {
      user_error("{}: {} weights for {} tokens", what, document.weights.size(), document.input_ids.size());
    }
    for (const std::int32_t label : document.labels) {
      if (label != ignore_label) check_tokens({label}, vocab_size(), what + ": labels");
    }
    ours.push_back({document.input_ids, document.labels, document.weights});
    tokens += static_cast<std::int64_t>(document.input_ids.size());
  }
  const PackedBatch batch = pack(ours);
  if (batch.valid_count() == 0) user_error("gradients: no token of these documents is to be learned");
  const SignalShield shield;
  train::Engine& engine = parts_->ready(Parts::Use::gradients, tokens);
  const train::StepResult step = engine.gradients({batch});
  Gradients result{.loss = engine.decoder().read_loss(engine.exec()).loss, .labels = step.valid};
  for (train::NamedTensor& tensor : train::gradients_of(engine)) {
    result.tensors.push_back({std::move(tensor.spec.name), std::move(tensor.spec.shape), std::move(tensor.values)});
  }
  return result;
}

}  // namespace inlay
