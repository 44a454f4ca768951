#include <algorithm>
#include <cmath>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "core/text.h"
#include "io/paths.h"
#include "osft/find_bases.h"
#include "train/mesh.h"
#include "train/metrics.h"
#include "train/network.h"
#include "train/session.h"
#include "train/step_time.h"

namespace inlay::cli {

namespace {

constexpr int does_not_fit = 2;       // as the run itself would end
constexpr int most_processes = 1024;  // that are tried

// By the data where it is there, so that plan and run speak of the same batches; else by the configuration's bounds.
train::BatchBounds bounds(const options::TrainOptions& options, std::int64_t vocab, std::size_t& document_bytes,
                          bool& from_data, Console& console) {
  const auto is_there = [](const data::DatasetOptions& dataset) { return io::exists(dataset.path); };
  if (!std::ranges::all_of(options.datasets, is_there)) return train::bounds_of(options);
  if (!std::ranges::all_of(options.test_datasets, is_there)) return train::bounds_of(options);
  const train::RunData data = train::read_run_data(options, vocab, console);
  document_bytes += data.train.bytes();
  const data::BatchSampler sampler(data.train, train::batch_options(options));
  from_data = true;
  train::BatchBounds result = train::bounds_of(sampler);
  for (const std::int64_t length : data.test.lengths()) {
    result.document = std::max(result.document, std::min(options.sequence_len, length));
  }
  result.tokens = std::max(result.tokens, result.document);
  return result;
}

// Everything that is said about a plan, in either form.
struct Plan {
  options::TrainOptions options;
  model::ModelConfig config;
  train::EngineOptions engine;
  train::MemoryBudget budget;
  train::MemoryChoice choice;
  train::Ceilings ceilings;
  train::StepEstimate estimate;
  std::size_t search_peak = 0;    // of the search for OSFT's directions, before the run takes its memory
  std::size_t process_bytes = 0;  // of the host: the program, the documents, what libraries take
  std::int64_t longest = 0;       // context that fits; 0: not asked
  bool from_data = false;

  // Where several processes are asked about.
  train::TeamShape team;
  train::NetworkRates network;
  train::TeamEstimate together;
  int smallest = 0;  // processes whose devices hold everything; 0: unknown

  bool many() const { return team.processes > 1; }
};

nlohmann::ordered_json by_class(const MemoryByClass& classes) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (std::size_t i = 0; i < memory_class_count; ++i)
    json[std::string(name_of(static_cast<MemoryClass>(i)))] = classes[i];
  return json;
}

std::int64_t loss_chunk(const Plan& p) {
  return ops::loss_chunk_rows(p.engine.device, p.engine.compute, p.config.vocab, p.engine.max_tokens,
                              p.engine.loss.chunk);
}

nlohmann::ordered_json to_json(const Plan& p) {
  const train::MemoryPlan& memory = p.choice.plan;
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
                                 {"loss_chunk", loss_chunk(p)},
                                 {"host_layers", p.engine.host_layers},
                                 {"micro_batch_tokens", p.engine.max_tokens},
                                 {"longest_document", p.engine.max_document},
                                 {"bounds_from", p.from_data ? "data" : "configuration"},
                                 {"parameters", p.config.parameter_count()},
                                 {"trainable_parameters", memory.trained},
                                 {"tokens_per_second", p.estimate.tokens_per_second},
                                 {"ceilings_from", p.ceilings.source}};
  if (p.longest > 0) json["longest_context"] = p.longest;
  if (p.many()) {
    const train::TeamEstimate& e = p.together;
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
  }
  return json;
}

// A row for each phase, a column for each class that has something somewhere.
void print_timeline(const train::MemoryPlan& memory) {
  MemoryByClass most{};
  for (const PhasePeak& phase : memory.phases) {
    for (std::size_t i = 0; i < memory_class_count; ++i) most[i] = std::max(most[i], phase.classes[i]);
  }
  fmt::print("device memory at the peak of each phase\n  {:<20}", "");
  for (std::size_t i = 0; i < memory_class_count; ++i) {
    if (most[i] > 0) fmt::print(" {:>11}", name_of(static_cast<MemoryClass>(i)));
  }
  fmt::print(" {:>11}\n", "in all");
  for (const PhasePeak& phase : memory.phases) {
    fmt::print("  {:<20}", phase.phase);
    for (std::size_t i = 0; i < memory_class_count; ++i) {
      if (most[i] > 0) fmt::print(" {:>11}", phase.classes[i] > 0 ? format_bytes(phase.classes[i]) : "");
    }
    fmt::print(" {:>11}{}\n", format_bytes(phase.bytes), phase.bytes == memory.device_peak ? "  the peak" : "");
  }
}

