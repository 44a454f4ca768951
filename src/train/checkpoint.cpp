#include "train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <map>

#include <nlohmann/json.hpp>

#include "core/interrupt.h"
#include "io/json.h"
#include "io/manifest.h"
#include "io/paths.h"
#include "train/adapters.h"
#include "train/model_folder.h"
#include "train/optimizer_file.h"
#include "train/staged_parts.h"

namespace inlay::train {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view prefix = "checkpoint-";
constexpr const char* state_file = "trainer_state.json";
constexpr const char* optimizer_file = "optimizer.safetensors";
constexpr const char* manifest_file = "checkpoint.json";
// Of trainer_state.json. From 2 on a checkpoint has a manifest.
constexpr std::int64_t state_version = 2;

std::optional<std::int64_t> step_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  if (!name.starts_with(prefix)) return std::nullopt;
  std::int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [at, error] = std::from_chars(name.data() + prefix.size(), end, step);
  if (error != std::errc() || at != end) return std::nullopt;
  return step;
}

// Names under which a checkpoint is not one: in the making, giving way to another of the same step, being removed.
constexpr std::string_view partial_mark = ".partial", before_mark = ".before", removed_mark = ".removed";

fs::path hidden(const fs::path& checkpoint, std::string_view mark) {
  return checkpoint.parent_path() / fmt::format(".{}{}", checkpoint.filename().string(), mark);
}

SavedFiles save_weights(Communicator& ranks, Engine& engine, const ModelOrigin& origin, const fs::path& folder,
                        const ReadPart& read) {
  return write_model(
      ranks, {.base = origin.base, .folder = folder}, engine.decoder().config(), engine.decoder().parameters(),
      [](const weights::Parameter& p) { return p.trainable || is_completed_by_owner(p); }, read);
}

ReadPart from_engine(Engine& engine) {
  return [&engine](const weights::Parameter& p, const weights::Part& part, DType dtype, const io::Checkpoint& base,
                   const PieceSink& sink) { model::read_part(engine.exec(), p, part, dtype, &base, sink); };
}

// Of the files that this run writes: they have the base model's dtypes.
std::set<std::string> left_out(Engine& engine, const ModelOrigin& origin) {
  if (origin.adapter != nullptr) return {};
  const io::Checkpoint base(origin.base);
  return states_in_model(engine.decoder().parameters(),
                         [&](const weights::Part& part) { return saved_dtype(base, part); });
}

nlohmann::json to_json(const Evaluated& evaluated) {
  nlohmann::json json = {{"step", evaluated.step}, {"loss", evaluated.loss}, {"accuracy", evaluated.accuracy}};
  for (const auto& [name, value] : evaluated.metrics) json["metrics"].push_back({name, value});  // in their order
  return json;
}
nlohmann::json to_json(const Best& best) {
  nlohmann::json json = to_json(best.at);
  json["leak"] = best.leak;
  json["not_improved"] = best.not_improved;
  return json;
}

Evaluated read_evaluated(const io::Json& json) {
  Evaluated evaluated{.step = json.integer("step", {.min = -1}),
                      .loss = json.number("loss"),
                      .accuracy = json.number("accuracy", io::non_negative_number)};
  for (const io::Json& metric : json.find_array("metrics").value_or(std::vector<io::Json>{})) {
    const std::vector<io::Json> pair = metric.elements();
    if (pair.size() != 2) metric.fail("expected a name and a number");
    evaluated.metrics.emplace_back(pair[0].as_string(), pair[1].as_number());
  }
  return evaluated;
}

io::FileSum write_state(const fs::path& file, const TrainerState& state) {
  const nlohmann::json json = {{"version", state_version},
                               {"run", state.run},
                               {"began", state.began},
                               {"step", state.step},
                               {"epoch", state.epoch},
                               {"batch", state.batch},
                               {"tokens", state.tokens},
                               {"seconds", state.seconds},
                               {"loss", state.loss},
                               {"evaluation_due", state.evaluation_due},
                               {"evaluated", to_json(state.evaluated)},
                               {"best", to_json(state.best)},
                               {"data_fingerprint", state.data_fingerprint},
                               {"basis_fingerprint", state.basis_fingerprint},
                               {"batching", state.batching},
                               {"base_fingerprint", state.base_fingerprint},
                               {"compute", state.compute},
                               {"objective", state.objective.value_or("")},
                               {"adapter", state.adapter},
                               {"adapter_targets", state.adapter_targets}};
  return io::write_file_atomic(file, json.dump(2) + "\n");
}

SavedFiles save_model(Communicator& ranks, const ModelOrigin& origin, const fs::path& folder,
                      const std::function<SavedFiles()>& write) {
  by_leader(ranks, "making a folder", [&] { io::create_folders(folder); });
  SavedFiles written = write();
  by_leader(ranks, "files beside the weights", [&] {
    if (!origin.chat_template.empty()) {
      written.sums["chat_template.jinja"] =
          io::write_file_atomic(folder / "chat_template.jinja", std::string_view(origin.chat_template));
    }
    copy_companions(origin.base, folder, origin.adapter != nullptr ? Companions::of_adapter : Companions::of_model,
                    written.sums);
  });
  return written;
}

}  // namespace

