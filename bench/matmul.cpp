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
            command.add_option("--m", arguments->m)->check(CLI::PositiveNumber);
            command.add_option("--n", arguments->n)->check(CLI::PositiveNumber);
            command.add_option("--k", arguments->k)->check(CLI::PositiveNumber);
            command.add_flag("--weight-gradient", arguments->accumulate, "Aᵀ·B added to fp32, as for weight gradients");
            return [arguments]() -> Report {
              const auto& a = *arguments;
              const auto [device, dtype] = train::resolve_machine(a.device, a.dtype);
              const DType out = a.accumulate ? DType::f32 : dtype;
              struct Operands {
                View left, right, result;
              };
              const auto take = [&](backend::Exec& e) -> Operands {
                const auto matrix = [&](DType type, std::int64_t rows, std::int64_t cols) {
                  const View view = e.arena().keep(MemoryClass::workspace, "operand", type, {rows, cols});
                  fill_random(e, view, 1.0f, static_cast<std::uint64_t>(rows));
                  return view;
                };
                return {a.accumulate ? matrix(dtype, a.k, a.m) : matrix(dtype, a.m, a.k),
                        a.accumulate ? matrix(dtype, a.k, a.n) : matrix(dtype, a.n, a.k), matrix(out, a.m, a.n)};
              };
              using backend::Transpose;
              const auto multiply = [&](backend::Exec& e, const Operands& x) {
                if (a.accumulate) {
                  backend::matmul(e, x.result, x.left, Transpose::yes, x.right, Transpose::no, {.beta = 1.0f});
                } else {
                  backend::matmul(e, x.result, x.left, Transpose::no, x.right, Transpose::yes);
                }
              };
              backend::Exec planner = backend::Exec::planner(device);
              const Operands planned = take(planner);
              const std::size_t operand_bytes = planner.arena().used();
              multiply(planner, planned);
              backend::Exec exec = backend::Exec::runner(device, planner.arena().peak());
              const Operands operands = take(exec);
              const double ms = median_ms(exec, a.iterations, [&] { multiply(exec, operands); });
              const double flops = planner.cost().total().flops();
              return {{"ms", ms},
                      {"tflops", flops / ms * 1e-9},
                      {"floor_ms", flops / measured_matmul_rate(device, dtype) * 1e3},
                      {"peak_extra_bytes", planner.arena().peak() - operand_bytes},
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
