#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/checks.h"
#include "cli/commands.h"
#include "cli/hub_arguments.h"
#include "core/terminal.h"
#include "core/text.h"
#include "data/dataset_files.h"
#include "train/run_plan.h"

namespace inlay::cli {

namespace {

using train::RunPlan;

constexpr int does_not_fit = 2;  // as the run itself would end

// A row for each phase, a column for each class that has something somewhere, and one for all of them. Where a terminal
// has no room for all columns, those that are left stand below the others.
void print_timeline(const train::MemoryPlan& memory) {
  struct Column {
    std::string name;
    std::function<std::string(const PhasePeak&)> cell;
  };
  std::vector<Column> columns;
  for (std::size_t i = 0; i < memory_class_count; ++i) {
    const auto has_some = [i](const PhasePeak& phase) { return phase.classes[i] > 0; };
    if (std::ranges::none_of(memory.phases, has_some)) continue;
    columns.push_back({std::string(name_of(static_cast<MemoryClass>(i))), [i](const PhasePeak& phase) {
                         return phase.classes[i] > 0 ? format_bytes(phase.classes[i]) : "";
                       }});
  }
  columns.push_back({"in all", [](const PhasePeak& phase) { return format_bytes(phase.bytes); }});
  constexpr std::string_view mark = "  the peak";
  constexpr std::size_t names = 22, each = 12;
  const std::size_t width = terminal_width(STDOUT_FILENO).value_or(std::string::npos);
  const std::size_t room = width > names + mark.size() ? (width - names - mark.size()) / each : 0;
  const std::size_t at_once = std::clamp<std::size_t>(room, 1, columns.size());
  fmt::print("device memory at the peak of each phase\n");
  for (std::size_t first = 0; first < columns.size(); first += at_once) {
    const std::size_t end = std::min(first + at_once, columns.size());
    fmt::print("{}  {:<20}", first > 0 ? "\n" : "", "");
    for (std::size_t i = first; i < end; ++i) fmt::print(" {:>11}", columns[i].name);
    fmt::print("\n");
    for (const PhasePeak& phase : memory.phases) {
      fmt::print("  {:<20}", phase.phase);
      for (std::size_t i = first; i < end; ++i) fmt::print(" {:>11}", columns[i].cell(phase));
      fmt::print("{}\n", end == columns.size() && phase.bytes == memory.device_peak ? mark : "");
    }
  }
}

void print_team(const RunPlan& p) {
  const train::TeamEstimate& e = p.together;
  const auto bytes = [](double count) { return format_bytes(static_cast<std::size_t>(count)); };
  const auto per_process = e.tokens_per_second / p.team.processes;
  fmt::print("\n{} processes on {} node{}, ZeRO {}, divided among {}; memory is that of the first\n", p.team.processes,
             p.team.nodes, p.team.nodes > 1 ? "s" : "", static_cast<int>(p.engine.mesh.zero),
             p.team.shards_in_node ? "those of a node" : "all");
  fmt::print("each sends {} per step ({} in groups that span nodes), {} per layer with one micro-batch\n",
             bytes(e.sent_bytes), bytes(e.sent_far_bytes), bytes(e.layer_bytes));
  fmt::print(
      "a step of {} micro-batch{} each: {:.3g} s, of which kernels {:.3g} s; exchanges take {:.3g} s, of which "
      "{:.3g} s is not hidden behind kernels\n",
      p.options.gradient_accumulation_steps, p.options.gradient_accumulation_steps > 1 ? "es" : "", e.step_seconds,
      e.compute_seconds, e.network_seconds, e.exposed_seconds());
  fmt::print("about {} tokens/s in all, {} per process: {:.0f} % of the rate without waiting (rates: {}; {})\n",
             format_count(std::llround(e.tokens_per_second)), format_count(std::llround(per_process)),
             100 * e.compute_seconds / e.step_seconds, p.ceilings.source, p.network.source);
  if (p.budget.device == Arena::unlimited) {
    fmt::print("fewest processes: unknown, because the memory of a device is not known; set memory.device\n");
  } else if (p.smallest > 0) {
    fmt::print("fewest processes whose devices hold everything: {}{}\n", p.smallest,
               p.smallest > p.team.per_node() ? fmt::format(" (whole nodes of {})", p.team.per_node()) : "");
  } else {
    fmt::print("not even {} processes hold everything on their devices\n", train::most_planned_processes);
  }
}

void print_disk(const RunPlan& p) {
  fmt::print("\nin {}: {}", p.options.output_dir, text_of(p.disk));
  if (!p.disk_free) return fmt::print("\n");
  const char* const enough = *p.disk_free >= p.disk.all()     ? " is free"
                             : *p.disk_free >= p.disk.least() ? " is free: not enough for all"
                                                              : " is free: not enough";
  fmt::print("; {}{}\n", format_bytes(*p.disk_free), enough);
}

// The first of the run's files that is not there.
std::string missing_data(const options::TrainOptions& options) {
  for (const auto* list : {&options.datasets, &options.test_datasets}) {
    for (const data::DatasetOptions& dataset : *list) {
      if (!data::is_there(dataset)) return dataset.path;
    }
  }
  return "the data";
}

void print_plan(const RunPlan& p) {
  const train::MemoryPlan& memory = p.choice.plan;
  const train::EngineOptions& engine = p.engine;
  fmt::print("{} parameters of {}, {} on {}\n", format_count(p.config.parameter_count()), p.config.model_type,
             name_of(engine.compute), name_of(engine.device));
  if (const auto adapter = train::adapter_of(p.options, p.config)) fmt::print("{}, ", train::adapter_text(*adapter));
  fmt::print("{}\n", train::trainable_text(memory, p.config));
  fmt::print("micro-batches of up to {} tokens, documents of up to {} (from {})\n", format_count(engine.max_tokens),
             format_count(engine.max_document),
             p.from_data ? "the data" : "the configuration, because " + missing_data(p.options) + " does not exist");
  fmt::print("activations: {}; MLP tiles: {}; logits: {} rows at once; layers on the host: {}\n", engine.policy.str(),
             engine.mlp_tile > 0 ? fmt::format("{} rows", format_count(engine.mlp_tile)) : "none",
             format_count(p.loss_chunk()), engine.host_layers);
  fmt::print("{}: {}\n\n", p.choice.fits ? "because" : "does not fit", p.choice.reason);
  print_timeline(memory);
  if (p.search_peak > 0) fmt::print("\nfinding directions, before training: {}\n", format_bytes(p.search_peak));
  if (memory.host_peak > 0) {
    fmt::print("\n{} memory of the host:", engine.device == Device::cuda ? "pinned" : "additional");
    for (std::size_t i = 0; i < memory_class_count; ++i) {
      if (memory.host_classes[i] > 0)
        fmt::print(" {} {},", name_of(static_cast<MemoryClass>(i)), format_bytes(memory.host_classes[i]));
    }
    fmt::print(" in all {}\n", format_bytes(memory.host_peak));
  }
  if (memory.disk_bytes > 0) fmt::print("\nin {}: {}\n", engine.spill_folder, format_bytes(memory.disk_bytes));
  print_disk(p);
  fmt::print("\nhost memory of the process: {}\n", format_bytes(p.process_bytes + memory.host_peak));
  if (p.budget.device < Arena::unlimited) {
    fmt::print("planned for {} of device memory{}{}\n", format_bytes(p.each.device),
               engine.device == Device::cuda ? fmt::format(" and {} of the host's", format_bytes(p.each.host)) : "",
               p.many() ? " for each process" : "");
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
  if (p.length.steps > 0) fmt::print("\nthe run: {}\n", text_of(p.length));
  if (p.longest > 0) fmt::print("\nlongest document that fits: {} tokens\n", format_count(p.longest));
}

struct PlanArguments {
  std::string config;
  HubArguments hub;
  train::PlanRequest request;
  bool json = false, quiet = false, measure = false;
};

int run(const PlanArguments& arguments, const options::Overrides& overrides) {
  Console console(arguments.quiet);
  train::PlanRequest request = arguments.request;
  request.measure = train::Remeasure{arguments.measure};
  const options::TrainOptions options = options::load_options(
      arguments.config, overrides, options::Needed::all_but_data, arguments.hub.access(arguments.quiet));
  for (const std::string& note : options.notes) console.line(note);
  const RunPlan p = train::plan_run(options, request, console);
  if (arguments.json) {
    fmt::print("{}\n", to_json(p).dump());
  } else {
    print_plan(p);
  }
  return p.choice.fits ? 0 : does_not_fit;
}

}  // namespace

void add_plan(Program& program) {
  auto arguments = std::make_shared<PlanArguments>();
  CLI::App* command =
      program.app.add_subcommand("plan", "Where every byte of a run will go; needs no GPU and no weights");
  command->add_option("config", arguments->config, "YAML file")->required();
  command->add_option("--processes", arguments->request.processes, "Plan for this many, one per GPU")->check(whole(1));
  command->add_option("--nodes", arguments->request.nodes, "Nodes that these run on; by default 8 processes on each")
      ->check(whole(1));
  command->add_option("--link", arguments->request.link,
                      "What connects them: nvlink or pcie, ib400 or eth100, GB/s, or one within and one between nodes");
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->add_flag("--max-context", arguments->request.max_context, "Search for the longest document that fits");
  command->add_flag("--measure", arguments->measure, "Measure this machine's rates again, for this and later runs");
  arguments->hub.add_to(*command);
  command->add_flag("--quiet", arguments->quiet, "Print errors and results only");
  command->allow_extras();
  command->callback([&program, command, arguments] {
    program.action = [command, arguments] { return run(*arguments, parse_overrides(*command)); };
  });
}

}  // namespace inlay::cli
