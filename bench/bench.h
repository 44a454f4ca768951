#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "model/decoder.h"
#include "train/ceilings.h"
#include "train/random_tensors.h"
#include "train/session.h"

// What the benchmarks share. Each adds its options to a command and, when called, returns one JSON object with `ms`,
// `peak_extra_bytes`, `floor_ms` and the exact shape.
namespace inlay::bench {

struct Common {
  std::string device = "auto", dtype = "bf16";
  int iterations = 10;
};

// How the layers of a model multiply; what is empty was not given.
struct Products {
  std::string matmul = "auto", recipe, gradients, sums;
  bool head = false;
};

using Report = nlohmann::ordered_json;

struct Benchmark {
  std::string name, meaning;
  // Adds the options and returns what runs after parsing.
  std::function<std::function<Report()>(CLI::App&)> declare;
  bool several_processes = false;  // under mpirun; the report of all but the first is empty
};
std::vector<Benchmark> benchmarks();

Benchmark matmul_benchmark();
Benchmark attention_benchmark();
Benchmark fused_linear_ce_benchmark();
Benchmark mlp_benchmark();
Benchmark train_step_benchmark();
Benchmark osft_benchmark();
Benchmark lora_benchmark();
Benchmark moe_benchmark();
Benchmark dequantise_benchmark();
Benchmark quantise_fp8_benchmark();
Benchmark decode_benchmark();
Benchmark tokenize_benchmark();
Benchmark collectives_benchmark();

void add_common(CLI::App& command, Common& common);
void add_products(CLI::App& command, Products& products);
// As in training: a UserError where the machine cannot, or where options of fp8 are given without it.
std::optional<model::Fp8Options> fp8_of(const Products& products, const train::Machine& machine);

// Median milliseconds of one call, after warm-ups; the device is waited for around each. With 0 iterations, those of
// the first call: for work that takes minutes.
double median_ms(backend::Exec& exec, int iterations, const std::function<void()>& call);

using train::fill_random;
using train::random_block;
// The ceiling that floors refer to, measured now; what is divided by it is the plan's own count.
using train::measured_matmul_rate;

}  // namespace inlay::bench
