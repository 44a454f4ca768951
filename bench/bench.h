#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "backend/exec.h"

// What the benchmarks share. Each adds its options to a command and, when called, returns one JSON object with `ms`,
// `peak_extra_bytes`, `floor_ms` and the exact shape.
namespace inlay::bench {

struct Common {
  std::string device = "auto", dtype = "bf16";
  int iterations = 10;
};

using Report = nlohmann::ordered_json;

struct Benchmark {
  std::string name, meaning;
  // Adds the options and returns what runs after parsing.
  std::function<std::function<Report()>(CLI::App&)> declare;
};
std::vector<Benchmark> benchmarks();

Benchmark matmul_benchmark();
Benchmark attention_benchmark();
Benchmark fused_linear_ce_benchmark();
Benchmark mlp_benchmark();
Benchmark train_step_benchmark();
Benchmark osft_benchmark();
Benchmark moe_benchmark();
Benchmark tokenize_benchmark();

void add_common(CLI::App& command, Common& common);

// Median milliseconds of one call, after warm-ups; the device is waited for around each. With 0 iterations, those of
// the first call: for work that takes minutes.
double median_ms(backend::Exec& exec, int iterations, const std::function<void()>& call);

// FLOP/s that a large matrix product of the dtype reaches on this device, measured now: the ceiling that floors refer
// to.
double measured_matmul_rate(Device device, DType dtype);

// Normal numbers, at most a block of them; zeros would run faster than real data.
inline constexpr std::size_t random_block_size = std::size_t{1} << 20;
std::vector<float> random_block(std::size_t count, float scale, std::uint64_t seed);
// The whole view, with the block repeated.
void fill_random(backend::Exec& exec, View view, float scale, std::uint64_t seed);

}  // namespace inlay::bench
