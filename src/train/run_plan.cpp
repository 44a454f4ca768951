#include "train/run_plan.h"

#include <algorithm>

#include "data/dataset_files.h"
#include "io/free_space.h"
#include "osft/find_bases.h"
#include "train/batch_stream.h"
#include "train/mesh.h"
#include "train/metrics.h"
#include "train/objective.h"
#include "train/on_policy.h"
#include "train/schedule.h"
#include "train/self_distillation.h"

namespace inlay::train {

namespace {

// By the data where it is there, so that plan and run speak of the same batches; else by the configuration's bounds.
// Of the run's length all but the time.
BatchBounds bounds(const options::TrainOptions& options, std::int64_t vocab, std::size_t& document_bytes, RunPlan& plan,
                   Console& console) {
  plan.length.steps = options.max_steps;
  const auto there = [](const auto& datasets) { return std::ranges::all_of(datasets, data::is_there); };
  if (!there(options.datasets) || !there(options.test_datasets)) {
    return options.on_policy() ? on_policy_bounds(options, plan.config) : bounds_of(options);
  }
  const RunData data =
      options.on_policy() ? read_to_rewrite(options, vocab, console) : read_run_data(options, vocab, console);
  document_bytes += data.train.bytes();
  const data::BatchSampler sampler(data.train, batch_options(options));
  plan.from_data = true;
  const std::int64_t per_step = options.gradient_accumulation_steps * plan.team.processes;
  plan.length = run_length(total_steps(options, sampler, per_step), sampler, per_step, 0);
  BatchBounds result = bounds_of(sampler);
  for (const std::int64_t length : data.test.lengths()) {
    result.document = std::max(result.document, std::min(options.sequence_len, length));
  }
  if (options.on_policy()) return on_policy_bounds(options, plan.config, data.shown);
  result.tokens = std::max(result.tokens, result.document);
  return result;
}

nlohmann::ordered_json by_class(const MemoryByClass& classes) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (std::size_t i = 0; i < memory_class_count; ++i)
    json[std::string(name_of(static_cast<MemoryClass>(i)))] = classes[i];
  return json;
}

// Without a word about nodes, eight processes share one.
TeamShape team_of(const PlanRequest& request, const options::TrainOptions& options) {
  if (request.processes == 1 && !request.link.empty()) {
    user_error("--link is the connection between processes; give their number as well: --processes N");
  }
  if (request.processes == 1 && request.nodes > 1) {
    user_error("--nodes: one process is on one node; give the number of processes on all {}: --processes N",
               request.nodes);
  }
  constexpr int usual = 8;
  const int nodes = request.nodes > 0 ? request.nodes : (request.processes + usual - 1) / usual;
  if (request.processes % nodes != 0) {
    user_error("--nodes: {} processes cannot be spread evenly over {} nodes; make --processes a multiple of --nodes",
               request.processes, nodes);
  }
  return {.processes = request.processes,
          .nodes = nodes,
          .shards_in_node = options.parallel.shard == parallel::ShardGroup::node};
}

// The fewest processes whose devices hold everything; 0: not even the most that are tried. Beyond one node they fill
// whole nodes: plans are for nodes that have the same number of them.
int smallest_team(const RunPlan& p, const EngineOptions& undecided) {
  const parallel::Zero stage = p.options.parallel.zero.value_or(parallel::Zero::weights);  // that keeps least
  const int node = p.team.per_node();
  const auto processes_of = [&](int team) { return team <= node ? team : (team - node + 1) * node; };
  const auto fits = [&](int team) {
    const int processes = processes_of(team);
    EngineOptions engine = undecided;
    engine.mesh = planned_mesh(p.options, processes, std::min(processes, node));
    MemoryBudget device_alone = common_budget(p.budget, engine.mesh, engine.device);
    device_alone.host = 0;
    device_alone.disk.clear();
    return choose_memory_together(p.config, engine, demands_of(p.options), device_alone, stage).fits;
  };
  int too_few = 0, enough = 1;
  while (!fits(enough)) {
    too_few = enough;
    enough *= 2;
    if (processes_of(enough) > most_planned_processes) return 0;
  }
  while (enough - too_few > 1) {
    const int middle = too_few + (enough - too_few) / 2;
    (fits(middle) ? enough : too_few) = middle;
  }
  return processes_of(enough);
}

}  // namespace

std::int64_t RunPlan::loss_chunk() const {
  return ops::loss_chunk_rows(engine.device, engine.compute, config.vocab, engine.max_tokens, engine.loss.chunk);
}

