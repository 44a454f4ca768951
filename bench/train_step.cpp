#include "bench/step.h"
#include "model/presets.h"
#include "train/network.h"
#include "train/session.h"

namespace inlay::bench {

namespace {

struct TrainStepArguments : Common, Products, Learned {
  std::string config, optimizer = "adamw", policy = "auto";
  std::string disk;
  std::int64_t documents = 1, length = 2048, tile = -1, host_layers = -1;
  bool nondeterministic = false, ragged = false, unclipped = false;
  int processes = 1;
  // Of several processes, where given.
  std::optional<int> zero;
  std::optional<double> bandwidth, latency;

  double bytes_per_second() const { return bandwidth.value_or(360) * 1e9; }
  double delay() const { return latency.value_or(10) * 1e-6; }
};

// What only several processes have must not be asked of one, and be ignored.
void check_team(const TrainStepArguments& a) {
  if (a.processes > 1) return;
  for (const auto& [name, given] : {std::pair{"--zero", a.zero.has_value()},
                                    {"--bandwidth", a.bandwidth.has_value()},
                                    {"--latency", a.latency.has_value()}}) {
    if (given) user_error("{} is about one of several processes; give their number, too: --processes N", name);
  }
}

Report run(const TrainStepArguments& a) {
  check_team(a);
  const model::ModelConfig config = model::shape_or_config(a.config);
  const train::Machine machine = train::resolve_machine(a.device, a.dtype);
  train::EngineOptions options =
      train::engine_options(a.optimizer == "none" ? train::Purpose::gradients : train::Purpose::training, machine,
                            {a.documents * a.length, a.ragged ? a.length * 3 / 2 : a.length});
  options.deterministic = !a.nondeterministic;
  options.fp8 = fp8_of(a, machine);
  options.optimizer.max_grad_norm = a.unclipped ? 0.0 : 1.0;
  if (a.optimizer == "muon") options.optimizer.kind = train::OptimizerKind::muon;
  if (a.optimizer == "schedule_free") options.optimizer.kind = train::OptimizerKind::schedule_free;
  if (a.optimizer == "adamw_8bit") options.optimizer.moments = DType::u8;
  set_objective(options, a, a.config, a.documents);
  if (a.processes > 1) {
    options.mesh.all = options.mesh.shards =
        parallel::simulated_process(0, a.processes, a.bytes_per_second(), a.delay());
    options.mesh.zero = static_cast<parallel::Zero>(a.zero.value_or(0));
  }
  train::MemoryDemands demands;
  if (a.policy != "auto") demands.policy = model::ActivationPolicy::parse(a.policy);
  if (a.tile >= 0) demands.mlp_tile = a.tile;
  if (a.host_layers >= 0) demands.host_layers = a.host_layers;
  const train::MemoryBudget budget = {
      .device = train::memory_budget(options.device), .host = train::host_memory_budget(), .disk = a.disk};
  const train::MemoryChoice choice = train::choose_memory(config, options, demands, budget);
  if (!choice.fits) user_error("{}", choice.reason);
  Report report = time_step(
      config, options, {.documents = a.documents, .length = a.length, .iterations = a.iterations, .ragged = a.ragged});
  report["optimizer"] = a.optimizer;
  report["unclipped"] = a.unclipped;
  if (a.processes == 1) return report;
  const train::Ceilings ceilings =
      train::machine_ceilings(options.device, options.compute, train::Remeasure::no, options.messages);
  train::NetworkRates network;
  network.within = a.bytes_per_second();
  network.start = a.delay();
  const train::TeamEstimate estimate =
      train::estimate_team_step(choice.plan, 1, train::edge_of(config), {.processes = a.processes}, ceilings, network);
  report["network_alone_ms"] = estimate.network_seconds * 1e3;
  report["planned_ms"] = estimate.step_seconds * 1e3;
  report["planned_compute_ms"] = estimate.compute_seconds * 1e3;
  report["sent_bytes"] = estimate.sent_bytes;
  return report;
}

}  // namespace

Benchmark train_step_benchmark() {
  return {"train-step", "forward, backward and optimizer of a model's shape with random weights",
          [](CLI::App& command) -> std::function<Report()> {
            auto a = std::make_shared<TrainStepArguments>();
            add_common(command, *a);
            add_products(command, *a);
            command
                .add_option("--config", a->config,
                            "llama-8b, qwen2.5-7b, qwen2.5-0.5b, gemma-3-4b, phi-4-mini, gpt-oss-20b, qwen3-30b-a3b, "
                            "or a config.json")
                ->required();
            command.add_option("--documents", a->documents)->check(CLI::PositiveNumber);
            command.add_option("--length", a->length)->check(CLI::PositiveNumber);
            command.add_flag("--ragged", a->ragged, "Documents of half as much again and of half as much, in turn");
            command
                .add_option("--optimizer", a->optimizer,
                            "adamw, adamw_8bit, muon, schedule_free, or none: forward and backward only")
                ->check(CLI::IsMember({"adamw", "adamw_8bit", "muon", "schedule_free", "none"}));
            command.add_flag("--unclipped", a->unclipped, "Without clipping: layers are stepped beside the passes");
            add_objective(command, *a);
            command.add_option("--policy", a->policy, "Activation policy, or auto");
            command.add_option("--mlp-tile", a->tile, "Rows the MLP works on at once; 0: all; by default what fits")
                ->check(CLI::NonNegativeNumber);
            command
                .add_option("--host-layers", a->host_layers,
                            "Layers that live on the host; by default as many as necessary")
                ->check(CLI::NonNegativeNumber);
            command.add_option("--disk", a->disk, "Folder for what does not fit into host memory");
            command.add_option("--processes", a->processes, "As one of so many, over a simulated network")
                ->check(CLI::PositiveNumber);
            command.add_option("--zero", a->zero, "What they divide: ZeRO 0 (default) to 3")->check(CLI::Range(0, 3));
            command.add_option("--bandwidth", a->bandwidth, "GB/s that each of them sends (default 360)")
                ->check(CLI::PositiveNumber);
            command.add_option("--latency", a->latency, "Microseconds of every exchange (default 10)")
                ->check(CLI::NonNegativeNumber);
            command.add_flag("--nondeterministic", a->nondeterministic,
                             "Let attention's backward pass sum in any order");
            return [a] { return run(*a); };
          }};
}

}  // namespace inlay::bench
