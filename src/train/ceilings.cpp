#include "train/ceilings.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "backend/cpu/processor.h"
#include "backend/cuda/context.h"
#include "backend/lanes.h"
#include "backend/matmul.h"
#include "core/cache.h"
#include "core/error.h"
#include "io/file.h"
#include "ops/adamw.h"
#include "ops/attention/attention.h"
#include "ops/fp8.h"
#include "train/random_tensors.h"

namespace inlay::train {

namespace {

using backend::Exec;
using backend::Work;
using Action = std::function<void(Exec&)>;

// The median time of one call, after one that does not count, of as many as fill the time.
double seconds_of(Exec& exec, const Action& work, int least, double enough = 0) {
  using clock = std::chrono::steady_clock;
  const auto timed = [&] {
    const auto began = clock::now();
    work(exec);
    exec.synchronize();
    return std::chrono::duration<double>(clock::now() - began).count();
  };
  timed();
  std::vector<double> times;
  for (double sum = 0; static_cast<int>(times.size()) < least || sum < enough; sum += times.back()) {
    times.push_back(timed());
  }
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

// What a call does, by the tally: its views are not looked into.
Work work_of(Device device, const Action& work) {
  Exec planner = Exec::planner(device);
  work(planner);
  return planner.cost().total();
}

// Plans what `measure` takes, and lets it run in as much.
template <class Measure>
auto in_planned_memory(Device device, const Measure& measure) {
  Exec planner = Exec::planner(device);
  measure(planner);
  Exec exec = Exec::runner(device, planner.arena().peak(), planner.host().arena().peak());
  return measure(exec);
}

double measure_attention(Exec& exec, DType compute) {
  const bool gpu = exec.on_cuda();
  const std::int64_t tokens = gpu ? 4096 : 512, heads = gpu ? 32 : 8, kv_heads = heads / 4, size = gpu ? 128 : 64;
  Arena& arena = exec.arena();
  const std::size_t mark = arena.mark();
  std::uint64_t seed = 0;
  const auto take = [&](std::int64_t count) {
    const View view = arena.keep(MemoryClass::workspace, "attention operand", compute, {tokens, count * size});
    fill_random(exec, view, 1.0f, ++seed);
    return view.split_cols(count);
  };
  const ops::AttentionTensors tensors = {
      .q = take(heads),
      .k = take(kv_heads),
      .v = take(kv_heads),
      .out = take(heads),
      .lse = arena.keep(MemoryClass::workspace, "attention log-sum-exp", DType::f32, {tokens, heads})};
  const ops::AttentionGrads grads = {.dq = take(heads), .dk = take(kv_heads), .dv = take(kv_heads)};
  const View dout = take(heads);
  const std::vector<std::int32_t> host_offsets = {0, static_cast<std::int32_t>(tokens)};
  const View offsets = arena.keep(MemoryClass::workspace, "document offsets", DType::i32, {2});
  exec.upload(offsets, host_offsets.data());
  const ops::AttentionSpec spec = {.scale = 1.0f / std::sqrt(static_cast<float>(size)),
                                   .cu_seqlens = offsets,
                                   .host_cu_seqlens = host_offsets,
                                   .deterministic = false};
  const Action both = [&](Exec& e) {
    ops::attention_forward(e, tensors, spec);
    ops::attention_backward(e, grads, dout, tensors, spec);
  };
  double rate = 0;
  if (exec.planning()) {
    both(exec);
  } else {
    rate = work_of(exec.device(), both).attention / seconds_of(exec, both, 3);
  }
  arena.release_to(mark);
  return rate;
}

// Rates of memory and of the link; those of products are measured by themselves.
Ceilings measure_bytes(Exec& exec) {
  const std::int64_t floats = std::int64_t{exec.on_cuda() ? 64 : 16} << 20;
  const auto take = [&](Exec& where) {
    const View view = where.arena().keep(MemoryClass::workspace, "copy", DType::f32, {floats});
    where.fill_zero(view);
    return view;
  };
  Ceilings result;
  const View from = take(exec), value = take(exec.host()), m = take(exec.host()), v = take(exec.host());
  const View sums = exec.arena().keep(MemoryClass::workspace, "sums", DType::f64, {1});
  const Action sum = [&](Exec& e) { ops::sum_of_squares(e, sums, 0, from); };
  const Action copy = [&](Exec& e) { copy_to_device(e, from, value); };
  const Action update = [&](Exec& e) { ops::adamw_step(e, {.value = value, .low = {}, .m = m, .v = v}, m, {}, {}); };
  if (exec.planning()) {
    for (const Action* action : {&sum, &copy}) (*action)(exec);
    update(exec.host());
    return result;
  }
  result.memory = work_of(exec.device(), sum).bytes / seconds_of(exec, sum, 3);
  result.link = static_cast<double>(from.bytes()) / seconds_of(exec, copy, 3);
  result.host = work_of(Device::cpu, update).bytes / seconds_of(exec.host(), update, 3);
  return result;
}

constexpr std::pair<const char*, double Ceilings::*> rates[] = {
    {"matmul", &Ceilings::matmul}, {"fp8", &Ceilings::fp8},   {"attention", &Ceilings::attention},
    {"memory", &Ceilings::memory}, {"link", &Ceilings::link}, {"host", &Ceilings::host}};
constexpr int file_version = 2;  // of what is measured, and how

// A file's content, where it is what was written for the machine.
nlohmann::json read_rates(const std::filesystem::path& file, const std::string& machine) {
  std::ifstream stream(file);
  if (!stream) return {};
  auto json = nlohmann::json::parse(stream, nullptr, false);
  const bool fits = json.is_object() && json.value("version", nlohmann::json()) == file_version &&
                    json.value("machine", nlohmann::json()) == machine;
  return fits ? json : nlohmann::json();
}

bool take_rate(const nlohmann::json& json, const char* name, double& rate) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_number()) return false;
  rate = found->get<double>();
  return std::isfinite(rate) && rate > 0;
}

void write_rates(const std::filesystem::path& file, const nlohmann::ordered_json& json) {
  std::error_code ignored;
  std::filesystem::create_directories(file.parent_path(), ignored);
  try {
    io::write_file_atomic(file, json.dump(2) + "\n");
  } catch (const UserError&) {  // then the next run measures again
  }
}

}  // namespace

