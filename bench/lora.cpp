#include "bench/step.h"
#include "train/session.h"

namespace inlay::bench {

namespace {

struct LoraArguments : Common, Products, Learned, MethodStep {
  std::string base = "dense";
  std::int64_t rank = 16;
  double dropout = 0;
  std::optional<double> memory;
  bool experts = false, dora = false, no_adapter = false;
};

train::EngineAdapter adapter_of(const LoraArguments& a, const model::ModelConfig& config) {
  train::EngineAdapter adapter;
  adapter.config.rank = a.rank;
  adapter.config.alpha = 2.0 * static_cast<double>(a.rank);
  adapter.config.dropout = a.dropout;
  adapter.config.dora = a.dora;
  adapter.config.target_modules.names = adapter::linear_names(config);
  if (a.experts) adapter.config.target_parameters = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"};
  adapter.targets = adapter::find_targets(adapter.config, config, {.file = "bench", .options = true});
  if (a.base == "mxfp4-experts") {
    adapter.format.mxfp4_experts = true;
  } else {
    adapter.format.matrices = ops::parse_quant_format(a.base);
  }
  return adapter;
}

Report run(const LoraArguments& a) {
  const model::ModelConfig config = a.config();
  const train::Machine machine = train::resolve_machine(a.device, a.dtype);
  const train::BatchBounds bounds = a.bounds();
  train::EngineOptions engine = train::engine_options(train::Purpose::training, machine, bounds);
  engine.deterministic = a.deterministic;
  engine.fp8 = fp8_of(a, machine);
  set_objective(engine, a, a.model, a.documents);
  const train::EngineAdapter adapter = adapter_of(a, config);
  if (!a.no_adapter) engine.weights = train::weight_plan(adapter, config, 1), engine.saves_adapter = true;
  options::TrainOptions options;
  options.activation_policy = a.policy;
  options.memory.device = a.memory;
  train::resolve_memory(options, config, engine);
  Report report = time_step(config, engine,
                            {.documents = a.documents,
                             .length = bounds.document,
                             .iterations = a.iterations,
                             .mxfp4_experts = adapter.format.mxfp4_experts});
  report["rank"] = a.rank;
  report["base"] = a.base;
  report["adapted"] = adapter.targets.parts.size();
  report["dora"] = a.dora;
  report["dropout"] = a.dropout;
  return report;
}

}  // namespace

Benchmark lora_benchmark() {
  return {"lora", "a training step with LoRA on all linear layers, AdamW included",
          [](CLI::App& command) -> std::function<Report()> {
            auto a = std::make_shared<LoraArguments>();
            add_common(command, *a);
            add_products(command, *a);
            add_objective(command, *a);
            add_method_step(command, *a);
            command.add_option("--rank", a->rank, "Rank of every adapter")->check(CLI::PositiveNumber);
            command.add_option("--base", a->base, "How the base's matrices are held")
                ->check(CLI::IsMember({"dense", "nf4", "int8", "fp8", "mxfp4-experts"}));
            command.add_option("--memory", a->memory, "GiB to plan for")->check(CLI::PositiveNumber);
            command.add_option("--dropout", a->dropout)->check(CLI::Range(0.0, 0.99));
            command.add_flag("--experts", a->experts, "Adapt the experts too");
            command.add_flag("--dora", a->dora);
            command.add_flag("--no-adapter", a->no_adapter, "The full step, to compare with");
            return [a] { return run(*a); };
          }};
}

}  // namespace inlay::bench
