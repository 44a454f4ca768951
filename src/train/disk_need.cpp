#include "train/disk_need.h"

#include <algorithm>

#include "core/error.h"
#include "core/text.h"
#include "io/free_space.h"
#include "options/train_options.h"
#include "train/adapters.h"
#include "train/model_folder.h"
#include "train/optimizer_file.h"
#include "train/session.h"

namespace inlay::train {

namespace {

// Into the need: how many checkpoints are still to come at a time.
void count_checkpoints(DiskNeed& need, const options::TrainOptions& o, const Ahead& ahead) {
  const bool best_alone = o.save_strategy == options::When::best;
  const bool open = best_alone ? o.eval_share > 0 || o.evals_per_epoch > 0 || o.eval_strategy == options::When::epoch
                               : o.save_share > 0 || o.saves_per_epoch > 0 || o.save_strategy == options::When::epoch;
  const std::int64_t every = best_alone ? o.eval_steps : o.save_steps;
  const auto until = [&](std::int64_t step) {  // the last evaluation may be the best, wherever it falls
    return every <= 0 ? 0 : (step + (best_alone ? every - 1 : 0)) / every;
  };
  const std::int64_t limit = o.save_total_limit;
  std::int64_t most = until(ahead.steps) - until(ahead.done);
  if (open || (ahead.steps == 0 && every > 0)) {
    most = limit > 0 ? limit + 1 : 1;
    need.at_least = limit == 0;
  }
  if (limit > 0 && most > 0) most = std::clamp<std::int64_t>(limit + 1 - ahead.checkpoints, 1, most);
  // The best so far stays until a better one is there.
  if (o.loads_best() && !best_alone) most = std::max<std::int64_t>(most + 1, 2);
  need.checkpoints = most;
}

std::uint64_t adapter_bytes(Engine& engine, const adapter::AdapterTargets& targets) {
  std::int64_t numbers = 0;
  for (weights::Weight* weight : engine.decoder().weights()) {
    weight->for_each_own([&](const weights::Parameter& p) { numbers += p.size(); });
  }
  if (engine.options().saves_start) numbers *= 2;
  for (const adapter::SavedPart& part : targets.saved) numbers += part.shape.size() * (part.is_tied_head ? 2 : 1);
  return sizeof(float) * static_cast<std::uint64_t>(numbers);
}

}  // namespace

DiskNeed disk_need(const options::TrainOptions& o, const model::ModelConfig& config, const EngineOptions& options,
                   const Ahead& ahead) {
  EngineOptions alone = options;  // what is written is the same, whatever processes share the writing
  alone.mesh = {};
  alone.staged = Staged::nothing;
  Engine engine(backend::Exec::planner(alone.device), config, alone);
  model::ModelParameters& parameters = engine.decoder().parameters();
  const std::optional<io::Checkpoint> base = readable_weights(o.base_model);
  DiskNeed need;
  count_checkpoints(need, o, ahead);
  std::set<std::string> in_model;
  if (const auto adapter = adapter_of(o, config)) {
    need.model = adapter_bytes(engine, adapter->targets);
  } else if (base) {
    need.model = written_bytes({.base = o.base_model}, config, parameters,
                               [](const weights::Parameter& p) { return p.trainable || is_completed_by_owner(p); });
    in_model = states_in_model(parameters, [&](const weights::Part& part) { return saved_dtype(*base, part); });
  } else {
    need.model = static_cast<std::uint64_t>(config.parameter_count()) * size_of(config.dtype);
    in_model = states_in_model(parameters, [&](const weights::Part&) { return std::optional(config.dtype); });
  }
  if (o.save_only_model) return need;
  engine.optimizer().for_each_state(engine.exec(), true, [&](const StateTensor& state) {
    if (in_model.contains(state.name)) return;
    need.state += static_cast<std::uint64_t>(state.whole.size()) * size_of(state.share.dtype());
  });
  return need;
}

std::string text_of(const DiskNeed& need) {
  if (need.checkpoints == 0) return fmt::format("the result: {}", format_bytes(need.model));
  const std::string parts =
      need.state == 0 ? "" : fmt::format(" (model {}, state {})", format_bytes(need.model), format_bytes(need.state));
  return fmt::format("{}{} of {}{} at a time, and the result: {}", need.at_least ? "at least " : "",
                     counted(need.checkpoints, "checkpoint"), format_bytes(need.checkpoint()), parts,
                     format_bytes(need.all()));
}

void require_room(const DiskNeed& need, const options::TrainOptions& options) {
  const std::optional<std::uint64_t> free = io::free_space(options.output_dir);
  if (!free || *free >= need.least()) return;
  user_error(
      "output_dir: {} is needed on the disk for {}, but only {} is free in {}; make room, or choose another "
      "output_dir{}",
      format_bytes(need.least()), need.checkpoints > 0 ? "a checkpoint" : "the result", format_bytes(*free),
      options.output_dir, need.state > 0 && *free >= need.model ? ", or save_only_model: true" : "");
}

void check_room(const DiskNeed& need, const options::TrainOptions& options, Console& console) {
  require_room(need, options);
  const std::optional<std::uint64_t> free = io::free_space(options.output_dir);
  if (!free || *free >= need.all()) return;
  console.line(fmt::format("the disk may become full: {}, but only {} is free in {}{}", text_of(need),
                           format_bytes(*free), options.output_dir,
                           options.save_total_limit == 0 ? "; save_total_limit limits their number" : ""));
}

}  // namespace inlay::train
