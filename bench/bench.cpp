#include "bench/bench.h"

namespace inlay::bench {

std::vector<Benchmark> benchmarks() {
  return {matmul_benchmark(),       attention_benchmark(), fused_linear_ce_benchmark(),
          mlp_benchmark(),          moe_benchmark(),       train_step_benchmark(),
          osft_benchmark(),         lora_benchmark(),      dequantise_benchmark(),
          quantise_fp8_benchmark(), decode_benchmark(),    tokenize_benchmark(),
          collectives_benchmark()};
}

void add_common(CLI::App& command, Common& common) {
  command.add_option("--device", common.device, "auto, cpu or cuda");
  command.add_option("--dtype", common.dtype, "fp32 or bf16");
  command
      .add_option("--iterations", common.iterations,
                  "Timed calls, of which the median is reported; 0: time the first call")
      ->check(CLI::NonNegativeNumber);
}

void add_products(CLI::App& command, Products& products) {
  command.add_option("--matmul-dtype", products.matmul, "Type of the layers' matrix products: auto (--dtype) or fp8")
      ->check(CLI::IsMember({"auto", "fp8"}));
  command.add_option("--fp8-recipe", products.recipe, "What has its own scale; by default what training takes")
      ->check(CLI::IsMember({"block", "row", "tensor"}));
  command.add_option("--fp8-gradients", products.gradients, "e4m3 (default) or e5m2")
      ->check(CLI::IsMember({"e4m3", "e5m2"}));
  command.add_option("--fp8-sums", products.sums, "fp32 (default) or fast")->check(CLI::IsMember({"fp32", "fast"}));
  command.add_flag("--fp8-head", products.head, "The head multiplies in fp8 as well");
}

std::optional<model::Fp8Options> fp8_of(const Products& products, const train::Machine& machine) {
  options::TrainOptions options;
  if (products.matmul != "fp8") {
    for (const auto& [name, value] : {std::pair{"--fp8-recipe", products.recipe},
                                      {"--fp8-gradients", products.gradients},
                                      {"--fp8-sums", products.sums},
                                      {"--fp8-head", std::string(products.head ? "set" : "")}}) {
      if (!value.empty()) user_error("{} needs --matmul-dtype fp8", name);
    }
    return std::nullopt;
  }
  options.matmul_dtype = options::MatmulDtype::fp8;
  if (!products.recipe.empty()) options.fp8.recipe = ops::parse_fp8_recipe(products.recipe);
  if (products.gradients == "e5m2") options.fp8.gradients = DType::e5m2;
  if (products.sums == "fast") options.fp8.sums = ops::Fp8Sums::fast;
  options.fp8.head = products.head;
  return train::fp8_of(options, machine);
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

}  // namespace inlay::bench
