#include "bench/bench.h"
#include "ops/elementwise.h"
#include "ops/quantised.h"
#include "train/session.h"

namespace inlay::bench {

namespace {

struct DequantiseArguments : Common {
  std::string format = "nf4";
  std::int64_t matrices = 32, rows = 5760, cols = 2880;
};

Report run(const DequantiseArguments& a) {
  const train::Machine machine = train::resolve_machine(a.device, a.dtype);
  const Device device = machine.device;
  const DType dtype = machine.compute;
  const auto format = *ops::parse_quant_format(a.format);
  const auto made_in = [&](backend::Exec& exec) {
    const auto take = [&](std::string_view name, DType type, Shape shape) {
      return exec.arena().keep(MemoryClass::weights, name, type, shape);
    };
    std::vector<ops::Quantised> made;
    for (std::int64_t m = 0; m < a.matrices; ++m) made.push_back(ops::make_quantised(format, a.rows, a.cols, take));
    return made;
  };
  const auto opened_in = [&](backend::Exec& exec) {
    return exec.arena().keep(MemoryClass::workspace, "opened", dtype, {a.matrices, a.rows, a.cols});
  };

  backend::Exec planner = backend::Exec::planner(device);
  const auto planned = made_in(planner);
  ops::dequantise_rows(planner, opened_in(planner), planned, 0);
  opened_in(planner);  // for the copy
  const std::int64_t waiting = std::max<std::int64_t>(ops::quant_pending_scales(format, a.rows, a.cols), 1);
  planner.arena().keep(MemoryClass::workspace, "pending", DType::f32, {waiting});
  const backend::Work work = planner.cost().total();

  backend::Exec exec = backend::Exec::runner(device, planner.arena().peak());
  const auto matrices = made_in(exec);
  const View out = opened_in(exec), copy = opened_in(exec);
  const View pending = exec.arena().keep(MemoryClass::workspace, "pending", DType::f32, {waiting});
  const View values = copy.slice_rows(0, 1).reshape({a.rows, a.cols});
  fill_random(exec, values, 0.02f, 1);
  for (const ops::Quantised& matrix : matrices) {
    ops::quantise_rows(exec, matrix, 0, values, pending);
    ops::finish_quantising(exec, matrix, pending);
  }
  const double ms = median_ms(exec, a.iterations, [&] { ops::dequantise_rows(exec, out, matrices, 0); });
  const double copy_ms = median_ms(exec, a.iterations, [&] { ops::cast(exec, copy, out); });
  const double bytes = work.bytes + work.host_bytes, copied = 2.0 * static_cast<double>(out.bytes());
  return {{"ms", ms},
          {"gb_per_s", bytes / ms * 1e-6},
          {"copy_gb_per_s", copied / copy_ms * 1e-6},
          {"floor_ms", bytes / (copied / copy_ms)},
          {"peak_extra_bytes", 0},
          {"bits_per_number", 8.0 * (bytes - static_cast<double>(out.bytes())) / static_cast<double>(out.size())},
          {"format", a.format},
          {"matrices", a.matrices},
          {"rows", a.rows},
          {"cols", a.cols},
          {"device", name_of(device)},
          {"dtype", name_of(dtype)}};
}

}  // namespace

Benchmark dequantise_benchmark() {
  return {
      "dequantise", "opening quantised matrices, beside a copy of what comes out",
      [](CLI::App& command) -> std::function<Report()> {
        auto a = std::make_shared<DequantiseArguments>();
        add_common(command, *a);
        command.add_option("--format", a->format, "nf4, mxfp4, int8 or fp8")
            ->check(CLI::IsMember({"nf4", "mxfp4", "int8", "fp8"}));
        command.add_option("--matrices", a->matrices, "Matrices that are opened at once")->check(CLI::PositiveNumber);
        command.add_option("--rows", a->rows)->check(CLI::PositiveNumber);
        command.add_option("--cols", a->cols, "mxfp4: a multiple of 32")->check(CLI::PositiveNumber);
        return [a] { return run(*a); };
      }};
}

}  // namespace inlay::bench
