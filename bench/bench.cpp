#include "bench/bench.h"

#include "backend/matmul.h"
#include "core/philox.h"

namespace inlay::bench {

std::vector<Benchmark> benchmarks() {
  return {matmul_benchmark(),     attention_benchmark(), fused_linear_ce_benchmark(), mlp_benchmark(), moe_benchmark(),
          train_step_benchmark(), osft_benchmark(),      tokenize_benchmark()};
}

void add_common(CLI::App& command, Common& common) {
  command.add_option("--device", common.device, "auto, cpu or cuda");
  command.add_option("--dtype", common.dtype, "fp32 or bf16");
  command.add_option("--iterations", common.iterations, "Timed calls, of which the median counts; 0: the very first")
      ->check(CLI::NonNegativeNumber);
}

double median_ms(backend::Exec& exec, int iterations, const std::function<void()>& call) {
  using clock = std::chrono::steady_clock;
  // Two calls to warm up, or one where that takes seconds.
  const auto first = clock::now();
  call();
  exec.synchronize();
  const auto warm = clock::now() - first;
  if (iterations == 0) return std::chrono::duration<double, std::milli>(warm).count();
  if (warm < std::chrono::seconds(3)) call();
  exec.synchronize();
  std::vector<double> times;
  for (int i = 0; i < iterations; ++i) {
    const auto began = clock::now();
    call();
    exec.synchronize();
    times.push_back(std::chrono::duration<double, std::milli>(clock::now() - began).count());
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

std::vector<float> random_block(std::size_t count, float scale, std::uint64_t seed) {
  // Drawn once: a model has thousands of tensors, and a normal number costs more than its copy.
  static const std::vector<float> drawn = [] {
    const Philox philox{1};
    std::vector<float> normal(random_block_size);
    for (std::size_t i = 0; i < normal.size(); ++i) normal[i] = philox.normal(i);
    return normal;
  }();
  std::vector<float> block(std::min(count, random_block_size));
  const std::size_t offset = static_cast<std::size_t>(seed * 7919) % random_block_size;
  for (std::size_t i = 0; i < block.size(); ++i) block[i] = scale * drawn[(offset + i) % random_block_size];
  return block;
}

void fill_random(backend::Exec& exec, View view, float scale, std::uint64_t seed) {
  constexpr auto step = static_cast<std::int64_t>(random_block_size);
  const std::vector<float> floats = random_block(static_cast<std::size_t>(view.size()), scale, seed);
  const std::vector<bf16> halves(floats.begin(), floats.end());
  const bool half = view.dtype() == DType::bf16;
  View flat = view.reshape({view.size()});
  for (std::int64_t begin = 0; begin < view.size(); begin += step) {
    const std::int64_t end = std::min(begin + step, view.size());
    exec.upload(flat.slice_rows(begin, end), half ? static_cast<const void*>(halves.data()) : floats.data());
  }
}

double measured_matmul_rate(Device device, DType dtype) {
  const std::int64_t n = device == Device::cuda ? 8192 : 2048;
  const auto bytes = static_cast<std::size_t>(3 * n * n) * size_of(dtype) + (std::size_t{80} << 20);
  backend::Exec exec = backend::Exec::runner(device, bytes);
  const auto matrix = [&](std::uint64_t seed) {
    View view = exec.arena().keep(MemoryClass::workspace, "ceiling operand", dtype, {n, n});
    fill_random(exec, view, 1.0f, seed);
    return view;
  };
  View a = matrix(1), b = matrix(2), c = matrix(3);
  const double ms =
      median_ms(exec, 10, [&] { backend::matmul(exec, c, a, backend::Transpose::no, b, backend::Transpose::yes); });
  return 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) / (ms * 1e-3);
}

}  // namespace inlay::bench
