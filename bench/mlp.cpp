#include "bench/bench.h"
#include "model/mlp_block.h"
#include "train/session.h"

namespace inlay::bench {

namespace {

struct MlpArguments : Common {
  std::int64_t tokens = 65536, hidden = 4096, intermediate = 14336, tile = 16384;
  bool keep = false;
};

// The block as a layer uses it, its norm and residual included, with everything but its input made again in the
// backward pass unless told otherwise.
Report run(const MlpArguments& a) {
  const auto [device, dtype] = train::resolve_machine(a.device, a.dtype);
  model::ModelConfig config;
  config.hidden = a.hidden;
  config.intermediate = a.intermediate;
  config.heads = config.kv_heads = 1;
  config.head_dim = a.hidden;
  config.vocab = 1;
  config.layers.resize(1);
  const model::LayerPolicy policy = a.keep ? model::LayerPolicy::keep_all() : model::LayerPolicy::recompute_all();

  double ms = 0;
  const auto work = [&](backend::Exec& exec) {
    Arena& arena = exec.arena();
    model::ModelParameters parameters(config);
    model::MlpParameters& mlp = parameters.layers[0]->mlp;
    std::uint64_t seed = 0;
    for (weights::Parameter* p : {&mlp.norm, &mlp.gate_up, &mlp.down}) {
      weights::allocate_value(exec, *p, dtype);
      weights::allocate_training_state(exec, *p);
      if (!exec.planning()) fill_random(exec, p->value, 0.02f, ++seed);
    }
    model::MlpBlock block(exec, config, mlp, [](backend::Exec&, weights::Parameter& p) {
      return std::unique_ptr<weights::Weight>(std::make_unique<weights::DenseWeight>(p));
    });
    const Shape shape{a.tokens, a.hidden};
    const auto stream = [&](const char* name) {
      View view = arena.keep(MemoryClass::activations, name, dtype, shape);
      if (!exec.planning()) fill_random(exec, view, 1.0f, ++seed);
      return view;
    };
    const View x = stream("input"), residual = stream("residual"), out = stream("output"), grad = stream("gradient");
    const std::size_t before = arena.used();
    const auto call = [&] {
      const std::size_t mark = arena.mark();
      for (weights::Parameter* p : {&mlp.norm, &mlp.gate_up, &mlp.down}) p->forget_grad();
      model::MlpBlock::Saved saved;
      block.forward(exec, out, residual, x, policy, a.tile, saved);
      block.backward(exec, grad, residual, a.tile, saved);
      arena.release_to(mark);
    };
    if (exec.planning()) {
      call();
    } else {
      ms = median_ms(exec, a.iterations, call);
    }
    return before;
  };
  backend::Exec planner = backend::Exec::planner(device);
  const std::size_t before = work(planner);
  backend::Exec exec = backend::Exec::runner(device, planner.arena().peak());
  work(exec);
  const double flops = planner.cost().total().flops();
  return {{"ms", ms},
          {"floor_ms", flops / measured_matmul_rate(device, dtype) * 1e3},
          {"tflops", flops / ms * 1e-9},
          {"peak_extra_bytes", planner.arena().peak() - before},
          {"tokens", a.tokens},
          {"hidden", a.hidden},
          {"intermediate", a.intermediate},
          {"tile", a.tile},
          {"device", name_of(device)},
          {"dtype", name_of(dtype)}};
}

}  // namespace

Benchmark mlp_benchmark() {
  return {"mlp", "the tiled SwiGLU MLP of a layer, forward and backward",
          [](CLI::App& command) -> std::function<Report()> {
            auto a = std::make_shared<MlpArguments>();
            add_common(command, *a);
            command.add_option("--tokens", a->tokens)->check(CLI::PositiveNumber);
            command.add_option("--hidden", a->hidden)->check(CLI::PositiveNumber);
            command.add_option("--intermediate", a->intermediate)->check(CLI::PositiveNumber);
            command.add_option("--tile", a->tile, "Rows at once; 0: all")->check(CLI::NonNegativeNumber);
            command.add_flag("--keep", a->keep, "Keep gate, up and the norm for the backward pass");
            return [a] { return run(*a); };
          }};
}

}  // namespace inlay::bench
