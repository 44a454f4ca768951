#include <algorithm>
#include <cmath>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "core/text.h"
#include "io/paths.h"
#include "osft/find_bases.h"
#include "train/metrics.h"
#include "train/session.h"
#include "train/step_time.h"

namespace inlay::cli {

namespace {

constexpr int does_not_fit = 2;  // as the run itself would end

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
  fmt::print(
      "\nabout {} tokens/s: {:.3g} s per micro-batch ({:.3g} s of it recomputing; {:.3g} s of copies at the same "
      "time), {:.3g} s for the optimizer (rates: {})\n",
      format_count(std::llround(e.tokens_per_second)), std::max(e.compute_seconds, e.copy_seconds), e.recompute_seconds,
      e.copy_seconds, e.optimizer_seconds, p.ceilings.source);
  if (p.longest > 0) fmt::print("\nlongest document that fits: {} tokens\n", format_count(p.longest));
}

int run(const std::string& file, const options::Overrides& overrides, bool as_json, bool max_context, bool quiet,
        train::Remeasure measure) {
  const std::size_t base_bytes = train::resident_bytes();
  Console console(quiet);
  Plan p;
  p.options = options::load_options(file, overrides);
  p.config = train::config_of(p.options);
  std::size_t document_bytes = 0;
  const train::BatchBounds batch = bounds(p.options, p.config.vocab, document_bytes, p.from_data, console);
  p.engine = train::engine_options(p.options, batch);
  train::plan_weights(p.options, p.config, batch, p.engine);
  p.budget = train::budget_of(p.options, p.engine.device);
  if (max_context) {
    const std::int64_t most = std::max<std::int64_t>(p.config.max_positions, std::int64_t{4} << 20);
    p.longest = train::longest_context(p.config, p.engine, train::demands_of(p.options), p.budget, most);
  }
  p.choice = train::resolve_memory(p.options, p.config, p.engine);
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
  p.ceilings = train::machine_ceilings(p.engine.device, p.engine.compute, measure, backend::messages_to(console));
  p.estimate = train::estimate_step(p.choice.plan, p.options.gradient_accumulation_steps, p.ceilings);
  if (as_json) {
    fmt::print("{}\n", to_json(p).dump());
  } else {
    print_plan(p);
  }
  return p.choice.fits ? 0 : does_not_fit;
}

}  // namespace

void add_plan(Program& program) {
  struct Arguments {
    std::string config;
    bool json = false, max_context = false, quiet = false, measure = false;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      program.app.add_subcommand("plan", "Where every byte of a run will go; needs no GPU and no weights");
  command->add_option("config", arguments->config, "YAML file")->required();
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->add_flag("--max-context", arguments->max_context, "Search for the longest document that fits");
  command->add_flag("--measure", arguments->measure, "Measure this machine's rates again, for this and later runs");
  command->add_flag("--quiet", arguments->quiet, "Print errors and results only");
  command->allow_extras();
  command->callback([&program, command, arguments] {
    program.action = [command, arguments] {
      return run(arguments->config, parse_overrides(command->remaining()), arguments->json, arguments->max_context,
                 arguments->quiet, train::Remeasure{arguments->measure});
    };
  });
}

}  // namespace inlay::cli
