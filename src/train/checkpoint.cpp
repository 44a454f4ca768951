#include "train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "io/json.h"
#include "io/manifest.h"
#include "io/paths.h"
#include "io/safetensors_writer.h"
#include "model/families/family.h"
#include "train/adapters.h"
#include "train/model_folder.h"

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

io::FileSum write_optimizer(Engine& engine, const fs::path& path) {
  std::map<std::string, std::pair<View, Exec*>> states;
  std::vector<io::TensorSpec> specs;
  engine.optimizer().for_each_state(engine.exec(), [&](const std::string& name, View tensor, Exec& home) {
    states[name] = {tensor, &home};
    specs.push_back({name, tensor.dtype(), tensor.shape().extents()});
  });
  io::widest_first(specs);
  io::SafetensorsWriter writer(path, specs, {{"format", "inlay"}});
  std::vector<std::byte> host;
  for (const io::TensorSpec& spec : specs) {
    const auto& [tensor, home] = states.at(spec.name);
    host.resize(tensor.bytes());
    home->download(host.data(), tensor);
    writer.write(spec.name, host);
  }
  writer.finish();
  return writer.sum();
}

io::FileSums save_weights(Engine& engine, const ModelOrigin& origin, const fs::path& folder) {
  return write_model(
      {.base = origin.base, .folder = folder}, engine.decoder().config(), engine.decoder().parameters(),
      [](const weights::Parameter& p) { return p.trainable || (p.owner != nullptr && p.owner->changes()); },
      [&](const weights::Parameter& p, const weights::Part& part, DType dtype, const io::Checkpoint& base,
          const PieceSink& sink) { model::read_part(engine.exec(), p, part, dtype, &base, sink); });
}

}  // namespace

io::FileSums save_model(Engine& engine, const ModelOrigin& origin, const fs::path& folder) {
  io::create_folders(folder);
  engine.optimizer().settle();
  io::FileSums written =
      origin.adapter != nullptr ? save_adapter(engine, *origin.adapter, folder) : save_weights(engine, origin, folder);
  if (!origin.chat_template.empty()) {
    written["chat_template.jinja"] =
        io::write_file_atomic(folder / "chat_template.jinja", io::MappedFile(origin.chat_template).bytes());
  }
  copy_companions(origin.base, folder, origin.adapter != nullptr ? Companions::of_adapter : Companions::of_model,
                  written);
  return written;
}

fs::path save_checkpoint(Engine& engine, const ModelOrigin& origin, const fs::path& output_dir,
                         const TrainerState& state) {
  const fs::path target = output_dir / (std::string(prefix) + std::to_string(state.step));
  const fs::path partial = hidden(target, partial_mark);
  std::error_code ignored;
  fs::remove_all(partial, ignored);
  try {
    io::FileSums files = save_model(engine, origin, partial);
    files[optimizer_file] = write_optimizer(engine, partial / optimizer_file);
    const nlohmann::json json = {{"version", state_version},
                                 {"step", state.step},
                                 {"epoch", state.epoch},
                                 {"batch", state.batch},
                                 {"tokens", state.tokens},
                                 {"seconds", state.seconds},
                                 {"loss", state.loss},
                                 {"evaluation_due", state.evaluation_due},
                                 {"data_fingerprint", state.data_fingerprint},
                                 {"basis_fingerprint", state.basis_fingerprint},
                                 {"batching", state.batching},
                                 {"base_fingerprint", state.base_fingerprint},
                                 {"compute", state.compute},
                                 {"adapter", state.adapter}};
    files[state_file] = io::write_file_atomic(partial / state_file, json.dump(2) + "\n");
    io::write_manifest(partial / manifest_file, files);
  } catch (...) {
    fs::remove_all(partial, ignored);  // the disk may be full of it; earlier checkpoints stay
    throw;
  }
  // One of the same step gives way only when this one is whole.
  const fs::path before = hidden(target, before_mark);
  if (io::exists(target)) io::rename(target, before);
  io::rename(partial, target);
  io::sync_folder(output_dir);
  io::remove_all(before);
  return target;
}

bool verify_checkpoint(const fs::path& folder, const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  if (!io::exists(folder / manifest_file)) {
    if (io::Json::read(folder / state_file).find_integer("version").value_or(1) < 2) return false;
    throw io::DamagedFile(fmt::format("{}: is missing", (folder / manifest_file).string()));
  }
  const io::FileSums files = io::read_manifest(folder / manifest_file);
  for (const char* name : {state_file, optimizer_file}) {
    if (!files.contains(name)) {
      throw io::DamagedFile(fmt::format("{}: does not list {}", (folder / manifest_file).string(), name));
    }
  }
  io::verify_files(folder, files, progress);
  return true;
}

TrainerState read_trainer_state(const fs::path& folder) {
  const io::Json json = io::Json::read(folder / state_file);
  TrainerState state;
  state.step = json.integer("step", io::non_negative_integer);
  state.epoch = json.integer("epoch", io::non_negative_integer);
  state.batch = json.integer("batch", io::non_negative_integer);
  state.tokens = json.integer("tokens", io::non_negative_integer);
  state.seconds = json.number("seconds", io::non_negative_number);
  state.loss = json.number("loss");
  state.evaluation_due = json.find_boolean("evaluation_due").value_or(false);
  state.data_fingerprint = json.string("data_fingerprint");
  state.basis_fingerprint = json.find_string("basis_fingerprint").value_or("");
  state.batching = json.string("batching");
  state.base_fingerprint = json.string("base_fingerprint");
  state.compute = json.string("compute");
  state.adapter = json.find_string("adapter").value_or("");
  return state;
}

void load_checkpoint(Engine& engine, const fs::path& folder) {
  const io::SafetensorsFile file(folder / optimizer_file);
  // What a run has learned must not be lost because less trains now.
  const std::vector<std::string> names = file.names();
  std::set<std::string> left(names.begin(), names.end());
  engine.optimizer().for_each_state(engine.exec(), [&](const std::string& name, View, Exec&) { left.erase(name); });
  if (!left.empty()) {
    user_error(
        "{}: holds {}, which does not train in this run (and {} more such tensors); resume with the run's own freeze "
        "and osft keys",
        file.path().string(), *left.begin(), left.size() - 1);
  }
  engine.optimizer().for_each_state(engine.exec(), [&](const std::string& name, View tensor, Exec& home) {
    const ConstView saved = file.tensor(name);
    if (saved.dtype() != tensor.dtype() || saved.shape() != tensor.shape()) {
      user_error("{}: {} is {} {}, but this run has {} {}; resume with the run's own dtype and optimizer_state",
                 file.path().string(), name, name_of(saved.dtype()), saved.shape().str(), name_of(tensor.dtype()),
                 tensor.shape().str());
    }
    home.upload(tensor, saved.data());
    file.drop(name);
  });
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

void remove_old_checkpoints(const fs::path& output_dir, std::int64_t keep) {
  if (keep <= 0) return;
  auto found = checkpoints_in(output_dir);
  while (static_cast<std::int64_t>(found.size()) > keep) {
    remove_checkpoint(found.begin()->second);
    found.erase(found.begin());
  }
}

void tidy_checkpoints(const fs::path& output_dir) {
  for (const fs::path& entry : io::entries_of(output_dir)) {
    const std::string name = entry.filename().string();
    if (!name.starts_with("." + std::string(prefix))) continue;
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
