#include "train/session.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "backend/cpu/gemm.h"
#include "backend/cuda/context.h"
#include "core/interrupt.h"
#include "core/text.h"
#include "model/families/family.h"
#include "train/freeze.h"
#include "train/mesh.h"
#include "train/model_folder.h"
#include "train/objective.h"
#include "train/samples.h"

namespace inlay::train {

Machine resolve_machine(std::optional<Device> device, std::optional<DType> compute) {
  Machine machine;
  machine.device = device.value_or(backend::cuda::available() ? Device::cuda : Device::cpu);
  const bool native = machine.device == Device::cuda || backend::cpu::amx_usable();
  machine.compute = compute.value_or(native ? DType::bf16 : DType::f32);
  return machine;
}

Machine resolve_machine(const std::string& device, const std::string& dtype) {
  std::optional<Device> where;
  if (device == "cpu") where = Device::cpu;
  if (device == "cuda") where = Device::cuda;
  if (!where && device != "auto") user_error("device: expected auto, cpu or cuda, got '{}'", device);
  std::optional<DType> compute;
  if (dtype != "auto") {
    compute = parse_floating_dtype(dtype);
    if (!compute || *compute == DType::f16) user_error("dtype: expected auto, fp32 or bf16, got '{}'", dtype);
  }
  return resolve_machine(where, compute);
}

osft::StepShape step_shape(const options::TrainOptions& options, const BatchBounds& bounds) {
  return {.tokens = bounds.tokens,
          .micro_batches = options.gradient_accumulation_steps,
          .mlp_tile = options.mlp_tile.value_or(0)};
}

model::ModelConfig config_of(const options::TrainOptions& options) {
  model::ModelConfig config = model::load_config(options.base_model);
  if (options.attention != model::AttentionText{}) config.attention = options.attention;
  if (!options.router_aux_loss_coef) return config;
  if (config.expert_layers() == 0) {
    user_error("router_aux_loss_coef: {} has no experts; leave the key out", options.base_model);
  }
  config.experts.balance = *options.router_aux_loss_coef;
  return config;
}

std::set<std::string> frozen_of(const options::TrainOptions& options, const model::ModelConfig& config) {
  if (options.freeze == std::vector<std::string>{"none"}) return {};
  return frozen_by_name(options.freeze, config);
}

namespace {

// PiSSA is saved with twice the rank, which must be one that the matrices can have.
void check_doubled(const EngineAdapter& adapter) {
  for (const adapter::AdaptedPart& part : adapter.targets.parts) {
    const std::int64_t most = std::min(part.in, part.out);
    if (2 * part.rank <= most) continue;
    user_error(
        "lora_r: {}: with lora_init: pissa an adapter is saved with twice that, more than {} can have, which is {} by "
        "{}; expected at most {}",
        part.rank, part.module, part.out, part.in, most / 2);
  }
}

}  // namespace

std::shared_ptr<const EngineAdapter> adapter_of(const options::TrainOptions& options,
                                                const model::ModelConfig& config) {
  if (!options.adapter.enabled()) return nullptr;
  const std::string& base = options.base_name.empty() ? options.base_model : options.base_name;
  adapter::ResolvedAdapter resolved = adapter::resolve(options.adapter, config, base, options.source);
  auto result = std::make_shared<EngineAdapter>();
  result->config = std::move(resolved.config);
  result->targets = std::move(resolved.targets);
  result->format = base_format(options.adapter, options.base_model);
  result->origin.base_format = result->format.name(resolve_machine(options.device, options.dtype).compute);
  result->init = options.adapter.init.value_or(adapter::LoraInit::gaussian);
  if (result->keeps_start()) check_doubled(*result);
  result->origin.init = std::string(adapter::name_of(result->init));
  return result;
}

std::string adapter_text(const EngineAdapter& adapter) {
  std::string text =
      fmt::format("adapter: rank {} on {} matrices over {}", adapter.config.rank,
                  format_count(static_cast<std::int64_t>(adapter.targets.parts.size())), adapter.origin.base_format);
  if (adapter.format.mxfp4_experts) text += ", experts over mxfp4";
  if (!adapter.targets.saved.empty()) text += fmt::format(", {} whole", adapter.targets.saved.size());
  return text;
}

std::string trainable_text(const MemoryPlan& plan, const model::ModelConfig& config) {
  return fmt::format("{} trainable parameters ({:.2f} % of the model)", format_count(plan.trained),
                     100.0 * static_cast<double>(plan.trained) / static_cast<double>(config.parameter_count()));
}

namespace {

// What the search for directions is asked for: OSFT's own keys, or what an adapter makes of them.
osft::OsftOptions searched_osft(const options::TrainOptions& options) {
  osft::OsftOptions osft = options.osft;
  if (options.adapter.keeps_to_free()) osft.unfreeze_rank_ratio = options.adapter.free_ratio;
  return osft;
}

// Parameters for which no directions are wanted.
std::set<std::string> searched_frozen(const options::TrainOptions& options, const model::ModelConfig& config) {
  if (!options.adapter.keeps_to_free()) return frozen_of(options, config);
  std::set<std::string> frozen;
  model::ModelParameters(config).for_each([&](const weights::Parameter& p) { frozen.insert(p.name); });
  const auto adapter = adapter_of(options, config);
  for (const adapter::AdaptedPart& part : adapter->targets.parts) frozen.erase(part.parameter);
  return frozen;
}

}  // namespace

void plan_weights(const options::TrainOptions& options, const model::ModelConfig& config, const BatchBounds& bounds,
                  EngineOptions& engine) {
  const std::set<std::string> frozen = frozen_of(options, config);
  if (const auto adapter = adapter_of(options, config)) {
    osft::OsftLayout free;
    if (options.adapter.keeps_to_free()) {
      const osft::OsftTargets targets(searched_osft(options), config, searched_frozen(options, config));
      free = osft::nominal_layout(targets, config, step_shape(options, bounds));
    }
    engine.weights = weight_plan(*adapter, config, static_cast<std::uint64_t>(options.seed),
                                 options.adapter.keeps_to_free() ? &free : nullptr);
    engine.saves_adapter = true;
    engine.saves_start = adapter->keeps_start();
  } else if (options.osft.enabled) {
    const osft::OsftTargets targets(options.osft, config, frozen);
    engine.weights = std::make_shared<weights::WeightPlan>(
        osft::weight_plan(osft::nominal_layout(targets, config, step_shape(options, bounds))));
  } else if (!frozen.empty()) {
    auto plan = std::make_shared<weights::WeightPlan>();
    plan->frozen = frozen;
    engine.weights = std::move(plan);
  }
}

osft::SearchInputs search_inputs(const options::TrainOptions& options, const model::ModelConfig& config, Device device,
                                 Console& console) {
  osft::SearchInputs inputs{.osft = searched_osft(options),
                            .base_model = options.base_model,
                            .seed = static_cast<std::uint64_t>(options.seed),
                            .frozen = searched_frozen(options, config),
                            .device_budget = budget_of(options, device).device,
                            .reading = reading_fingerprint(options)};
  inputs.read = [&options, &console, vocab = config.vocab](const std::string& file) {
    return read_calibration_text(file, options, vocab, console);
  };
  return inputs;
}

EngineOptions engine_options(Purpose purpose, const Machine& machine, const BatchBounds& bounds) {
  EngineOptions engine;
  engine.device = machine.device;
  engine.compute = machine.compute;
  engine.training =
      purpose == Purpose::training || purpose == Purpose::gradients || purpose == Purpose::gradients_and_logits;
  engine.optimizer_state = purpose == Purpose::training;
  engine.row_losses = purpose == Purpose::choices;
  engine.max_tokens = bounds.tokens;
  engine.max_document = bounds.document;
  if (purpose == Purpose::gradients_and_logits) engine.logit_rows = bounds.document;
  if (purpose == Purpose::generation) engine.decode_sequences = 1, engine.decode_length = bounds.document;
  return engine;
}

// A plan for a GPU that is not there is one for Hopper's.
std::optional<model::Fp8Options> fp8_of(const options::TrainOptions& o, const Machine& machine) {
  using options::MatmulDtype;
  if (o.matmul_dtype == MatmulDtype::bf16 && machine.compute != DType::bf16) {
    user_error("matmul_dtype: bf16 needs dtype: bf16, but that is {}; leave matmul_dtype out, or change dtype",
               name_of(machine.compute));
  }
  if (o.matmul_dtype != MatmulDtype::fp8) {
    if (o.fp8 != options::TrainOptions::Fp8{}) user_error("fp8: these keys need matmul_dtype: fp8");
    return std::nullopt;
  }
  constexpr int first = 89, hopper = 90;
  const bool seen = machine.device == Device::cuda && backend::cuda::available();
  const int capability = seen ? backend::cuda::compute_capability() : hopper;
  if (capability < first) {
    user_error(
        "matmul_dtype: fp8 needs a GPU of compute capability 8.9 or later; {} has {}.{}, which does not multiply fp8",
        backend::cuda::device_name(), capability / 10, capability % 10);
  }
  const auto recipe = o.fp8.recipe.value_or(capability == hopper ? ops::Fp8Recipe::block : ops::Fp8Recipe::row);
  if (recipe == ops::Fp8Recipe::block && capability != hopper) {
    user_error("fp8.recipe: cuBLAS multiplies by blocks only on Hopper GPUs, not on {}; use row or tensor",
               backend::cuda::device_name());
  }
  if (recipe == ops::Fp8Recipe::block && o.fp8.sums == ops::Fp8Sums::fast) {
    user_error(
        "fp8.sums: fast is for the recipes row and tensor; blocks have scales of their own and are summed in fp32");
  }
  return model::Fp8Options{.settings = {.recipe = recipe, .gradients = o.fp8.gradients, .sums = o.fp8.sums},
                           .head = o.fp8.head,
                           .skip_first = o.fp8.skip_first,
                           .skip_last = o.fp8.skip_last,
                           .layers = o.fp8.layers};
}

std::string arithmetic_text(const EngineOptions& engine) {
  if (!engine.fp8) return std::string(name_of(engine.compute));
  const ops::Fp8Settings& fp8 = engine.fp8->settings;
  return fmt::format("{} with products in fp8 ({}{}{})", name_of(engine.compute), ops::name_of(fp8.recipe),
                     fp8.sums == ops::Fp8Sums::fast ? ", fast sums" : "", engine.fp8->head ? ", the head too" : "");
}

EngineOptions engine_options(const options::TrainOptions& o, const BatchBounds& bounds) {
  const Machine machine = resolve_machine(o.device, o.dtype);
  EngineOptions engine = engine_options(Purpose::training, machine, bounds);
  engine.fp8 = fp8_of(o, machine);
  set_objective(o, engine);
  engine.decode_sequences = bounds.answers;
  engine.decode_length = bounds.answer_length;
  engine.others_tokens = bounds.others_tokens;
  engine.others_document = bounds.others_document;
  if (!o.sample_prompts.empty()) Samples(o).announce(engine);
  engine.kept_predictions = bounds.kept;
  engine.deterministic = o.deterministic;
  engine.optimizer = {.kind = o.optimizer,
                      .muon_momentum = o.muon.momentum,
                      .muon_scale = o.muon.scale,
                      .beta1 = o.adam_beta1,
                      .beta2 = o.adam_beta2,
                      .eps = o.adam_epsilon,
                      .weight_decay = o.weight_decay,
                      .decay_vectors = o.weight_decay_all,
                      .max_grad_norm = o.max_grad_norm,
                      .moments = o.optimizer_state};
  return engine;
}

std::unique_ptr<Engine> load_engine(const std::filesystem::path& folder, const model::ModelConfig& config,
                                    const EngineOptions& options, Console& console,
                                    const std::filesystem::path& adapter) {
  EngineOptions speaking = options;
  speaking.messages = backend::messages_to(console);
  const io::Checkpoint base(folder);
  if (adapter.empty()) {
    auto engine = Engine::create(config, speaking);
    load_weights(*engine, base, console);
    return engine;
  }
  const adapter::AdapterFile file(adapter, config);
  file.check_base(base);
  if (options.training) adapter::check_trains(file.targets(), adapter.string());
  EngineAdapter with{.config = file.config(), .targets = file.targets(), .format = {}, .origin = file.origin()};
  with.config.dropout = 0;
  with.format = format_of(file.origin(), folder);
  speaking.weights = weight_plan(with, config);
  auto engine = Engine::create(config, speaking);
  load_weights(*engine, base, console);
  start_adapter(*engine, with.targets, adapter::start_from(file), &file);
  return engine;
}

void load_weights(Engine& engine, const io::Checkpoint& weights, Console& console) {
  engine.load(weights, [&](std::uint64_t done, std::uint64_t total) {
    stop_where_asked("loading weights");
    console.progress("loading weights", done, total);
  });
}

MemoryBudget budget_of(const options::TrainOptions& options, Device device) {
  const auto bytes = [](double gib) { return static_cast<std::size_t>(gib * 0x1p30); };
  MemoryBudget budget;
  // Without the device there is nothing to fit into: the plan then shows what keeping everything takes.
  const bool blind = device == Device::cuda && !backend::cuda::available();
  budget.device = options.memory.device ? bytes(*options.memory.device)
                  : blind               ? Arena::unlimited
                                        : memory_budget(device);
  budget.host = options.memory.host ? bytes(*options.memory.host) : host_memory_budget();
  if (options.memory.disk != "off") budget.disk = options.memory.disk;
  return budget;
}

MemoryDemands demands_of(const options::TrainOptions& options) {
  MemoryDemands demands;
  if (options.activation_policy != "auto") demands.policy = model::ActivationPolicy::parse(options.activation_policy);
  demands.mlp_tile = options.mlp_tile;
  demands.loss_chunk = options.loss.chunk;
  demands.host_layers = options.memory.host_layers;
  if (options.adapter.enabled()) {
    const adapter::AdapterOptions& a = options.adapter;
    demands.lighter = fmt::format("lower lora_r or sequence_len, or name fewer targets{}",
                                  a.load_in_4bit ? "" : "; load_in_4bit: true holds the base in four bits");
  }
  return demands;
}

namespace {

std::set<std::string> exact_when_saved(const options::TrainOptions& options, const model::ModelConfig& config,
                                       DType compute) {
  const std::optional<io::Checkpoint> base = readable_weights(options.base_model);
  return saved_otherwise(config, base ? &*base : nullptr, compute);
}

// Where there is memory for a copy of what a process writes of a checkpoint, it is written beside the steps. The plan
// must be the same on all processes: documents are dealt by it.
void stage_checkpoints(const options::TrainOptions& options, const model::ModelConfig& config,
                       const MemoryBudget& budget, EngineOptions& engine, MemoryPlan& plan) {
  const bool saves = options.saves_along() || options.saves_best();
  if (!saves) return;
  EngineOptions staged = engine;
  staged.staged = options.save_only_model ? Staged::model : Staged::all;
  if (options.save_only_model) staged.saved_otherwise = exact_when_saved(options, config, engine.compute);
  staged.mesh = as_first_process(engine.mesh);
  const MemoryPlan more = Engine::plan(config, staged);
  const bool one_memory = engine.device == Device::cpu;
  const bool fits = one_memory ? more.device_peak + more.host_peak <= budget.device : more.host_peak <= budget.host;
  if (!fits) return;
  engine.staged = staged.staged;
  engine.saved_otherwise = std::move(staged.saved_otherwise);
  plan = more;
}

// Of what names nothing, nobody would notice that it does.
void check_fp8_parts(const model::Fp8Options& fp8, const model::ModelConfig& config) {
  for (const std::string& entry : fp8.layers) {
    bool found = false;
    model::ModelParameters(config).for_each([&](const weights::Parameter& p) {
      found = found || (p.layer >= 0 && p.is_matrix() && model::Fp8Options::names(entry, p));
    });
    if (found) continue;
    user_error(
        "fp8.layers: '{}' names no matrix of a layer; expected a layer's number, 0 to {}, or a pattern of tensor "
        "names such as \"*.mlp.*\"",
        entry, config.layer_count() - 1);
  }
  // One matrix of every expert of a layer is multiplied by together.
  std::map<std::pair<std::int64_t, weights::Role>, const weights::Parameter*> first;
  model::ModelParameters parameters(config);
  parameters.for_each([&](const weights::Parameter& p) {
    if (p.expert < 0) return;
    const weights::Parameter& other = *first.try_emplace({p.layer, p.role}, &p).first->second;
    if (fp8.takes(p, config) == fp8.takes(other, config)) return;
    const auto& [in, out] = fp8.takes(p, config) ? std::pair(&p, &other) : std::pair(&other, &p);
    user_error(
        "fp8.layers: of the experts of layer {}, '{}' is named but '{}' is not; a layer's experts are computed "
        "together: name all of them or none, such as \"{}\"",
        p.layer, in->parts.front().label(), out->parts.front().label(), p.layer);
  });
  if (fp8.head && (config.vocab % 16 != 0 || config.hidden % 16 != 0)) {
    user_error("fp8.head: the head is {} by {}, but products in fp8 need multiples of 16; leave fp8.head out",
               config.vocab, config.hidden);
  }
}

MemoryChoice choose_within(const options::TrainOptions& options, const model::ModelConfig& config,
                           const MemoryBudget& budget, EngineOptions& engine) {
  if (options.memory.host_layers && *options.memory.host_layers > config.layer_count()) {
    user_error("memory.host_layers: {}, but the model has {} layers", *options.memory.host_layers,
               config.layer_count());
  }
  if (engine.fp8) check_fp8_parts(*engine.fp8, config);
  MemoryChoice choice = choose_memory_together(config, engine, demands_of(options), budget, options.parallel.zero);
  if (engine.fp8 && choice.plan.cost.model().products[static_cast<std::size_t>(DType::e4m3)] == 0) {
    user_error(
        "matmul_dtype: fp8: no matrix of {} would multiply in it; it needs a matrix of a layer, with extents that "
        "are multiples of 16, not kept quantised, and not excluded by fp8.skip_first, fp8.skip_last or fp8.layers; "
        "experts only on Hopper GPUs and the CPU",
        options.base_model.empty() ? "this model" : options.base_model);
  }
  if (choice.fits) stage_checkpoints(options, config, budget, engine, choice.plan);
  return choice;
}

}  // namespace

MemoryChoice resolve_memory(const options::TrainOptions& options, const model::ModelConfig& config,
                            EngineOptions& engine) {
  const MemoryBudget budget = common_budget(budget_of(options, engine.device), engine.mesh, engine.device);
  const std::shared_ptr<parallel::Communicator> ranks = engine.mesh.all;  // while others stand in its place
  MemoryChoice choice;
  parallel::together(*ranks, "planning memory", [&] { choice = choose_within(options, config, budget, engine); });
  return choice;
}

}  // namespace inlay::train