void print_team(const Plan& p) {
  const train::TeamEstimate& e = p.together;
  const auto bytes = [](double count) { return format_bytes(static_cast<std::size_t>(count)); };
  const auto per_process = e.tokens_per_second / p.team.processes;
  fmt::print("\n{} processes on {} node{}, ZeRO {}, cut among {}; memory is that of the first of them\n",
             p.team.processes, p.team.nodes, p.team.nodes > 1 ? "s" : "", static_cast<int>(p.engine.mesh.zero),
             p.team.shards_in_node ? "those of a node" : "all");
  fmt::print("each sends {} per step ({} in groups that span nodes), {} per layer with one micro-batch\n",
             bytes(e.sent_bytes), bytes(e.sent_far_bytes), bytes(e.layer_bytes));
  fmt::print(
      "a step of {} micro-batch{} each: {:.3g} s, of which kernels {:.3g} s; exchanging takes {:.3g} s, of which "
      "{:.3g} s "
      "does not hide behind kernels\n",
      p.options.gradient_accumulation_steps, p.options.gradient_accumulation_steps > 1 ? "es" : "", e.step_seconds,
      e.compute_seconds, e.network_seconds, e.exposed_seconds());
  fmt::print("about {} tokens/s in all, {} per process: {:.0f} % of what it does without waiting (rates: {}; {})\n",
             format_count(std::llround(e.tokens_per_second)), format_count(std::llround(per_process)),
             100 * e.compute_seconds / e.step_seconds, p.ceilings.source, p.network.source);
  if (p.budget.device == Arena::unlimited) return;
  if (p.smallest > 0) {
    fmt::print("fewest processes whose devices hold everything (by doubling): {}\n", p.smallest);
  } else {
    fmt::print("not even {} processes hold everything on their devices\n", most_processes);
  }
}

void print_plan(const Plan& p) {
  const train::MemoryPlan& memory = p.choice.plan;
  const train::EngineOptions& engine = p.engine;
  fmt::print("{} parameters of {}, {} on {}\n", format_count(p.config.parameter_count()), p.config.model_type,
             name_of(engine.compute), name_of(engine.device));
  if (const auto adapter = train::adapter_of(p.options, p.config)) fmt::print("{}, ", train::adapter_text(*adapter));
  fmt::print("{}\n", train::trainable_text(memory, p.config));
  fmt::print("micro-batches of up to {} tokens, documents of up to {} (by {})\n", format_count(engine.max_tokens),
             format_count(engine.max_document),
             p.from_data ? "the data" : "the configuration, because the data does not exist");
  fmt::print("activations: {}; MLP tiles: {}; logits: {} rows at once; layers on the host: {}\n", engine.policy.str(),
             engine.mlp_tile > 0 ? fmt::format("{} rows", format_count(engine.mlp_tile)) : "none",
             format_count(loss_chunk(p)), engine.host_layers);
  fmt::print("{}: {}\n\n", p.choice.fits ? "because" : "does not fit", p.choice.reason);
  print_timeline(memory);
  if (p.search_peak > 0) fmt::print("\nfinding directions, before training: {}\n", format_bytes(p.search_peak));
  if (memory.host_peak > 0) {
    fmt::print("\n{} memory of the host:", engine.device == Device::cuda ? "pinned" : "further");
    for (std::size_t i = 0; i < memory_class_count; ++i) {
      if (memory.host_classes[i] > 0)
        fmt::print(" {} {},", name_of(static_cast<MemoryClass>(i)), format_bytes(memory.host_classes[i]));
    }
    fmt::print(" in all {}\n", format_bytes(memory.host_peak));
  }
  if (memory.disk_bytes > 0) fmt::print("\nin {}: {}\n", engine.spill_folder, format_bytes(memory.disk_bytes));
  fmt::print("\nhost memory of the process: {}\n", format_bytes(p.process_bytes + memory.host_peak));
  if (p.budget.device < Arena::unlimited) {
    fmt::print("planned for {} of device memory{}\n", format_bytes(p.budget.device),
               engine.device == Device::cuda ? fmt::format(" and {} of the host's", format_bytes(p.budget.host)) : "");
  }
  const train::StepEstimate& e = p.estimate;
  if (p.many()) {
    print_team(p);
  } else {
    fmt::print(
        "\nabout {} tokens/s: {:.3g} s per micro-batch ({:.3g} s of it recomputing; {:.3g} s of copies at the same "
        "time), {:.3g} s for the optimizer (rates: {})\n",
        format_count(std::llround(e.tokens_per_second)), std::max(e.compute_seconds, e.copy_seconds),
        e.recompute_seconds, e.copy_seconds, e.optimizer_seconds, p.ceilings.source);
  }
  if (p.longest > 0) fmt::print("\nlongest document that fits: {} tokens\n", format_count(p.longest));
}

struct Arguments {
  std::string config, link;
  int processes = 1, nodes = 0;
  bool json = false, max_context = false, quiet = false, measure = false;
};

// Without a word about nodes, eight processes share one.
train::TeamShape team_of(const Arguments& arguments, const options::TrainOptions& options) {
  constexpr int usual = 8;
  const int nodes = arguments.nodes > 0 ? arguments.nodes : (arguments.processes + usual - 1) / usual;
  if (arguments.processes % nodes != 0) {
    user_error("--nodes: {} processes cannot be spread evenly over {} nodes", arguments.processes, nodes);
  }
  return {.processes = arguments.processes,
          .nodes = nodes,
          .shards_in_node = options.parallel.shard == parallel::ShardGroup::node};
}

