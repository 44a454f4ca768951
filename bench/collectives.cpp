#include <set>

#include "bench/bench.h"
#include "core/environment.h"
#include "parallel/processes.h"
#include "train/measured_network.h"
#include "train/mesh.h"
#include "train/session.h"

namespace inlay::bench {

namespace {

struct CollectivesArguments {
  std::string device = "auto";
  int iterations = 10;
  std::int64_t largest = 0;  // MiB; 0: by the device
};

using parallel::Communicator;
using parallel::CutTensor;
using parallel::RowCut;

// Milliseconds, and the GB/s that each process sends meanwhile.
Report result(double ms, double bytes) { return {{"ms", ms}, {"gb_per_s", bytes / ms * 1e-6}}; }

Report measure(backend::Exec& exec, Communicator& ranks, View tensor, int iterations) {
  const RowCut cut = RowCut::even(tensor.dim(0), ranks.size());
  const CutTensor parts[] = {{tensor, tensor.slice_rows(cut.begin(ranks.rank()), cut.end(ranks.rank())), &cut}};
  const double bytes = static_cast<double>(tensor.bytes()) * (ranks.size() - 1) / ranks.size();
  const auto ms = [&](const std::function<void()>& call) {
    ranks.barrier("the beginning of a measurement");
    return median_ms(exec, iterations, call);
  };
  exec.fill_zero(tensor);
  exec.synchronize();
  return {{"bytes", tensor.bytes()},
          {"all_reduce", result(ms([&] {
                                  ranks.all_reduce(exec, {&tensor, 1}, "all_reduce");
                                }),
                                2 * bytes)},
          {"reduce_scatter", result(ms([&] { ranks.reduce_scatter(exec, parts, "reduce_scatter"); }), bytes)},
          {"all_gather", result(ms([&] { ranks.all_gather(exec, parts, "all_gather"); }), bytes)}};
}

// Whether plans will count on it, and if not, why.
std::string keep(Device device, const train::MeasuredRing& ring) {
  if (ring.processes % ring.nodes != 0) return "no: the nodes have unequal numbers of processes";
  if (device == Device::cuda && environment("INLAY_SHARE_GPU") == "1") return "no: processes share a GPU";
  return train::keep_ring(device, ring) ? "yes" : "no: a measurement with larger tensors or more iterations is kept";
}

Report run(const CollectivesArguments& a) {
  const std::shared_ptr<Communicator> world = parallel::join_processes();
  if (world->single()) {
    user_error("the network between processes is measured by several of them: mpirun -n N inlay bench collectives");
  }
  const Device device = train::resolve_machine(a.device, "fp32").device;
  parallel::agree_on(*world, {{"device", std::string(name_of(device))}});
  const auto ranks = parallel::take_places(world, device, false, {});
  const std::int64_t mebibyte = 1 << 20, largest = (a.largest > 0            ? a.largest
                                                    : device == Device::cuda ? 1024
                                                                             : 64) *
                                                   mebibyte;
  backend::Exec exec = backend::Exec::runner(device, static_cast<std::size_t>(largest) + mebibyte);
  const View all = exec.arena().keep(MemoryClass::workspace, "exchanged", DType::f32, {largest / 4});
  Report rows = Report::array();
  for (std::int64_t bytes = largest; bytes >= 64 << 10; bytes /= 4) {
    rows.insert(rows.begin(), measure(exec, *ranks, all.slice_rows(0, bytes / 4), a.iterations));
  }
  // Sharded runs reduce and gather; the slower of the two is what a plan can count on.
  const Report& last = rows.back();
  const double rate =
      1e9 * std::min(last["reduce_scatter"]["gb_per_s"].get<double>(), last["all_gather"]["gb_per_s"].get<double>());
  const std::vector<std::string> hosts = train::hosts_of(*world);
  if (!world->leads()) return {};
  const train::MeasuredRing ring = {.rate = rate,
                                    .processes = world->size(),
                                    .nodes = static_cast<int>(std::set(hosts.begin(), hosts.end()).size()),
                                    .bytes = largest,
                                    .iterations = a.iterations};
  return {{"processes", ring.processes},     {"nodes", ring.nodes},        {"device", name_of(device)},
          {"network_gb_per_s", rate * 1e-9}, {"kept", keep(device, ring)}, {"sizes", rows}};
}

}  // namespace

Benchmark collectives_benchmark() {
  return {.name = "collectives",
          .meaning = "What processes exchange per second, under mpirun; kept for estimates",
          .declare = [](CLI::App& command) -> std::function<Report()> {
            auto arguments = std::make_shared<CollectivesArguments>();
            command.add_option("--device", arguments->device, "auto, cpu or cuda");
            command.add_option("--iterations", arguments->iterations, "Timed calls, of which the median is reported")
                ->check(CLI::PositiveNumber);
            command
                .add_option("--largest", arguments->largest, "MiB of the largest tensor (default 1024, on a CPU 64)")
                ->check(CLI::PositiveNumber);
            return [arguments] { return run(*arguments); };
          },
          .several_processes = true};
}

}  // namespace inlay::bench
