#include "train/optimizer_file.h"

#include <algorithm>
#include <map>

#include "adapter/options.h"
#include "io/safetensors.h"
#include "train/model_folder.h"

namespace inlay::train {

namespace {

// Rows of a state that this rank writes.
struct Rows {
  std::int64_t first = 0;
  std::span<const std::byte> bytes;  // none: others write it
};
using RowsOf = std::function<Rows(const std::string& state)>;

// The metadata are what tells the file from a model's.
SavedFiles write_states(Communicator& ranks, const std::filesystem::path& path, std::vector<io::TensorSpec> specs,
                        const RowsOf& rows_of) {
  io::widest_first(specs);
  std::optional<io::SafetensorsWriter> writer;
  parallel::together(ranks, "optimizer.safetensors", [&] {
    writer.emplace(path, specs, io::SafetensorsMetadata{{"format", "inlay"}}, writers_of(ranks));
  });
  return write_together(ranks, *writer, [&] {
    for (const io::TensorSpec& spec : specs) {
      const Rows rows = rows_of(spec.name);
      if (rows.bytes.empty()) continue;
      const std::uint64_t row_bytes = spec.bytes() / static_cast<std::uint64_t>(spec.shape[0]);
      writer->write_part(spec.name, static_cast<std::uint64_t>(rows.first) * row_bytes, rows.bytes);
    }
  });
}

}  // namespace

std::set<std::string> states_in_model(model::ModelParameters& parameters, const SavedDtype& saved) {
  std::set<std::string> names;
  parameters.for_each([&](weights::Parameter& p) {
    if (!p.trainable || p.parts.empty()) return;
    const auto all_are = [&](DType dtype) {
      return std::ranges::all_of(p.parts, [&](const weights::Part& part) { return saved(part) == dtype; });
    };
    if (all_are(p.my_value().dtype())) names.insert(value_state(p));
    if (!p.low.absent() && all_are(DType::f32)) names.insert({value_state(p), low_state(p)});
  });
  return names;
}

SavedFiles write_optimizer(Communicator& ranks, Optimizer& optimizer, Exec& exec, const std::filesystem::path& path,
                           const std::set<std::string>& left_out) {
  std::map<std::string, StateTensor> states;
  std::vector<io::TensorSpec> specs;
  optimizer.for_each_state(exec, ranks.leads(), [&](const StateTensor& state) {
    if (left_out.contains(state.name)) return;
    states.emplace(state.name, state);
    specs.push_back({state.name, state.share.dtype(), state.whole.extents()});
  });
  std::vector<std::byte> host;
  return write_states(ranks, path, std::move(specs), [&](const std::string& name) -> Rows {
    const StateTensor& state = states.at(name);
    if (!state.mine_to_write) return {};
    host.resize(state.share.bytes());
    state.home.download(host.data(), state.share);
    return {state.first_row, host};
  });
}

SavedFiles write_optimizer(Communicator& ranks, const Staging& staging, const std::filesystem::path& path,
                           const std::set<std::string>& left_out) {
  std::map<std::string, const Staging::Entry*> entries;
  std::vector<io::TensorSpec> specs;
  for (const Staging::Entry& entry : staging.entries()) {
    if (left_out.contains(entry.name)) continue;
    entries[entry.name] = &entry;
    specs.push_back({entry.name, entry.dtype, entry.whole.extents()});
  }
  return write_states(ranks, path, std::move(specs), [&](const std::string& name) -> Rows {
    const Staging::Entry& entry = *entries.at(name);
    if (!entry.mine_to_write) return {};
    return {entry.first_row, {static_cast<const std::byte*>(entry.bytes.data()), entry.bytes.bytes()}};
  });
}

namespace {

bool is_adapters(const std::string& state) { return state.find(".lora_") != state.npos; }

// Of a run that the file's is not. Other targets also show in shapes, since parts of one matrix share an A.
const char* deciding_keys(const std::vector<std::string>& states) {
  return std::ranges::any_of(states, is_adapters) ? adapter::target_keys : "freeze, osft and optimizer keys";
}

// What a run has learned must not be lost because less trains now.
void check_all_train(const io::SafetensorsFile& file, Optimizer& optimizer, Exec& exec, bool leads) {
  const std::vector<std::string> names = file.names();
  std::set<std::string> left(names.begin(), names.end());
  optimizer.for_each_state(exec, leads, [&](const StateTensor& state) { left.erase(state.name); });
  if (left.empty()) return;
  user_error("{}: holds {}, which does not train in this run (and {} more such tensors); resume with the run's own {}",
             file.path().string(), *left.begin(), left.size() - 1, deciding_keys(names));
}

ConstView saved_state(const io::SafetensorsFile& file, const StateTensor& state) {
  if (file.find(state.name) == nullptr) {
    user_error("{}: lacks {}, which trains in this run; resume with the run's own {}", file.path().string(), state.name,
               deciding_keys(file.names()));
  }
  const ConstView saved = file.tensor(state.name);
  const bool same_dtype = saved.dtype() == state.share.dtype();
  if (same_dtype && saved.shape() == state.whole) return saved;
  user_error("{}: {} is {} {}, but this run has {} {}; resume with the run's own {}", file.path().string(), state.name,
             name_of(saved.dtype()), saved.shape().str(), name_of(state.share.dtype()), state.whole.str(),
             same_dtype && is_adapters(state.name) ? deciding_keys({state.name}) : "dtype and optimizer_state");
}

}  // namespace

void read_optimizer(Communicator& ranks, Optimizer& optimizer, Exec& exec, model::ModelParameters& parameters,
                    const std::filesystem::path& path) {
  parallel::together(ranks, "optimizer.safetensors", [&] {
    const io::SafetensorsFile file(path);
    check_all_train(file, optimizer, exec, ranks.leads());
    // First: loading sets what completes the values, too.
    std::set<std::string> loaded;
    optimizer.settle();
    std::optional<io::Checkpoint> model;
    parameters.for_each([&](weights::Parameter& p) {
      if (!p.trains() || p.parts.empty() || file.find(value_state(p)) != nullptr) return;
      if (file.find(p.name + ".m") == nullptr) return;  // it did not train: the loop below says so
      if (!model) model.emplace(path.parent_path());
      model::load_parameter(exec, p, *model);
      loaded.insert(value_state(p));
      if (file.find(low_state(p)) == nullptr) loaded.insert(low_state(p));
    });
    optimizer.for_each_state(exec, ranks.leads(), [&](const StateTensor& state) {
      if (loaded.contains(state.name)) return;
      const ConstView saved = saved_state(file, state);
      const bool all = !state.everywhere.absent();
      const View to = all ? state.everywhere : state.share;
      const std::int64_t first = all ? 0 : state.first_row;
      if (to.size() > 0) state.home.upload(to, saved.slice_rows(first, first + to.dim(0)).data());
      file.drop(state.name);
    });
  });
}

}  // namespace inlay::train