nlohmann::ordered_json to_json(const RunPlan& p) {
  const MemoryPlan& memory = p.choice.plan;
  nlohmann::ordered_json phases, timeline;
  for (const PhasePeak& phase : memory.phases) {
    phases[phase.phase] = phase.bytes;
    timeline[phase.phase] = by_class(phase.classes);
  }
  nlohmann::ordered_json json = {{"device_peak_bytes", memory.device_peak},
                                 {"host_peak_bytes", p.process_bytes + memory.host_peak},
                                 {"pinned_bytes", memory.host_peak},
                                 {"disk_bytes", memory.disk_bytes},
                                 {"search_peak_bytes", p.search_peak},
                                 {"fits", p.choice.fits},
                                 {"reason", p.choice.reason},
                                 {"classes", by_class(memory.classes)},
                                 {"host_classes", by_class(memory.host_classes)},
                                 {"phases", phases},
                                 {"timeline", timeline},
                                 {"device", name_of(p.engine.device)},
                                 {"dtype", name_of(p.engine.compute)},
                                 {"activation_policy", p.engine.policy.str()},
                                 {"mlp_tile", p.engine.mlp_tile},
                                 {"loss_chunk", p.loss_chunk()},
                                 {"host_layers", p.engine.host_layers},
                                 {"micro_batch_tokens", p.engine.max_tokens},
                                 {"longest_document", p.engine.max_document},
                                 {"bounds_from", p.from_data ? "data" : "configuration"},
                                 {"parameters", p.config.parameter_count()},
                                 {"trainable_parameters", memory.trained},
                                 {"tokens_per_second", p.estimate.tokens_per_second},
                                 {"ceilings_from", p.ceilings.source}};
  if (p.length.steps > 0) json["steps"] = p.length.steps;
  if (p.length.tokens > 0) {
    json["epochs"] = p.length.epochs;
    json["tokens"] = p.length.tokens;
    json["seconds"] = p.length.seconds;
  }
  json["output"] = {{"model_bytes", p.disk.model},
                    {"state_bytes", p.disk.state},
                    {"checkpoints", p.disk.checkpoints},
                    {"bytes", p.disk.all()},
                    {"free_bytes", nullptr}};
  if (p.disk_free) json["output"]["free_bytes"] = *p.disk_free;
  if (p.longest > 0) json["longest_context"] = p.longest;
  if (p.many()) {
    const TeamEstimate& e = p.together;
    json["tokens_per_second"] = e.tokens_per_second;
    json["team"] = {{"processes", p.team.processes},
                    {"nodes", p.team.nodes},
                    {"zero", static_cast<int>(p.engine.mesh.zero)},
                    {"shard", p.team.shards_in_node ? "node" : "all"},
                    {"sent_bytes", e.sent_bytes},
                    {"sent_between_nodes_bytes", e.sent_far_bytes},
                    {"sent_bytes_per_layer", e.layer_bytes},
                    {"step_seconds", e.step_seconds},
                    {"compute_seconds", e.compute_seconds},
                    {"network_seconds", e.network_seconds},
                    {"exposed_seconds", e.exposed_seconds()},
                    {"links", p.network.source},
                    {"smallest_number_of_processes", p.smallest}};
    if (p.budget.device == Arena::unlimited) json["team"]["smallest_number_of_processes"] = nullptr;
  }
  return json;
}

RunPlan plan_run(const options::TrainOptions& options, const PlanRequest& request, Console& console) {
  const std::size_t base_bytes = resident_bytes();
  RunPlan p;
  p.options = options;
  p.team = team_of(request, p.options);
  p.config = config_of(p.options);
  check_shared_answers(p.options, p.team.processes);
  check_teacher(p.options, p.config);
  std::size_t document_bytes = 0;
  const BatchBounds batch = bounds(p.options, p.config.vocab, document_bytes, p, console);
  p.engine = engine_options(p.options, batch);
  plan_weights(p.options, p.config, batch, p.engine);
  p.budget = budget_of(p.options, p.engine.device);
  p.engine.mesh = planned_mesh(p.options, p.team.processes, p.team.per_node());
  EngineOptions undecided = p.engine;
  p.choice = resolve_memory(p.options, p.config, p.engine);
  undecided.mesh.zero = p.engine.mesh.zero;
  p.each = common_budget(p.budget, p.engine.mesh, p.engine.device);
  if (request.max_context) {
    const std::int64_t most = std::max<std::int64_t>(p.config.max_positions, std::int64_t{4} << 20);
    p.longest = longest_context(p.config, undecided, demands_of(p.options), p.each, most);
  }
  if (p.options.finds_directions()) {
    osft::SearchInputs inputs = search_inputs(p.options, p.config, p.engine.device, console);
    inputs.ranks = p.engine.mesh.all;
    p.search_peak = osft::plan_bases(inputs, p.config, p.engine.device, p.engine.compute, step_shape(p.options, batch));
    if (p.choice.fits && p.search_peak > p.each.device) {
      p.choice.fits = false;
      p.choice.reason = fmt::format("finding directions needs {} of {} memory, but only {} is free",
                                    format_bytes(p.search_peak), name_of(p.engine.device), format_bytes(p.each.device));
    }
  }
  const bool in_whole = p.length.steps > 0 && p.length.epochs > 0;
  const auto steps = static_cast<double>(p.length.steps);
  p.disk = disk_need(in_whole ? in_steps(p.options, p.length.steps, steps / p.length.epochs) : p.options, p.config,
                     p.engine, {.steps = p.length.steps});
  p.disk_free = io::free_space(p.options.output_dir);
  // On the CPU the arena is host memory; on a GPU the host holds the documents, the piece of a file that is on its way,
  // and what CUDA's libraries take (measured with CUDA 13.0).
  constexpr std::size_t piece = std::size_t{32} << 20, libraries = std::size_t{185} << 20;
  const std::size_t beside =
      p.engine.device == Device::cpu ? std::max(p.choice.plan.device_peak, p.search_peak) : piece + libraries;
  p.process_bytes = base_bytes + document_bytes + beside;
  p.ceilings = machine_ceilings(p.engine.device, p.engine.compute, request.measure, backend::messages_to(console));
  p.estimate = estimate_step(p.choice.plan, p.options.gradient_accumulation_steps, p.ceilings);
  p.network = network_rates(request.link, p.team, kept_rings(p.engine.device));
  if (p.many()) {
    if (p.budget.device < Arena::unlimited) p.smallest = smallest_team(p, undecided);
    p.together = estimate_team_step(p.choice.plan, p.options.gradient_accumulation_steps, edge_of(p.config), p.team,
                                    p.ceilings, p.network);
  }
  const double speed = p.many() ? p.together.tokens_per_second : p.estimate.tokens_per_second;
  if (speed > 0) p.length.seconds = static_cast<double>(p.length.tokens) / speed;
  return p;
}

}  // namespace inlay::train