double Ceilings::product_seconds(const Work& work) const {
  const double eight = work.products[static_cast<std::size_t>(DType::e4m3)];
  return (work.product_flops() - eight) / matmul + (eight > 0 ? eight / fp8 : 0.0);
}

double Ceilings::rate_of(const Work& work) const {
  const double seconds = product_seconds(work) + work.attention / matmul;
  return seconds > 0 ? work.flops() / seconds : matmul;
}

namespace {

double measured_fp8_rate(Device device, double seconds) {
  const std::int64_t n = 8192;
  return in_planned_memory(device, [&](Exec& exec) -> double {
    Arena& arena = exec.arena();
    const View c = arena.keep(MemoryClass::workspace, "ceiling operand", DType::bf16, {n, n});
    const auto operand = [&](ops::Fp8Role role, std::uint64_t seed) {
      const ops::Fp8Forms forms =
          ops::keep_fp8(exec, MemoryClass::weights, "ceiling operand", {}, role, ops::Fp8Use::rows, n, n);
      fill_random(exec, c, 1.0f, seed);
      ops::quantise_fp8(exec, forms, c);
      return forms.rows;
    };
    const auto a = operand(ops::Fp8Role::input, 1), b = operand(ops::Fp8Role::weight, 2);
    const Action product = [&](Exec& e) { backend::fp8_matmul(e, c, a, b); };
    if (exec.planning()) {
      product(exec);
      return 0;
    }
    return work_of(device, product).flops() / seconds_of(exec, product, 10, seconds);
  });
}

}  // namespace

