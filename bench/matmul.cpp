#include "backend/matmul.h"
#include "bench/bench.h"
#include "train/session.h"

namespace inlay::bench {

Benchmark matmul_benchmark() {
  return {"matmul", "C = A·Bᵀ of the given sizes", [](CLI::App& command) -> std::function<Report()> {
            struct Arguments : Common {
              std::int64_t m = 4096, n = 4096, k = 4096;
              bool accumulate = false, transpose_a = false;
            };
            auto arguments = std::make_shared<Arguments>();
            add_common(command, *arguments);
            command.add_option("--m", arguments->m);
            command.add_option("--n", arguments->n);
            command.add_option("--k", arguments->k);
            command.add_flag("--weight-gradient", arguments->accumulate, "Aᵀ·B added to fp32, as for weight gradients");
            return [arguments]() -> Report {
              const auto& a = *arguments;
              const auto [device, dtype] = train::resolve_machine(a.device, a.dtype);
              const DType out = a.accumulate ? DType::f32 : dtype;
              const auto count = static_cast<std::size_t>(a.m * a.k + a.n * a.k + 2 * a.m * a.n);
              backend::Exec exec = backend::Exec::runner(device, count * 4 + (std::size_t{80} << 20));
              const auto take = [&](DType type, std::int64_t rows, std::int64_t cols) {
                View view = exec.arena().keep(MemoryClass::workspace, "operand", type, {rows, cols});
                fill_random(exec, view, 1.0f, static_cast<std::uint64_t>(rows));
                return view;
              };
              using backend::Transpose;
              View left = a.accumulate ? take(dtype, a.k, a.m) : take(dtype, a.m, a.k);
              View right = a.accumulate ? take(dtype, a.k, a.n) : take(dtype, a.n, a.k);
              View result = take(out, a.m, a.n);
              const auto multiply = [&](backend::Exec& e) {
                if (a.accumulate) {
                  backend::matmul(e, result, left, Transpose::yes, right, Transpose::no, {.beta = 1.0f});
                } else {
                  backend::matmul(e, result, left, Transpose::no, right, Transpose::yes);
                }
              };
              const double ms = median_ms(exec, a.iterations, [&] { multiply(exec); });
              backend::Exec planner = backend::Exec::planner(device);
              multiply(planner);
              const double flops = planner.cost().total().flops();
              return {{"ms", ms},
                      {"tflops", flops / ms * 1e-9},
                      {"floor_ms", flops / measured_matmul_rate(device, dtype) * 1e3},
                      {"peak_extra_bytes", planner.arena().peak()},
                      {"m", a.m},
                      {"n", a.n},
                      {"k", a.k},
                      {"weight_gradient", a.accumulate},
                      {"device", name_of(device)},
                      {"dtype", name_of(dtype)}};
            };
          }};
}

}  // namespace inlay::bench
