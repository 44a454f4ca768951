#include "backend/cuda/context.h"
#include "bench/bench.h"
#include "core/philox.h"
#include "model/families/family.h"
#include "train/session.h"

namespace inlay::bench {

namespace {

struct Arguments : Common {
  std::string config, optimizer = "adamw", policy = "auto";
  std::int64_t documents = 1, length = 2048, tile = 0;
  bool nondeterministic = false;
};

Report run(const Arguments& a) {
  const model::ModelConfig config = model::load_config(a.config);
  train::EngineOptions options;
  options.device = train::resolve_device(a.device);
  options.compute = train::resolve_dtype(a.dtype, options.device);
  options.mlp_tile = a.tile;
  options.deterministic = !a.nondeterministic;
  options.optimizer_state = a.optimizer == "adamw";
  options.optimizer.max_grad_norm = 1.0;
  options.max_tokens = a.documents * a.length;
  options.max_document = a.length;
  options.policy = a.policy == "auto" ? train::choose_policy(config, options, train::memory_budget(options.device))
                                      : model::ActivationPolicy::parse(a.policy);
  const train::MemoryPlan plan = train::Engine::plan(config, options);
  const double rate = measured_matmul_rate(options.device, options.compute);

  const auto engine = train::Engine::create(config, options);
  std::uint64_t seed = 0;
  engine->decoder().parameters().for_each([&](weights::Parameter& p) {
    fill_random(engine->exec(), p.value, p.shape.rank() == 1 ? 1.0f : 0.02f, ++seed);
    if (!p.low.absent()) engine->exec().fill_zero(p.low);
  });
  std::vector<Document> documents(static_cast<std::size_t>(a.documents));
  const Philox philox{11};
  std::uint64_t counter = 0;
  for (Document& d : documents) {
    for (std::int64_t t = 0; t < a.length; ++t) {
      d.input_ids.push_back(
          static_cast<std::int32_t>(philox.words(counter++)[0] % static_cast<std::uint64_t>(config.vocab)));
    }
    d.labels = d.input_ids;
  }
  const std::vector<PackedBatch> batches = {pack(documents)};
  std::int64_t step = 0;
  const double ms = median_ms(engine->exec(), a.iterations, [&] {
    if (options.optimizer_state) {
      engine->train_step(batches, ++step, 1e-6);
    } else {
      engine->gradients(batches);
    }
  });
  const auto tokens = static_cast<double>(options.max_tokens);
  const double attention_flops =
      7.0 * static_cast<double>(a.length) * static_cast<double>(config.q_width() * config.layer_count());
  const double flops = tokens * (config.matmul_flops_per_token() + attention_flops);
  return {{"ms", ms},
          {"tokens_per_second", tokens / ms * 1e3},
          {"floor_ms", flops / rate * 1e3},
          {"model_tflops", flops / ms * 1e-9},
          {"peak_extra_bytes", plan.device_peak},
          {"arena_peak_bytes", engine->exec().arena().peak()},
          {"device_used_bytes", options.device == Device::cuda ? backend::cuda::device_memory_used() : 0},
          {"parameters", config.parameter_count()},
          {"documents", a.documents},
          {"length", a.length},
          {"optimizer", a.optimizer},
          {"activation_policy", options.policy.str()},
          {"deterministic", options.deterministic},
          {"loss", engine->decoder().read_loss(engine->exec()).loss},
          {"device", name_of(options.device)},
          {"dtype", name_of(options.compute)}};
}

}  // namespace

Benchmark train_step_benchmark() {
  return {"train-step", "forward, backward and AdamW of a model's shape with random weights",
          [](CLI::App& command) -> std::function<Report()> {
            auto a = std::make_shared<Arguments>();
            add_common(command, *a);
            command.add_option("--config", a->config, "config.json of the shape")->required();
            command.add_option("--documents", a->documents)->check(CLI::PositiveNumber);
            command.add_option("--length", a->length)->check(CLI::PositiveNumber);
            command.add_option("--optimizer", a->optimizer, "adamw, or none: forward and backward alone")
                ->check(CLI::IsMember({"adamw", "none"}));
            command.add_option("--policy", a->policy, "Activation policy, or auto");
            command.add_option("--mlp-tile", a->tile, "Rows the MLP works on at once; 0: all");
            command.add_flag("--nondeterministic", a->nondeterministic,
                             "Let attention's backward pass sum in any order");
            return [a] { return run(*a); };
          }};
}

}  // namespace inlay::bench
