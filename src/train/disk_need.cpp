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

namespace fs = std::filesystem;

namespace {

std::int64_t most_checkpoints(const options::TrainOptions& o, std::int64_t steps) {
  const bool best_alone = o.save_strategy == options::When::best;
  const std::int64_t every = best_alone ? o.eval_steps : o.save_steps;
  std::int64_t count = every <= 0 ? 0 : steps == 0 ? std::max<std::int64_t>(o.save_total_limit, 1) + 1 : steps / every;
  if (o.save_total_limit > 0) count = std::min(count, o.save_total_limit + 1);
  // The best so far stays until a better one is there.
  if (o.loads_best() && !best_alone) count = std::max<std::int64_t>(count + 1, 2);
  return count;
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
                   std::int64_t steps) {
  EngineOptions alone = options;  // what is written is the same, whatever processes share the writing
  alone.mesh = {};
  alone.staged = Staged::nothing;
  Engine engine(backend::Exec::planner(alone.device), config, alone);
  model::ModelParameters& parameters = engine.decoder().parameters();
  const std::optional<io::Checkpoint> base = readable_weights(o.base_model);
  DiskNeed need{.checkpoints = most_checkpoints(o, steps)};
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
  return fmt::format("{} of {}{} at a time, and the result: {}", counted(need.checkpoints, "checkpoint"),
                     format_bytes(need.checkpoint()), parts, format_bytes(need.all()));
}

void check_room(const DiskNeed& need, const fs::path& output_dir, Console& console) {
  const std::optional<std::uint64_t> free = io::free_space(output_dir);
  if (!free || *free >= need.all()) return;
  const std::string only = fmt::format("{} is free in {}", format_bytes(*free), output_dir.string());
  if (*free < need.least()) {
    user_error("output_dir: {} is needed on the disk for {}, but only {}; make room, or choose another output_dir{}",
               format_bytes(need.least()), need.checkpoints > 0 ? "a checkpoint" : "the result", only,
               need.state > 0 ? ", or save_only_model: true" : "");
  }
  console.line(fmt::format("the disk may become full: {}, but only {}; save_total_limit bounds how many there are",
                           text_of(need), only));
}

}  // namespace inlay::train
