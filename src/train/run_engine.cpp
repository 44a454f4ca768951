#include "train/run_engine.h"

#include "backend/cuda/context.h"
#include "core/interrupt.h"
#include "core/text.h"
#include "parallel/activity.h"
#include "train/ceilings.h"
#include "train/mesh.h"
#include "train/network.h"
#include "train/objective.h"
#include "train/step_time.h"

namespace inlay::train {

namespace {

void describe_memory(const EngineOptions& engine, const MemoryPlan& plan, Console& console) {
  if (engine.mlp_tile > 0) {
    console.line(fmt::format("memory: the MLP works on {} rows at once", format_count(engine.mlp_tile)));
  }
  if (engine.loss.chunk > 0) {
    console.line(fmt::format("memory: the loss works on {} rows at once", format_count(engine.loss.chunk)));
  }
  if (plan.host_peak > 0) {
    console.line(fmt::format(
        "memory: {} {}{}", format_bytes(plan.host_peak),
        engine.device == Device::cuda ? "on the host" : "more, in addition to the plan",
        engine.host_layers > 0 ? ", " + counted(engine.host_layers, "layer lives", "layers live") + " there" : ""));
  }
  if (engine.staged != Staged::nothing) {
    console.line("checkpoints: written during the next steps, from a copy in host memory");
  }
  if (plan.disk_bytes > 0) {
    console.line(fmt::format("memory: {} in a file in {}", format_bytes(plan.disk_bytes), engine.spill_folder));
  }
}

void describe_osft(const RunEngine& run, const osft::OsftOptions& options, std::size_t targets, Console& console) {
  console.line(fmt::format("osft: basis {}, {} targets, {}", osft::name_of(options.basis), targets,
                           trainable_text(run.plan, run.engine->decoder().config())));
}

// "nf4 (load_in_4bit: true)"
std::string with_key(const std::string& format) {
  const char* const key = format == ops::name_of(ops::QuantFormat::nf4)    ? "load_in_4bit"
                          : format == ops::name_of(ops::QuantFormat::int8) ? "load_in_8bit"
                          : format == ops::name_of(ops::QuantFormat::fp8)  ? "load_in_fp8"
                                                                           : nullptr;
  return key == nullptr ? format : fmt::format("{} ({}: true)", format, key);
}

// To train on over other numbers may well be meant, but it is not the same model any more.
void tell_of_format(const adapter::AdapterOrigin& before, const adapter::AdapterOrigin& now, Console& console) {
  if (before.base_format.empty() || before.base_format == now.base_format) return;
  console.line(fmt::format("adapter: trained over {} so far, from here on over {}", with_key(before.base_format),
                           with_key(now.base_format)));
}

// A new adapter, or the one to go on from, in the engine.
std::shared_ptr<const EngineAdapter> start_adapter(const options::TrainOptions& options,
                                                   const model::ModelConfig& config, Engine& engine,
                                                   const io::Checkpoint& base, const osft::BasisStore& bases,
                                                   Console& console) {
  auto adapter = std::make_shared<EngineAdapter>(*adapter_of(options, config));
  adapter->origin.base = adapter::base_fingerprint(base);
  if (options.adapter.model_dir.empty()) {
    adapter::AdapterStart start = adapter::start_at_random(adapter->targets, static_cast<std::uint64_t>(options.seed));
    start.set_others(&bases);
    train::start_adapter(engine, adapter->targets, start);
  } else {
    const adapter::AdapterFile file(options.adapter.model_dir, config);
    file.check_base(base);
    if (!file.origin().init.empty()) adapter->origin.init = file.origin().init;
    if (adapter->origin.init == adapter::name_of(adapter::LoraInit::free)) {
      console.line("adapter: it was started with lora_init: free; from here on it may leave the free directions");
    }
    tell_of_format(file.origin(), adapter->origin, console);
    train::start_adapter(engine, adapter->targets, adapter::start_from(file), &file);
  }
  if (options.adapter.keeps_to_free()) {
    console.line(
        fmt::format("adapter: A stays within {:.0f} % of the directions of each input, those that carry the least",
                    100.0 * options.adapter.free_ratio));
  }
  return adapter;
}

// "8 processes, ZeRO 2: each keeps its rows of the optimizer's state and of the gradients"
std::string mesh_text(const parallel::Mesh& mesh) {
  constexpr const char* kept[] = {"each keeps everything", "each keeps its rows of the optimizer's state",
                                  "each keeps its rows of the optimizer's state and of the gradients",
                                  "each keeps its rows of the optimizer's state, the gradients and the weights"};
  const std::string where = mesh.shards->size() == mesh.all->size()
                                ? ""
                                : fmt::format(", divided among {} of each node", mesh.shards->size());
  return fmt::format("parallel: {} processes, ZeRO {}{}: {}", mesh.all->size(), static_cast<int>(mesh.zero), where,
                     kept[static_cast<std::size_t>(mesh.zero)]);
}

// The teacher, or a copy of the base model.
void load_other(Engine& engine, const options::TrainOptions& options, const io::Checkpoint& base, Console& console) {
  const model::Progress progress = [&](std::uint64_t done, std::uint64_t total) {
    stop_where_asked("loading weights");
    console.progress("loading the model to learn from", done, total);
  };
  if (options.distillation.teacher.empty()) return engine.load_other(base, progress);
  engine.load_other(io::Checkpoint(options.distillation.teacher), progress);
}

// What the machine can do, by which the log has shares of the peak and a time to expect. Where it cannot be measured,
// the log has neither.
void expect_speed(const EngineOptions& engine, std::int64_t micro_batches, const model::ModelConfig& config,
                  RunEngine& run) {
  Ceilings ceilings;
  try {
    ceilings = machine_ceilings(engine.device, engine.compute, Remeasure::no, engine.messages);
  } catch (const UserError&) {
    return;
  }
  run.peak = ceilings.rate_of(run.plan.cost.model());
  run.tokens_per_second = estimate_step(run.plan, micro_batches, ceilings).tokens_per_second;
  if (!engine.mesh.many()) return;
  const int processes = engine.mesh.all->size(), nodes = std::max(1, processes / engine.mesh.on_host);
  if (processes % nodes != 0) {  // unequal nodes, which the estimate does not know
    run.tokens_per_second = 0;
    return;
  }
  const TeamShape team{
      .processes = processes, .nodes = nodes, .shards_in_node = engine.mesh.shards->size() < engine.mesh.all->size()};
  run.tokens_per_second = estimate_team_step(run.plan, micro_batches, edge_of(config), team, ceilings,
                                             network_rates("", team, kept_rings(engine.device)))
                              .tokens_per_second;
}

}  // namespace

RunEngine make_run_engine(const options::TrainOptions& options, const model::ModelConfig& config,
                          const BatchBounds& bounds, Console& console,
                          const std::shared_ptr<parallel::Communicator>& ranks) {
  RunEngine run;
  EngineOptions engine;
  parallel::together(*ranks, "the engine's options", [&] { engine = engine_options(options, bounds); });
  engine.messages = backend::messages_to(console);
  engine.mesh = make_mesh(options, ranks);
  osft::FoundBases found;
  if (options.finds_directions()) {
    osft::SearchInputs inputs = search_inputs(options, config, engine.device, console);
    inputs.ranks = ranks;
    inputs.device_budget = common_budget({.device = inputs.device_budget}, engine.mesh, engine.device).device;
    found = osft::find_bases(inputs, config, engine.device, engine.compute, step_shape(options, bounds), console);
    run.basis_fingerprint = found.bases.fingerprint();
  }
  if (options.osft.enabled) {
    engine.weights = std::make_shared<weights::WeightPlan>(osft::weight_plan(found.layout));
  } else if (options.adapter.keeps_to_free()) {
    engine.weights =
        weight_plan(*adapter_of(options, config), config, static_cast<std::uint64_t>(options.seed), &found.layout);
    engine.saves_adapter = true;
  } else {
    parallel::together(*ranks, "what trains", [&] { plan_weights(options, config, bounds, engine); });
  }
  const MemoryChoice memory = resolve_memory(options, config, engine);
  run.plan = memory.plan;
  const std::string device = engine.device == Device::cuda ? backend::cuda::device_name() : "CPU";
  console.line(fmt::format("model: {}, {} parameters, {} on {}, activations: {}, plan: {}", config.model_type,
                           format_count(config.parameter_count()), arithmetic_text(engine), device, engine.policy.str(),
                           format_bytes(run.plan.device_peak)));
  if (config.attention.given()) {
    console.line(fmt::format("attention: mask {}, score {}; other programs will not apply them",
                             config.attention.mask.empty() ? "causal" : config.attention.mask,
                             config.attention.score.empty() ? "s" : config.attention.score));
  }
  // All processes have decided alike.
  if (!memory.fits) throw parallel::SharedError(memory.reason + " (inlay plan shows where the bytes go)");
  describe_memory(engine, run.plan, console);
  if (engine.mesh.many()) console.line(mesh_text(engine.mesh));
  expect_speed(engine, options.gradient_accumulation_steps, config, run);
  const parallel::LongWork patience;  // one rank's disk may be slower than another's
  run.engine = Engine::create(config, engine);
  const io::Checkpoint weights(options.base_model);
  run.base_fingerprint = fmt::format("{:016x}", weights.sampled_hash());
  load_weights(*run.engine, weights, console);
  if (run.engine->other() != nullptr) load_other(*run.engine, options, weights, console);
  if (const std::string objective = objective_text(options); !objective.empty()) console.line(objective);
  if (options.osft.enabled) {
    run.engine->start(&found.bases);
    describe_osft(run, options.osft, found.layout.targets.size(), console);
  }
  if (options.adapter.enabled()) {
    run.adapter = start_adapter(options, config, *run.engine, weights, found.bases, console);
    console.line(fmt::format("{}, {}", adapter_text(*run.adapter), trainable_text(run.plan, config)));
  }
  return run;
}

}  // namespace inlay::train
