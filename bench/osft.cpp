#include "bench/step.h"
#include "train/session.h"

namespace inlay::bench {

namespace {

struct OsftArguments : Common, Products, MethodStep {
  std::string basis = "activations", route = "auto", moments = "fp32";
  double unfreeze = 0.25;
  bool train_head = false;
};

Report run(const OsftArguments& a) {
  const model::ModelConfig config = a.config();
  options::TrainOptions options;
  const train::Machine machine = train::resolve_machine(a.device, a.dtype);
  options.device = machine.device;
  options.dtype = machine.compute;
  options.optimizer_state = *parse_floating_dtype(a.moments);
  options.deterministic = a.deterministic;
  options.activation_policy = a.policy;
  options.osft.enabled = a.basis != "none";
  options.osft.basis = a.basis == "weights" ? osft::BasisKind::weights : osft::BasisKind::activations;
  options.osft.unfreeze_rank_ratio = a.unfreeze;
  options.osft.route = weights::parse_route(a.route);
  options.osft.tokens = osft::TrainedTokens::all;  // a mask would want to be found
  if (!a.train_head) options.osft.freeze = {"embeddings", "head"};
  const train::BatchBounds bounds = a.bounds();
  train::EngineOptions engine = train::engine_options(options, bounds);
  engine.fp8 = fp8_of(a, machine);
  train::plan_weights(options, config, bounds, engine);
  train::resolve_memory(options, config, engine);
  Report report =
      time_step(config, engine, {.documents = a.documents, .length = bounds.document, .iterations = a.iterations});
  report["basis"] = a.basis;
  report["unfreeze_rank_ratio"] = a.unfreeze;
  report["frozen"] = options.osft.enabled ? options.osft.freeze : std::vector<std::string>();
  Report routes;
  if (engine.weights != nullptr) {
    model::ModelParameters(config).for_each([&](const weights::Parameter& p) {
      if (p.layer <= 0 && engine.weights->kinds.contains(p.name)) {  // the layers are alike
        routes[p.name] = engine.weights->of(p).describe();
      }
    });
  }
  report["routes"] = routes;
  return report;
}

}  // namespace

Benchmark osft_benchmark() {
  return {
      "osft", "a training step under OSFT: forward, backward, projection, AdamW, rebuilding the weights",
      [](CLI::App& command) -> std::function<Report()> {
        auto a = std::make_shared<OsftArguments>();
        add_common(command, *a);
        add_products(command, *a);
        add_method_step(command, *a);
        command.add_option("--basis", a->basis, "activations, weights, or none: plain fine-tuning")
            ->check(CLI::IsMember({"activations", "weights", "none"}));
        command.add_option("--unfreeze", a->unfreeze, "Share of directions that train")->check(CLI::Range(1e-6, 1.0));
        command.add_option("--route", a->route)->check(CLI::IsMember({"auto", "direct", "dense", "factored"}));
        command.add_option("--moments", a->moments, "fp32 or bf16")->check(CLI::IsMember({"fp32", "bf16"}));
        command.add_flag("--train-head", a->train_head, "Also train embeddings and head");
        return [a] { return run(*a); };
      }};
}

}  // namespace inlay::bench