SavedFiles save_model(Communicator& ranks, Engine& engine, const ModelOrigin& origin, const fs::path& folder) {
  engine.optimizer().settle();
  return save_model(ranks, origin, folder, [&] {
    return origin.adapter != nullptr ? save_adapter(ranks, engine, *origin.adapter, folder)
                                     : save_weights(ranks, engine, origin, folder, from_engine(engine));
  });
}

fs::path checkpoint_folder(const fs::path& output_dir, std::int64_t step) {
  return output_dir / (std::string(prefix) + std::to_string(step));
}

bool is_resumable(const fs::path& checkpoint) { return io::exists(checkpoint / optimizer_file); }

void take_model(const fs::path& checkpoint, const fs::path& folder) {
  for (const fs::path& file : io::entries_of(checkpoint)) {
    const std::string name = file.filename().string();
    if (name == state_file || name == optimizer_file || name == manifest_file) continue;
    io::link_or_copy(file, folder / name);
  }
  io::sync_folder(folder);
}

namespace {

// Where a checkpoint's files come from.
struct Source {
  std::function<SavedFiles(const fs::path& folder)> model;
  std::function<SavedFiles(const fs::path& file)> optimizer;
};

fs::path write_checkpoint(Communicator& ranks, const Source& source, const fs::path& output_dir,
                          const TrainerState& state, Contents contents) {
  const fs::path target = checkpoint_folder(output_dir, state.step);
  const fs::path partial = hidden(target, partial_mark);
  std::error_code ignored;
  if (ranks.leads()) fs::remove_all(partial, ignored);
  try {
    SavedFiles files = source.model(partial);
    if (contents == Contents::all) files.add(source.optimizer(partial / optimizer_file));
    io::FileSums sums = sums_of(ranks, partial, files);
    by_leader(ranks, "the checkpoint's state", [&] {
      sums[state_file] = write_state(partial / state_file, state);
      io::write_manifest(partial / manifest_file, sums);
    });
  } catch (...) {
    if (ranks.leads()) fs::remove_all(partial, ignored);  // the disk may be full of it; earlier checkpoints stay
    throw;
  }
  by_leader(ranks, "the checkpoint's name", [&] {
    // One of the same step gives way only when this one is whole.
    const fs::path before = hidden(target, before_mark);
    if (io::exists(target)) io::rename(target, before);
    io::rename(partial, target);
    io::sync_folder(output_dir);
    io::remove_all(before);
  });
  return target;
}

}  // namespace

fs::path save_checkpoint(Communicator& ranks, Engine& engine, const ModelOrigin& origin, const fs::path& output_dir,
                         const TrainerState& state, Contents contents) {
  return write_checkpoint(ranks,
                          {.model = [&](const fs::path& folder) { return save_model(ranks, engine, origin, folder); },
                           .optimizer =
                               [&](const fs::path& file) {
                                 return write_optimizer(ranks, engine.optimizer(), engine.exec(), file,
                                                        left_out(engine, origin));
                               }},
                          output_dir, state, contents);
}

std::function<void(Communicator& ranks)> stage_checkpoint(Engine& engine, const ModelOrigin& origin,
                                                          const fs::path& output_dir, const TrainerState& state,
                                                          Contents contents) {
  INLAY_ASSERT(engine.staging() != nullptr, "nothing to stage into");
  engine.optimizer().settle();
  engine.staging()->capture(engine.exec(), engine.optimizer());
  auto parts = std::make_shared<StagedParts>(engine, origin.base);
  adapter::AdapterSource numbers;
  if (origin.adapter != nullptr) {
    numbers = staged_adapter(engine, origin.adapter->targets,
                             [parts](const weights::Parameter& p, const weights::Part& part, DType dtype,
                                     const PieceSink& sink) { parts->read(p, part, dtype, nullptr, sink); });
  }
  const std::set<std::string> in_model = left_out(engine, origin);
  return [&engine, &origin, parts, numbers, in_model, output_dir, state, contents](Communicator& ranks) {
    engine.staging()->wait();
    const ReadPart read = [&](const weights::Parameter& p, const weights::Part& part, DType dtype,
                              const io::Checkpoint& base,
                              const PieceSink& sink) { parts->read(p, part, dtype, &base, sink); };
    const Source source{
        .model =
            [&](const fs::path& folder) {
              return save_model(ranks, origin, folder, [&] {
                return origin.adapter != nullptr ? save_adapter(ranks, engine, *origin.adapter, folder, numbers)
                                                 : save_weights(ranks, engine, origin, folder, read);
              });
            },
        .optimizer = [&](const fs::path& file) { return write_optimizer(ranks, *engine.staging(), file, in_model); }};
    write_checkpoint(ranks, source, output_dir, state, contents);
  };
}

