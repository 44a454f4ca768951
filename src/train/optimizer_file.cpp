#include "train/optimizer_file.h"

#include <map>
#include <set>

#include "io/safetensors.h"

namespace inlay::train {

SavedFiles write_optimizer(Communicator& ranks, Optimizer& optimizer, Exec& exec, const std::filesystem::path& path) {
  std::map<std::string, StateTensor> states;
  std::vector<io::TensorSpec> specs;
  optimizer.for_each_state(exec, ranks.leads(), [&](const StateTensor& state) {
    states.emplace(state.name, state);
    specs.push_back({state.name, state.share.dtype(), state.whole.extents()});
  });
  io::widest_first(specs);
  std::optional<io::SafetensorsWriter> writer;
  parallel::together(ranks, "optimizer.safetensors", [&] {
    writer.emplace(path, specs, io::SafetensorsMetadata{{"format", "inlay"}}, writers_of(ranks));
  });
  return write_together(ranks, *writer, [&] {
    std::vector<std::byte> host;
    for (const io::TensorSpec& spec : specs) {
      const StateTensor& state = states.at(spec.name);
      if (!state.mine_to_write || state.share.size() == 0) continue;
      host.resize(state.share.bytes());
      state.home.download(host.data(), state.share);
      const std::uint64_t row_bytes = spec.bytes() / static_cast<std::uint64_t>(state.whole[0]);
      writer->write_part(spec.name, static_cast<std::uint64_t>(state.first_row) * row_bytes, host);
    }
  });
}

void read_optimizer(Communicator& ranks, Optimizer& optimizer, Exec& exec, const std::filesystem::path& path) {
  parallel::together(ranks, "optimizer.safetensors", [&] {
    const io::SafetensorsFile file(path);
    // What a run has learned must not be lost because less trains now.
    const std::vector<std::string> names = file.names();
    std::set<std::string> left(names.begin(), names.end());
    optimizer.for_each_state(exec, ranks.leads(), [&](const StateTensor& state) { left.erase(state.name); });
    if (!left.empty()) {
      user_error(
          "{}: holds {}, which does not train in this run (and {} more such tensors); resume with the run's own "
          "freeze, "
          "osft and optimizer keys",
          file.path().string(), *left.begin(), left.size() - 1);
    }
    optimizer.for_each_state(exec, ranks.leads(), [&](const StateTensor& state) {
      const ConstView saved = file.tensor(state.name);
      if (saved.dtype() != state.share.dtype() || saved.shape() != state.whole) {
        user_error("{}: {} is {} {}, but this run has {} {}; resume with the run's own dtype and optimizer_state",
                   file.path().string(), state.name, name_of(saved.dtype()), saved.shape().str(),
                   name_of(state.share.dtype()), state.whole.str());
      }
      const bool all = !state.everywhere.absent();
      const View to = all ? state.everywhere : state.share;
      const std::int64_t first = all ? 0 : state.first_row;
      if (to.size() > 0) state.home.upload(to, saved.slice_rows(first, first + to.dim(0)).data());
      file.drop(state.name);
    });
  });
}

}  // namespace inlay::train