double measured_matmul_rate(Device device, DType dtype, double seconds) {
  if (dtype == DType::e4m3) return measured_fp8_rate(device, seconds);
  const std::int64_t n = device == Device::cuda ? 8192 : 1024;
  return in_planned_memory(device, [&](Exec& exec) -> double {
    std::uint64_t seed = 0;
    const auto matrix = [&] {
      const View view = exec.arena().keep(MemoryClass::workspace, "ceiling operand", dtype, {n, n});
      fill_random(exec, view, 1.0f, ++seed);
      return view;
    };
    const View a = matrix(), b = matrix(), c = matrix();
    const Action product = [&](Exec& e) {
      backend::matmul(e, c, a, backend::Transpose::no, b, backend::Transpose::yes);
    };
    if (exec.planning()) {
      product(exec);
      return 0;
    }
    return work_of(device, product).flops() / seconds_of(exec, product, 10, seconds);
  });
}

Ceilings measure_ceilings(Device device, DType compute) {
  Ceilings result = in_planned_memory(device, [](Exec& exec) { return measure_bytes(exec); });
  result.attention = in_planned_memory(device, [&](Exec& exec) { return measure_attention(exec, compute); });
  result.matmul = measured_matmul_rate(device, compute, device == Device::cuda ? 1.0 : 0.0);
  constexpr int hopper = 90;  // whose library multiplies by blocks
  const bool eight = device == Device::cuda && backend::cuda::compute_capability() == hopper;
  result.fp8 = eight ? measured_matmul_rate(device, DType::e4m3, 1.0) : result.matmul;
  result.source = "measured now";
  return result;
}

std::string machine_name(Device device) {
  return device == Device::cuda ? backend::cuda::device_description() : backend::cpu::processor();
}

std::filesystem::path ceilings_file(const std::string& machine) {
  const std::filesystem::path folder = cache_folder();
  if (folder.empty()) return {};
  std::string name = "rates-";
  for (const char c : machine) name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '-';
  return folder / (name + ".json");
}

bool read_ceilings(const std::filesystem::path& file, const std::string& machine, Ceilings& ceilings) {
  const nlohmann::json json = read_rates(file, machine);
  if (!json.is_object()) return false;
  for (const auto& [name, rate] : rates) {
    if (!take_rate(json, name, ceilings.*rate)) return false;
  }
  ceilings.source = "measured before, " + file.string();
  return true;
}

void write_ceilings(const std::filesystem::path& file, const std::string& machine, const Ceilings& ceilings) {
  nlohmann::ordered_json json = {{"version", file_version}, {"machine", machine}};
  for (const auto& [name, rate] : rates) json[name] = ceilings.*rate;
  write_rates(file, json);
}

Ceilings h200_ceilings() {
  return {.matmul = 655e12,
          .fp8 = 1250e12,
          .attention = 515e12,
          .memory = 4.2e12,
          .link = 54e9,
          .host = 100e9,
          .source = "an H200"};
}

Ceilings machine_ceilings(Device device, DType compute, Remeasure again, const backend::MessageSink& messages) {
  const bool gpu = device == Device::cuda;
  if (gpu && !backend::cuda::available()) return h200_ceilings();
  const std::string machine = fmt::format("{}, {}", machine_name(device), name_of(compute));
  const std::filesystem::path file = ceilings_file(machine);
  Ceilings ceilings;
  if (again == Remeasure::yes || file.empty() || !read_ceilings(file, machine, ceilings)) {
    if (messages) messages(backend::Message::progress, fmt::format("measuring the rates of {}, once", machine));
    ceilings = measure_ceilings(device, compute);
    if (!file.empty()) write_ceilings(file, machine, ceilings);
  }
  return ceilings;
}

}  // namespace inlay::train
