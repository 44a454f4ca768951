#include "train/step_time.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "backend/cuda/context.h"
#include "backend/lanes.h"
#include "backend/matmul.h"
#include "ops/adamw.h"

namespace inlay::train {

namespace {

using model::Activation;
using model::LayerPolicy;

double seconds_of(Exec& exec, const std::function<void()>& work) {
  using clock = std::chrono::steady_clock;
  work();
  exec.synchronize();
  double best = 1e30;
  for (int i = 0; i < 3; ++i) {
    const auto began = clock::now();
    work();
    exec.synchronize();
    best = std::min(best, std::chrono::duration<double>(clock::now() - began).count());
  }
  return best;
}

// FLOPs of one layer for all tokens of a micro-batch.
struct LayerWork {
  LayerWork(const model::ModelConfig& c, std::int64_t layer, const EngineOptions& o) {
    const auto tokens = static_cast<double>(o.max_tokens), h = static_cast<double>(c.hidden);
    qkv = 2 * tokens * h * static_cast<double>(c.qkv_width());
    output = 2 * tokens * h * static_cast<double>(c.q_width());
    const bool experts = c.layers[static_cast<std::size_t>(layer)].experts;
    const std::int64_t width = experts ? c.experts.chosen * c.experts.intermediate : c.intermediate;
    gate_up = 4 * tokens * h * static_cast<double>(width);
    down = gate_up / 2;
    const auto length = static_cast<double>(std::min(o.max_document, o.max_tokens));
    const auto window = static_cast<double>(c.layers[static_cast<std::size_t>(layer)].window);
    const double reach = window > 0 ? std::min(window, length) : length;
    // Token i of a document sees min(i, reach) others; scores and values are a product each.
    attention = 4 * tokens * static_cast<double>(c.q_width()) * reach * (1 - reach / (2 * length));
    // Vectors of a token that go through memory beside the products, there and back: norms and residual streams,
    // rotation, the activation, and for experts the copies of tokens in their order.
    const double vectors = 18 * h + 6 * static_cast<double>(c.qkv_width() - c.kv_width()) +
                           9 * static_cast<double>(width) +
                           (experts ? static_cast<double>(c.experts.chosen) * 8 * h : 0);
    bytes = tokens * vectors * static_cast<double>(size_of(o.compute));
  }
  double products() const { return qkv + output + gate_up + down; }