namespace {

// What the manifest promises; nothing where an earlier version wrote none.
std::optional<io::FileSums> promised_files(const fs::path& folder) {
  if (!io::exists(folder / manifest_file)) {
    if (io::Json::read(folder / state_file).find_integer("version").value_or(1) < 2) return std::nullopt;
    throw io::DamagedFile(fmt::format("{}: is missing", (folder / manifest_file).string()));
  }
  io::FileSums files = io::read_manifest(folder / manifest_file);
  for (const char* name : {state_file, optimizer_file}) {  // only those that a run can go on from are verified
    if (!files.contains(name)) {
      throw io::DamagedFile(fmt::format("{}: does not list {}", (folder / manifest_file).string(), name));
    }
  }
  return files;
}

}  // namespace

bool verify_checkpoint(Communicator& ranks, const fs::path& folder,
                       const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  bool verified = true;
  together_as<io::DamagedFile, Interrupted>(ranks, "verifying a checkpoint", [&] {
    const auto files = promised_files(folder);
    verified = files.has_value();
    if (!files) return;
    // By what was written: a file that is missing or cut has no size to go by.
    Dealer dealer(ranks);
    io::FileSums mine;
    for (const auto& [name, sum] : *files) {
      if (dealer.mine(sum.bytes)) mine[name] = sum;
    }
    io::verify_files(folder, mine, progress);
  });
  return verified;
}

TrainerState read_trainer_state(const fs::path& folder) {
  const io::Json json = io::Json::read(folder / state_file);
  TrainerState state;
  state.run = json.find_string("run").value_or("");
  state.began = json.find_string("began").value_or("");
  state.step = json.integer("step", io::non_negative_integer);
  state.epoch = json.integer("epoch", io::non_negative_integer);
  state.batch = json.integer("batch", io::non_negative_integer);
  state.tokens = json.integer("tokens", io::non_negative_integer);
  state.seconds = json.number("seconds", io::non_negative_number);
  state.loss = json.number("loss");
  state.evaluation_due = json.find_boolean("evaluation_due").value_or(false);
  if (json.has("evaluated")) state.evaluated = read_evaluated(json.object("evaluated"));
  if (json.has("best")) {
    const io::Json best = json.object("best");
    state.best = {.at = read_evaluated(best),
                  .leak = best.number("leak", io::non_negative_number),
                  .not_improved = best.integer("not_improved", io::non_negative_integer)};
  }
  state.data_fingerprint = json.string("data_fingerprint");
  state.basis_fingerprint = json.find_string("basis_fingerprint").value_or("");
  state.batching = json.string("batching");
  state.base_fingerprint = json.string("base_fingerprint");
  state.compute = json.string("compute");
  state.objective = json.find_string("objective");
  state.adapter = json.find_string("adapter").value_or("");
  state.adapter_targets = json.find_string("adapter_targets").value_or("");
  return state;
}

void load_checkpoint(Communicator& ranks, Engine& engine, const fs::path& folder) {
  read_optimizer(ranks, engine.optimizer(), engine.exec(), engine.decoder().parameters(), folder / optimizer_file);
  engine.decoder().update_weights(engine.exec());  // those that are made of what was just read
}

std::map<std::int64_t, fs::path> checkpoints_in(const fs::path& output_dir) {
  std::map<std::int64_t, fs::path> found;
  if (!io::is_folder(output_dir)) return found;
  for (const fs::path& entry : io::entries_of(output_dir)) {
    const auto step = step_of(entry);
    if (step && io::exists(entry / state_file)) found[*step] = entry;
  }
  return found;
}

std::optional<fs::path> latest_checkpoint(const fs::path& output_dir, std::int64_t below) {
  const auto found = checkpoints_in(output_dir);
  const auto at = found.lower_bound(below);
  if (at == found.begin()) return std::nullopt;
  return std::prev(at)->second;
}

void remove_checkpoint(const fs::path& folder) {
  const fs::path removed = hidden(folder, removed_mark);
  io::remove_all(removed);
  io::rename(folder, removed);
  io::remove_all(removed);
}

void remove_old_checkpoints(const fs::path& output_dir, std::int64_t keep, std::int64_t best) {
  if (keep <= 0) return;
  const auto found = checkpoints_in(output_dir);
  auto left = static_cast<std::int64_t>(found.size());
  for (const auto& [step, folder] : found) {
    if (left <= keep || step == found.rbegin()->first) return;
    if (step == best) continue;
    remove_checkpoint(folder);
    --left;
  }
}

void tidy_checkpoints(const fs::path& output_dir) {
  for (const fs::path& entry : io::entries_of(output_dir)) {
    const std::string name = entry.filename().string();
    if (!name.starts_with('.') || !std::string_view(name).substr(1).starts_with(prefix)) continue;
    for (const std::string_view mark : {partial_mark, before_mark, removed_mark}) {
      if (!name.ends_with(mark)) continue;
      const fs::path checkpoint = output_dir / name.substr(1, name.size() - 1 - mark.size());
      if (!step_of(checkpoint)) continue;
      if (mark == before_mark && !io::exists(checkpoint)) {
        io::rename(entry, checkpoint);  // what was to take its place is not there
      } else {
        io::remove_all(entry);
      }
    }
  }
}

}  // namespace inlay::train
