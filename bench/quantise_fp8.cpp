#include "bench/bench.h"
#include "ops/elementwise.h"
#include "ops/swiglu.h"
#include "train/session.h"

namespace inlay::bench {

namespace {

struct QuantiseFp8Arguments : Common, Products {
  std::string work = "quantise";
  std::int64_t tokens = 16384, cols = 28672;
};

// What is measured, over tensors that are taken from the Exec's arena.
std::function<void()> prepare(backend::Exec& exec, const QuantiseFp8Arguments& a, DType dtype,
                              const ops::Fp8Settings& settings) {
  using ops::Fp8Role;
  using ops::Fp8Use;
  const auto tensor = [&](std::int64_t cols, std::uint64_t seed) {
    const View view = exec.arena().keep(MemoryClass::workspace, "operand", dtype, {a.tokens, cols});
    fill_random(exec, view, 1.0f, seed);
    return view;
  };
  const auto forms = [&](Fp8Role role, Fp8Use use, std::int64_t cols) {
    return ops::keep_fp8(exec, MemoryClass::weights, "operand", settings, role, use, a.tokens, cols);
  };
  const View x = tensor(a.cols, 1);
  if (a.work == "quantise") {
    const auto to = forms(Fp8Role::gradient, Fp8Use::both, a.cols);
    return [&exec, to, x] { ops::quantise_fp8(exec, to, x); };
  }
  const std::int64_t width = a.cols / 2;
  if (a.work == "swiglu-forward") {
    const auto act = forms(Fp8Role::input, Fp8Use::rows, width);
    return [&exec, act, x] { ops::swiglu_forward_fp8(exec, act, x); };
  }
  const View dact = tensor(width, 2);
  const auto act = forms(Fp8Role::input, Fp8Use::columns, width);
  const auto dgate_up = forms(Fp8Role::gradient, Fp8Use::both, a.cols);
  return [&exec, act, dgate_up, dact, x] { ops::swiglu_backward_fp8(exec, dgate_up, act, dact, x); };
}

Report run(const QuantiseFp8Arguments& a) {
  const train::Machine machine = train::resolve_machine(a.device, a.dtype);
  const auto fp8 = fp8_of(a, machine);
  if (!fp8) user_error("quantise-fp8 writes operands of fp8 products; leave --matmul-dtype auto out");
  backend::Exec planner = backend::Exec::planner(machine.device);
  prepare(planner, a, machine.compute, fp8->settings)();
  planner.arena().keep(MemoryClass::workspace, "copy", machine.compute, {a.tokens, a.cols});
  const double bytes = planner.cost().total().bytes + planner.cost().total().host_bytes;

  backend::Exec exec = backend::Exec::runner(machine.device, planner.arena().peak());
  const auto work = prepare(exec, a, machine.compute, fp8->settings);
  const View copy = exec.arena().keep(MemoryClass::workspace, "copy", machine.compute, {a.tokens, a.cols / 2});
  const View from = exec.arena().keep(MemoryClass::workspace, "copy", machine.compute, {a.tokens, a.cols / 2});
  const double ms = median_ms(exec, a.iterations, work);
  const double copy_ms = median_ms(exec, a.iterations, [&] { ops::cast(exec, copy, from); });
  const double copied = 2.0 * static_cast<double>(copy.bytes());
  return {{"ms", ms},
          {"gb_per_s", bytes / ms * 1e-6},
          {"copy_gb_per_s", copied / copy_ms * 1e-6},
          {"floor_ms", bytes / (copied / copy_ms)},
          {"peak_extra_bytes", planner.arena().peak()},
          {"work", a.work},
          {"recipe", ops::name_of(fp8->settings.recipe)},
          {"tokens", a.tokens},
          {"cols", a.cols},
          {"device", name_of(machine.device)},
          {"dtype", name_of(machine.compute)}};
}

}  // namespace

Benchmark quantise_fp8_benchmark() {
  return {
      "quantise-fp8", "writing operands of fp8 products, both forms at once, beside a copy",
      [](CLI::App& command) -> std::function<Report()> {
        auto a = std::make_shared<QuantiseFp8Arguments>();
        a->matmul = "fp8";
        add_common(command, *a);
        add_products(command, *a);
        command.add_option("--work", a->work)->check(CLI::IsMember({"quantise", "swiglu-forward", "swiglu-backward"}));
        command.add_option("--tokens", a->tokens)->check(CLI::PositiveNumber);
        command.add_option("--cols", a->cols, "Of the tensor; of gate and up together")->check(CLI::PositiveNumber);
        return [a] { return run(*a); };
      }};
}

}  // namespace inlay::bench