// The fewest processes whose devices hold everything, by doubling; 0: not even the most that are tried.
int smallest_team(const Plan& p, const train::EngineOptions& undecided) {
  train::MemoryBudget device_alone = p.budget;
  device_alone.host = 0;
  device_alone.disk.clear();
  for (int processes = 1; processes <= most_processes; processes *= 2) {
    train::EngineOptions engine = undecided;
    engine.mesh = train::planned_mesh(p.options, processes, std::min(processes, p.team.per_node()));
    if (train::choose_memory_together(p.config, engine, train::demands_of(p.options), device_alone,
                                      p.options.parallel.zero)
            .fits) {
      return processes;
    }
  }
  return 0;
}

int run(const Arguments& arguments, const options::Overrides& overrides) {
  const std::size_t base_bytes = train::resident_bytes();
  Console console(arguments.quiet);
  Plan p;
  p.options = options::load_options(arguments.config, overrides);
  p.team = team_of(arguments, p.options);
  p.config = train::config_of(p.options);
  std::size_t document_bytes = 0;
  const train::BatchBounds batch = bounds(p.options, p.config.vocab, document_bytes, p.from_data, console);
  p.engine = train::engine_options(p.options, batch);
  train::plan_weights(p.options, p.config, batch, p.engine);
  p.budget = train::budget_of(p.options, p.engine.device);
  p.engine.mesh = train::planned_mesh(p.options, p.team.processes, p.team.per_node());
  train::EngineOptions undecided = p.engine;
  p.choice = train::resolve_memory(p.options, p.config, p.engine);
  undecided.mesh.zero = p.engine.mesh.zero;
  if (arguments.max_context) {
    const std::int64_t most = std::max<std::int64_t>(p.config.max_positions, std::int64_t{4} << 20);
    p.longest = train::longest_context(p.config, undecided, train::demands_of(p.options), p.budget, most);
  }
  if (p.options.finds_directions()) {
    p.search_peak = osft::plan_bases(train::search_inputs(p.options, p.config, p.engine.device, console), p.config,
                                     p.engine.device, p.engine.compute, train::step_shape(p.options, batch));
    if (p.choice.fits && p.search_peak > p.budget.device) {
      p.choice.fits = false;
      p.choice.reason =
          fmt::format("finding directions needs {} of {} memory, but only {} is free", format_bytes(p.search_peak),
                      name_of(p.engine.device), format_bytes(p.budget.device));
    }
  }
  // On the CPU the arena is host memory; on a GPU the host holds the documents, the piece of a file that is on its way,
  // and what CUDA's libraries take (measured with CUDA 13.0).
  constexpr std::size_t piece = std::size_t{32} << 20, libraries = std::size_t{185} << 20;
  const std::size_t beside =
      p.engine.device == Device::cpu ? std::max(p.choice.plan.device_peak, p.search_peak) : piece + libraries;
  p.process_bytes = base_bytes + document_bytes + beside;
  p.ceilings = train::machine_ceilings(p.engine.device, p.engine.compute, train::Remeasure{arguments.measure},
                                       backend::messages_to(console));
  p.estimate = train::estimate_step(p.choice.plan, p.options.gradient_accumulation_steps, p.ceilings);
  p.network = train::network_rates(arguments.link, p.team, p.ceilings.network);
  if (p.many()) {
    if (p.budget.device < Arena::unlimited) p.smallest = smallest_team(p, undecided);
    p.together = train::estimate_team_step(p.choice.plan, p.options.gradient_accumulation_steps,
                                           train::edge_of(p.config), p.team, p.ceilings, p.network);
  }
  if (arguments.json) {
    fmt::print("{}\n", to_json(p).dump());
  } else {
    print_plan(p);
  }
  return p.choice.fits ? 0 : does_not_fit;
}

}  // namespace

void add_plan(Program& program) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      program.app.add_subcommand("plan", "Where every byte of a run will go; needs no GPU and no weights");
  command->add_option("config", arguments->config, "YAML file")->required();
  command->add_option("--processes", arguments->processes, "Plan for so many, one per GPU")->check(CLI::PositiveNumber);
  command->add_option("--nodes", arguments->nodes, "That they are on; 8 on each unless told")
      ->check(CLI::PositiveNumber);
  command->add_option("--link", arguments->link,
                      "What connects them: nvlink or pcie, ib400 or eth100, GB/s, or one within and one between nodes");
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->add_flag("--max-context", arguments->max_context, "Search for the longest document that fits");
  command->add_flag("--measure", arguments->measure, "Measure this machine's rates again, for this and later runs");
  command->add_flag("--quiet", arguments->quiet, "Print errors and results only");
  command->allow_extras();
  command->callback([&program, command, arguments] {
    program.action = [command, arguments] { return run(*arguments, parse_overrides(command->remaining())); };
  });
}

}  // namespace inlay::cli