  double qkv, output, gate_up, down, attention, bytes;
};

// FLOPs of the weights' gradients: of a micro-batch, and of a step, however many of those it has.
struct GradientWork {
  double batch = 0, step = 0;
};

// A basis is applied to the gradient once, and to AdamW's change twice: what it leaves is rounded.
constexpr double projections = 3;

GradientWork work_of(const weights::InputLayout& layout, double rows, double out, double in) {
  const auto free = static_cast<double>(layout.free), frozen = static_cast<double>(layout.frozen);
  if (layout.stores_frozen()) return {2 * rows * out * in, projections * 4 * out * in * frozen};
  return {2 * rows * (in + out) * free, 2 * out * in * free};
}

GradientWork work_of(const weights::FactorLayout& layout, const weights::Parameter& p, double rows, double in) {
  GradientWork work;
  for (std::size_t i = 0; i < layout.parts.size(); ++i) {
    const auto out = static_cast<double>(p.parts[i].rows);
    const auto free = static_cast<double>(layout.parts[i].free), frozen = static_cast<double>(layout.parts[i].frozen);
    const double through_factors = 4 * rows * free * (out + in), rebuild = 4 * free * out * in;
    work.step += projections * 4 * (out + in) * free * std::min(free, frozen);
    switch (layout.route) {
      case weights::Route::direct:
        work.batch += through_factors;
        work.step += rebuild;
        break;
      case weights::Route::dense:
        work.batch += 2 * rows * out * in;
        work.step += 2 * rebuild;
        break;
      case weights::Route::factored:  // whose other two products go through all directions, and not through W
        work.batch += through_factors + 4 * rows * ((free + frozen) * (out + in) - out * in);
        break;
    }
  }
  return work;
}

GradientWork gradient_work(const model::ModelConfig& config, const EngineOptions& options) {
  GradientWork all;
  model::ModelParameters parameters(config);
  parameters.for_each([&](weights::Parameter& p) {
    const bool lookup = p.role == weights::Role::embedding && !config.tied_embeddings;
    if (!p.is_matrix() || lookup) return;
    double rows = static_cast<double>(options.max_tokens);
    if (p.expert >= 0) rows *= static_cast<double>(config.experts.chosen) / static_cast<double>(config.experts.count);
    const auto out = static_cast<double>(p.shape[0]), in = static_cast<double>(p.shape[1]);
    GradientWork work{.batch = 2 * rows * out * in};
    if (options.osft != nullptr) {
      const auto& frozen = options.osft->frozen;
      if (const osft::OsftLayout::Ranks* ranks = options.osft->find(p.name)) {
        const auto* input = std::get_if<weights::InputLayout>(ranks);
        work = input != nullptr ? work_of(*input, rows, out, in)
                                : work_of(std::get<weights::FactorLayout>(*ranks), p, rows, in);
      } else if (std::find(frozen.begin(), frozen.end(), p.name) != frozen.end()) {
        work = {};
      }
    }
    all.batch += work.batch;
    all.step += work.step;
  });
  return all;
}

}  // namespace

Ceilings measure_ceilings(Device device, DType compute) {
  if (device == Device::cuda && !backend::cuda::available()) {
    return {.matmul = 655e12, .attention = 515e12, .memory = 4.2e12, .link = 54e9, .host = 100e9, .source = "an H200"};
  }
  const bool gpu = device == Device::cuda;
  const std::int64_t n = gpu ? 8192 : 1024, floats = gpu ? std::int64_t{64} << 20 : std::int64_t{4} << 20;
  const auto bytes = static_cast<std::size_t>(floats) * 4;
  const auto matrices = static_cast<std::size_t>(3 * n * n) * size_of(compute);
  Exec exec = Exec::runner(device, matrices + 2 * bytes + (std::size_t{160} << 20), 3 * bytes + (std::size_t{1} << 20));
  Arena& arena = exec.arena();
  const auto matrix = [&] {
    const View view = arena.keep(MemoryClass::workspace, "ceiling operand", compute, {n, n});
    exec.fill_zero(view);
    return view;
  };
  const View a = matrix(), b = matrix(), c = matrix();
  const View from = arena.keep(MemoryClass::workspace, "copy", DType::f32, {floats});
  const View sums = arena.keep(MemoryClass::workspace, "sums", DType::f64, {1});
  const auto host_floats = [&] {
    const View view = exec.host().arena().keep(MemoryClass::workspace, "host copy", DType::f32, {floats});
    exec.host().fill_zero(view);
    return view;
  };
  const View value = host_floats(), m = host_floats(), v = host_floats();
  exec.fill_zero(from);

  Ceilings result{.source = "measured now"};
  const auto size = static_cast<double>(n);
  result.matmul = 2 * size * size * size / seconds_of(exec, [&] {
                    backend::matmul(exec, c, a, backend::Transpose::no, b, backend::Transpose::yes);
                  });
  // Zeros multiply faster than numbers do, and a moment's work faster than a step's: by this much on an H200, whose
  // clock the power limits.
  if (gpu) result.matmul *= 0.76;
  // Attention's share of the products' rate as measured (docs/numbers.md).
  result.attention = result.matmul * (gpu ? 0.79 : 0.5);
  result.memory = static_cast<double>(bytes) / seconds_of(exec, [&] { ops::sum_of_squares(exec, sums, 0, from); });
  result.link = static_cast<double>(bytes) / seconds_of(exec, [&] { copy_to_device(exec, from, value); });
  // AdamW reads four floats and writes three.
  result.host = 7.0 * static_cast<double>(bytes) / seconds_of(exec.host(), [&] {
                  ops::adamw_step(exec.host(), {.value = value, .low = {}, .m = m, .v = v}, m, {}, {});
                });
  return result;
}

StepEstimate estimate_step(const model::ModelConfig& config, const EngineOptions& options, const MemoryPlan& plan,
                           std::int64_t micro_batches, const Ceilings& ceilings) {
  double products = 0, attention = 0, bytes = 0, products_again = 0, attention_again = 0;
  for (std::int64_t layer = 0; layer < config.layer_count(); ++layer) {
    const LayerWork work(config, layer, options);
    const LayerPolicy& policy = options.policy.of(layer);
    products += 2 * work.products();  // forward, and the gradient of its input
    attention += 3.5 * work.attention;
    bytes += work.bytes;
    if (!policy.keeps(Activation::qkv)) products_again += work.qkv;
    if (policy[Activation::attention] == model::Storage::recompute) attention_again += work.attention;
    if (!policy.keeps(Activation::residual)) products_again += work.output;
    if (!policy.keeps(Activation::gate_up)) products_again += work.gate_up;
    if (layer > 0 && policy[Activation::input] == model::Storage::recompute && layer + 1 < config.layer_count()) {
      const LayerWork before(config, layer - 1, options);
      products_again += before.products();
      attention_again += before.attention;
    }
  }
  products += 4 * static_cast<double>(options.max_tokens) * static_cast<double>(config.vocab * config.hidden);
  const GradientWork gradients = gradient_work(config, options);
  products += gradients.batch;

  StepEstimate result;
  result.recompute_seconds = products_again / ceilings.matmul + attention_again / ceilings.attention;
  result.compute_seconds =
      products / ceilings.matmul + attention / ceilings.attention + bytes / ceilings.memory + result.recompute_seconds;

  const auto state = [](const MemoryByClass& classes, std::initializer_list<MemoryClass> wanted) {
    double bytes = 0;
    for (const MemoryClass c : wanted) bytes += static_cast<double>(classes[static_cast<std::size_t>(c)]);
    return bytes;
  };
  const MemoryByClass& host = plan.host_classes;
  if (options.device == Device::cuda) {
    // Down: activations and gradients. Up: activations, and weights twice. Down and up at the same time.
    const double activations = state(host, {MemoryClass::activations}) + static_cast<double>(plan.disk_bytes);
    const double up = activations + 2 * state(host, {MemoryClass::weights});
    const double down = activations + state(host, {MemoryClass::gradients});
    result.copy_seconds = std::max(up, down) / ceilings.link;
  }
  if (options.optimizer_state) {
    const auto all = {MemoryClass::weights, MemoryClass::master, MemoryClass::gradients, MemoryClass::optimizer};
    // Everything is read and, but for the gradients, written.
    result.optimizer_seconds = 2 * state(plan.classes, all) / ceilings.memory + 2 * state(host, all) / ceilings.host +
                               gradients.step / ceilings.matmul;
  }
  const auto batches = static_cast<double>(micro_batches);
  const double seconds = batches * std::max(result.compute_seconds, result.copy_seconds) + result.optimizer_seconds;
  result.tokens_per_second = batches * static_cast<double>(options.max_tokens) / seconds;
  return result;
}

}  // namespace inlay::train
