#include "train/mesh.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "core/error.h"

namespace inlay::train {

using parallel::Communicator;
using parallel::Mesh;
using parallel::ShardGroup;
using parallel::Zero;

namespace {

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

std::size_t least_of(Communicator& ranks, std::size_t mine, std::string_view what) {
  std::size_t least = mine;
  for (const std::string& text : ranks.exchange(std::to_string(mine), what)) {
    std::size_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    least = std::min(least, value);
  }
  return least;
}

}  // namespace

std::vector<std::string> hosts_of(Communicator& ranks) { return ranks.exchange(host_name(), "names of hosts"); }

Mesh make_mesh(const options::TrainOptions& options, const std::shared_ptr<Communicator>& all) {
  Mesh mesh{.all = all};
  if (all->single()) return mesh;
  const std::vector<std::string> hosts = hosts_of(*all);
  const auto on = [&](const std::string& host) { return std::count(hosts.begin(), hosts.end(), host); };
  const auto mine = static_cast<std::size_t>(all->rank());
  mesh.on_host = static_cast<int>(on(hosts[mine]));
  if (options.parallel.shard == ShardGroup::all) return mesh;
  for (const std::string& host : hosts) {
    if (on(host) == on(hosts[0])) continue;
    throw parallel::SharedError(fmt::format(
        "parallel.shard: node needs the same number of processes on every node, but {} has {} and {} has {}", hosts[0],
        on(hosts[0]), host, on(host)));
  }
  const auto first = std::find(hosts.begin(), hosts.end(), hosts[mine]);
  mesh.shards = all->split(static_cast<int>(first - hosts.begin()));
  mesh.replicas = all->split(mesh.shards->rank());
  return mesh;
}

Mesh planned_mesh(const options::TrainOptions& options, int processes, int per_node) {
  if (processes == 1) return {};
  const int nodes = processes / per_node;
  Mesh mesh{.all = parallel::planned_process(0, processes, nodes)};
  mesh.on_host = per_node;
  if (options.parallel.shard == ShardGroup::all) return mesh;
  mesh.shards = per_node > 1 ? parallel::planned_process(0, per_node) : parallel::single_process();
  if (nodes > 1) mesh.replicas = parallel::planned_process(0, nodes, nodes);
  return mesh;
}

Mesh as_first_process(Mesh mesh) {
  for (std::shared_ptr<Communicator>* ranks : {&mesh.all, &mesh.shards, &mesh.replicas}) {
    if (!(*ranks)->single()) *ranks = parallel::planned_process(0, (*ranks)->size(), (*ranks)->nodes());
  }
  return mesh;
}

MemoryBudget common_budget(MemoryBudget mine, const Mesh& mesh, Device device) {
  if (!mesh.many()) return mine;
  const auto share = [&](std::size_t bytes) { return bytes == Arena::unlimited ? bytes : bytes / mesh.on_host; };
  if (device == Device::cpu) mine.device = share(mine.device);
  mine.host = share(mine.host);
  mine.device = least_of(*mesh.all, mine.device, "free memory");
  mine.host = least_of(*mesh.all, mine.host, "free memory");
  return mine;
}

MemoryChoice choose_memory_together(const model::ModelConfig& config, EngineOptions& options,
                                    const MemoryDemands& demands, const MemoryBudget& budget,
                                    std::optional<Zero> zero) {
  if (!options.mesh.many()) return choose_memory(config, options, demands, budget);
  const Mesh real = options.mesh;
  EngineOptions planned = options;
  planned.mesh = as_first_process(real);
  const auto choose = [&](Zero stage, const MemoryBudget& allowed) {
    options = planned;
    options.mesh.zero = stage;
    const MemoryChoice choice = choose_memory(config, options, demands, allowed);
    options.mesh = real;
    options.mesh.zero = stage;
    return choice;
  };
  if (zero) return choose(*zero, budget);
  MemoryBudget device_alone = budget;
  device_alone.host = 0;
  device_alone.disk.clear();
  for (const Zero stage : {Zero::none, Zero::state, Zero::gradients, Zero::weights}) {
    MemoryChoice choice = choose(stage, device_alone);
    if (choice.fits) return choice;
  }
  return choose(Zero::weights, budget);
}

}  // namespace inlay::train
