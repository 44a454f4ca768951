#include "bench/step.h"
#include "model/presets.h"
#include "objective/divergence.h"
#include "objective/preference.h"
#include "train/network.h"
#include "train/session.h"

namespace inlay::bench {

namespace {

struct Arguments : Common, Products {
  std::string config, optimizer = "adamw", policy = "auto";
  std::string disk, objective = "next", teacher;
  std::int64_t documents = 1, length = 2048, tile = -1, host_layers = -1;
  bool nondeterministic = false;
  int processes = 1, zero = 0;
  double bandwidth = 360, latency = 10;
};

// What is learned; documents are chosen and rejected in turn where that is preferences.
void set_objective(const Arguments& a, train::EngineOptions& options) {
  using Kind = ops::DivergenceKind;
  const std::map<std::string, Kind> divergences = {{"kl", Kind::forward},
                                                   {"kd-forward", Kind::forward},
                                                   {"kd-reverse", Kind::reverse},
                                                   {"kd-jsd", Kind::jensen_shannon}};
  if (a.objective == "dft") options.loss.rule.rule = ops::TokenRule::dft;
  if (a.objective == "eaft") options.loss.rule.rule = ops::TokenRule::eaft;
  if (a.objective == "dpo" || a.objective == "orpo") {
    const auto kind = a.objective == "dpo" ? ops::PreferenceKind::sigmoid : ops::PreferenceKind::orpo;
    options.objective = std::make_shared<objective::PreferenceKind>(
        ops::PreferenceSpec{.kind = kind, .likelihood = a.objective == "orpo" ? 1.0 : 0.0});
    options.roles = {SequenceRole::chosen, SequenceRole::rejected};
    options.reference = a.objective == "dpo";
    if (a.documents % 2 != 0) user_error("--documents: pairs are two documents each, got {}", a.documents);
  }
  const auto divergence = divergences.find(a.objective);
  if (divergence == divergences.end()) return;
  const float labels = a.objective == "kl" ? 1.0f : 0.0f;
  options.objective = std::make_shared<objective::DivergenceKind>(
      ops::DivergenceSpec{.kind = divergence->second, .beta = 0.5f, .ce_weight = labels}, "divergence");
  options.other.wanted = true;
  if (a.objective != "kl") options.other.config = model::shape_or_config(a.teacher.empty() ? a.config : a.teacher);
}

Report run(const Arguments& a) {
  const model::ModelConfig config = model::shape_or_config(a.config);
  train::EngineOptions options =
      train::engine_options(a.optimizer == "none" ? train::Purpose::gradients : train::Purpose::training,
                            train::resolve_machine(a.device, a.dtype), {a.documents * a.length, a.length});
  options.deterministic = !a.nondeterministic;
  options.fp8 = fp8_of(a);
  options.optimizer.max_grad_norm = 1.0;
  if (a.optimizer == "muon") options.optimizer.kind = train::OptimizerKind::muon;
  if (a.optimizer == "adamw_8bit") options.optimizer.moments = DType::u8;
  set_objective(a, options);
  if (a.processes > 1) {
    options.mesh.all = options.mesh.shards =
        parallel::simulated_process(0, a.processes, a.bandwidth * 1e9, a.latency * 1e-6);
    options.mesh.zero = static_cast<parallel::Zero>(a.zero);
  }
  train::MemoryDemands demands;
  if (a.policy != "auto") demands.policy = model::ActivationPolicy::parse(a.policy);
  if (a.tile >= 0) demands.mlp_tile = a.tile;
  if (a.host_layers >= 0) demands.host_layers = a.host_layers;
  const train::MemoryBudget budget = {
      .device = train::memory_budget(options.device), .host = train::host_memory_budget(), .disk = a.disk};
  const train::MemoryChoice choice = train::choose_memory(config, options, demands, budget);
  if (!choice.fits) user_error("{}", choice.reason);
  Report report =
      time_step(config, options, {.documents = a.documents, .length = a.length, .iterations = a.iterations});
  report["optimizer"] = a.optimizer;
  if (a.processes == 1) return report;
  const train::Ceilings ceilings =
      train::machine_ceilings(options.device, options.compute, train::Remeasure::no, options.messages);
  train::NetworkRates network;
  network.within = a.bandwidth * 1e9;
  network.start = a.latency * 1e-6;
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
  return {
      "train-step", "forward, backward and optimizer of a model's shape with random weights",
      [](CLI::App& command) -> std::function<Report()> {
        auto a = std::make_shared<Arguments>();
        add_common(command, *a);
        add_products(command, *a);
        command
            .add_option("--config", a->config,
                        "llama-8b, gemma-3-4b, phi-4-mini, gpt-oss-20b, qwen3-30b-a3b, or a config.json")
            ->required();
        command.add_option("--documents", a->documents)->check(CLI::PositiveNumber);
        command.add_option("--length", a->length)->check(CLI::PositiveNumber);
        command.add_option("--optimizer", a->optimizer, "adamw, adamw_8bit, muon, or none: forward and backward only")
            ->check(CLI::IsMember({"adamw", "adamw_8bit", "muon", "none"}));
        command
            .add_option(
                "--objective", a->objective,
                "next, dft, eaft, kl (to a copy of the model), dpo or orpo (documents are the halves of pairs), "
                "kd-forward, kd-reverse or kd-jsd")
            ->check(CLI::IsMember({"next", "dft", "eaft", "kl", "dpo", "orpo", "kd-forward", "kd-reverse", "kd-jsd"}));
        command.add_option("--teacher", a->teacher, "kd-*: its shape; by default the model's own");
        command.add_option("--policy", a->policy, "Activation policy, or auto");
        command.add_option("--mlp-tile", a->tile, "Rows the MLP works on at once; 0: all; by default what fits");
        command.add_option("--host-layers", a->host_layers,
                           "Layers that live on the host; by default as many as necessary");
        command.add_option("--disk", a->disk, "Folder for what does not fit into host memory");
        command.add_option("--processes", a->processes, "As one of so many, over a simulated network")
            ->check(CLI::PositiveNumber);
        command.add_option("--zero", a->zero, "What they divide: ZeRO 0 to 3")->check(CLI::Range(0, 3));
        command.add_option("--bandwidth", a->bandwidth, "GB/s that each of them sends");
        command.add_option("--latency", a->latency, "Microseconds of every exchange");
        command.add_flag("--nondeterministic", a->nondeterministic, "Let attention's backward pass sum in any order");
        return [a] { return run(*a); };
      }};
}

}  // namespace inlay::bench
