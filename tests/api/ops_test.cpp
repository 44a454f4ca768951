#include <inlay/ops.h>

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <random>

#include "support/files.h"

// The public operations against plain loops in fp64. Their gradients are held against differences of these along random
// directions: every input at once, so that none can be forgotten.
namespace inlay {
namespace {

using Numbers = std::vector<double>;

Numbers random_numbers(std::size_t count, unsigned seed, double scale = 1) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal(0, scale);
  Numbers result(count);
  for (double& x : result) x = static_cast<double>(static_cast<float>(normal(engine)));
  return result;
}

// fp32 memory with poison around what is not given.
struct Memory {
  explicit Memory(const Numbers& numbers) : values(numbers.begin(), numbers.end()) {}
  explicit Memory(std::size_t count) : values(count, std::nanf("")) {}
  Tensor tensor(std::initializer_list<std::int64_t> shape) { return {values.data(), DType::f32, shape}; }
  std::vector<float> values;
};

using Reference = std::function<Numbers(const std::vector<Numbers>&)>;

void expect_near(const std::vector<float>& ours, const Numbers& expected, double tolerance, const char* what) {
  ASSERT_EQ(ours.size(), expected.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_NEAR(ours[i], expected[i], tolerance * (1 + std::abs(expected[i]))) << what << " " << i;
  }
}

void expect_gradients(const Reference& reference, const std::vector<Numbers>& inputs, const Numbers& upstream,
                      const std::vector<std::vector<float>>& gradients) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Numbers direction = random_numbers(inputs[i].size(), static_cast<unsigned>(100 + i));
    const auto moved = [&](double step) {
      std::vector<Numbers> there = inputs;
      for (std::size_t j = 0; j < direction.size(); ++j) there[i][j] += step * direction[j];
      const Numbers out = reference(there);
      return std::inner_product(out.begin(), out.end(), upstream.begin(), 0.0);
    };
    constexpr double step = 1e-5;
    const double expected = (moved(step) - moved(-step)) / (2 * step);
    double ours = 0, size = 0;
    for (std::size_t j = 0; j < direction.size(); ++j) {
      ours += static_cast<double>(gradients[i][j]) * direction[j];
      size += std::abs(static_cast<double>(gradients[i][j]) * direction[j]);
    }
    EXPECT_NEAR(ours, expected, 1e-5 * (size + 1)) << "gradient of input " << i;
  }
}

double silu(double x) { return x / (1 + std::exp(-x)); }

// y [T, N] = x [T, K] · w [N, K]ᵀ, with w beginning at an offset.
Numbers product(const Numbers& x, const double* w, std::size_t tokens, std::size_t n, std::size_t k) {
  Numbers y(tokens * n);
  for (std::size_t t = 0; t < tokens; ++t) {
    for (std::size_t i = 0; i < n; ++i) y[t * n + i] = std::inner_product(&x[t * k], &x[t * k] + k, w + i * k, 0.0);
  }
  return y;
}

constexpr std::size_t T = 7, H = 5, I = 6;

TEST(ApiOps, TiledMlpIsWhatItSays) {
  const Reference reference = [](const std::vector<Numbers>& in) {
    Numbers act = product(in[0], in[1].data(), T, I, H);
    const Numbers up = product(in[0], in[2].data(), T, I, H);
    for (std::size_t i = 0; i < act.size(); ++i) act[i] = silu(act[i]) * up[i];
    return product(act, in[3].data(), T, H, I);
  };
  const std::vector<Numbers> in = {random_numbers(T * H, 1), random_numbers(I * H, 2), random_numbers(I * H, 3),
                                   random_numbers(H * I, 4)};
  const Numbers dout = random_numbers(T * H, 5);
  for (const auto& [tile, keep] : {std::pair{0, false}, {3, false}, {0, true}, {3, true}}) {
    Memory gate_up(T * 2 * I);
    Memory x(in[0]), gate(in[1]), up(in[2]), down(in[3]), out(T * H), upstream(dout);
    Memory dx(T * H), dgate(I * H), dup(I * H), ddown(H * I);
    SwigluMlp call;
    call.x = x.tensor({T, H});
    call.gate = gate.tensor({I, H});
    call.up = up.tensor({I, H});
    call.down = down.tensor({H, I});
    call.tile = tile;
    call.out = out.tensor({T, H});
    if (keep) call.gate_up = gate_up.tensor({T, 2 * I});
    call.dout = upstream.tensor({T, H});
    call.dx = dx.tensor({T, H});
    call.dgate = dgate.tensor({I, H});
    call.dup = dup.tensor({I, H});
    call.ddown = ddown.tensor({H, I});
    Ops ops(Device::cpu);
    ops.swiglu_mlp_forward(call);
    expect_near(out.values, reference(in), 1e-5, "out");
    ops.swiglu_mlp_backward(call);
    expect_gradients(reference, in, dout, {dx.values, dgate.values, dup.values, ddown.values});
  }
}

TEST(ApiOps, ExpertsAreWhatTheySay) {
  constexpr std::size_t E = 4, chosen = 2;
  for (const bool normalized : {true, false}) {
    const Reference reference = [normalized](const std::vector<Numbers>& in) {
      const Numbers logits = product(in[0], in[1].data(), T, E, H);
      Numbers out(T * H);
      for (std::size_t t = 0; t < T; ++t) {
        std::vector<std::size_t> order(E);
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::stable_sort(order.begin(), order.end(),
                         [&](std::size_t a, std::size_t b) { return logits[t * E + a] > logits[t * E + b]; });
        double all = 0, of_chosen = 0;
        for (std::size_t e = 0; e < E; ++e) all += std::exp(logits[t * E + e]);
        for (std::size_t j = 0; j < chosen; ++j) of_chosen += std::exp(logits[t * E + order[j]]);
        const Numbers x(in[0].begin() + static_cast<std::ptrdiff_t>(t * H),
                        in[0].begin() + static_cast<std::ptrdiff_t>((t + 1) * H));
        for (std::size_t j = 0; j < chosen; ++j) {
          const std::size_t e = order[j];
          const double weight = std::exp(logits[t * E + e]) / (normalized ? of_chosen : all);
          const Numbers both = product(x, &in[2][e * 2 * I * H], 1, 2 * I, H);
          Numbers act(I);
          for (std::size_t i = 0; i < I; ++i) act[i] = silu(both[i]) * both[I + i];
          const Numbers answer = product(act, &in[3][e * H * I], 1, H, I);
          for (std::size_t i = 0; i < H; ++i) out[t * H + i] += weight * answer[i];
        }
      }
      return out;
    };
    const std::vector<Numbers> in = {random_numbers(T * H, 1), random_numbers(E * H, 2),
                                     random_numbers(E * 2 * I * H, 3), random_numbers(E * H * I, 4)};
    const Numbers dout = random_numbers(T * H, 5);
    for (const std::int64_t tile : {0, 4}) {
      Memory x(in[0]), router(in[1]), gate_up(in[2]), down(in[3]), out(T * H), upstream(dout);
      Memory dx(T * H), drouter(E * H), dgate_up(E * 2 * I * H), ddown(E * H * I);
      MixtureOfExperts call;
      call.x = x.tensor({T, H});
      call.router = router.tensor({E, H});
      call.gate_up = gate_up.tensor({E, 2 * I, H});
      call.down = down.tensor({E, H, I});
      call.chosen = chosen;
      call.normalized = normalized;
      call.tile = tile;
      call.out = out.tensor({T, H});
      call.dout = upstream.tensor({T, H});
      call.dx = dx.tensor({T, H});
      call.drouter = drouter.tensor({E, H});
      call.dgate_up = dgate_up.tensor({E, 2 * I, H});
      call.ddown = ddown.tensor({E, H, I});
      Ops ops(Device::cpu);
      ops.experts_forward(call);
      expect_near(out.values, reference(in), 1e-5, "out");
      ops.experts_backward(call);
      expect_gradients(reference, in, dout, {dx.values, drouter.values, dgate_up.values, ddown.values});
    }
  }
}

TEST(ApiOps, AttentionKeepsDocumentsApartAndCountsSinks) {
  constexpr std::size_t heads = 4, kv_heads = 2, D = 8;
  const std::vector<std::int32_t> places = {0, 3, 7};
  const Reference reference = [&](const std::vector<Numbers>& in) {
    Numbers out(T * heads * D);
    for (std::size_t d = 0; d + 1 < places.size(); ++d) {
      const auto begin = static_cast<std::size_t>(places[d]), end = static_cast<std::size_t>(places[d + 1]);
      for (std::size_t t = begin; t < end; ++t) {
        for (std::size_t h = 0; h < heads; ++h) {
          const std::size_t g = h / (heads / kv_heads);
          double total = std::exp(in[3][h]);
          Numbers weights;
          for (std::size_t s = begin; s <= t; ++s) {
            const double* q = &in[0][(t * heads + h) * D];
            weights.push_back(
                std::exp(std::inner_product(q, q + D, &in[1][(s * kv_heads + g) * D], 0.0) / std::sqrt(D)));
            total += weights.back();
          }
          for (std::size_t s = begin; s <= t; ++s) {
            for (std::size_t i = 0; i < D; ++i) {
              out[(t * heads + h) * D + i] += weights[s - begin] / total * in[2][(s * kv_heads + g) * D + i];
            }
          }
        }
      }
    }
    return out;
  };
  const std::vector<Numbers> in = {random_numbers(T * heads * D, 1), random_numbers(T * kv_heads * D, 2),
                                   random_numbers(T * kv_heads * D, 3), random_numbers(heads, 4)};
  const Numbers dout = random_numbers(T * heads * D, 5);
  for (const char* mask : {"", "causal"}) {  // the built-in mask, and the same by a rule
    Memory q(in[0]), k(in[1]), v(in[2]), sinks(in[3]), out(T * heads * D), lse(T * heads), upstream(dout);
    Memory dq(T * heads * D), dk(T * kv_heads * D), dv(T * kv_heads * D), dsinks(heads);
    Attention call;
    call.q = q.tensor({T, heads, D});
    call.k = k.tensor({T, kv_heads, D});
    call.v = v.tensor({T, kv_heads, D});
    call.out = out.tensor({T, heads, D});
    call.lse = lse.tensor({T, heads});
    call.cu_seqlens = places;
    call.mask = mask;
    call.sinks = sinks.tensor({heads});
    call.dout = upstream.tensor({T, heads, D});
    call.dq = dq.tensor({T, heads, D});
    call.dk = dk.tensor({T, kv_heads, D});
    call.dv = dv.tensor({T, kv_heads, D});
    call.dsinks = dsinks.tensor({heads});
    Ops ops(Device::cpu);
    ops.attention_forward(call);
    expect_near(out.values, reference(in), 1e-5, "out");
    ops.attention_backward(call);
    expect_gradients(reference, in, dout, {dq.values, dk.values, dv.values, dsinks.values});
  }
}

TEST(ApiOps, LossWithoutAnyTargetIsZeroAndSoAreItsGradients) {
  Memory hidden(random_numbers(T * H, 1)), head(random_numbers(I * H, 2)), dhidden(T * H), dhead(I * H);
  std::vector<std::int32_t> targets(T, 0);
  float loss = 0;
  LinearCrossEntropy call;
  call.hidden = hidden.tensor({T, H});
  call.weight = head.tensor({I, H});
  call.targets = Tensor(targets.data(), DType::i32, {T});
  call.rows = Tensor(targets.data(), DType::i32, {0});
  call.loss = Tensor(&loss, DType::f32, {1});
  call.dhidden = dhidden.tensor({T, H});
  call.dweight = dhead.tensor({I, H});
  Ops(Device::cpu).linear_cross_entropy(call);
  EXPECT_EQ(loss, 0);
  EXPECT_EQ(dhidden.values, std::vector<float>(T * H));
  EXPECT_EQ(dhead.values, std::vector<float>(I * H));
}

TEST(ApiOps, ScratchComesFromTheCaller) {
  Memory a(random_numbers(T * H, 1)), b(random_numbers(I * H, 2)), c(T * I), d(T * I);
  std::vector<std::byte> scratch;
  Ops ops(Device::cpu);
  ops.matmul(c.tensor({T, I}), a.tensor({T, H}), false, b.tensor({I, H}), true);
  int asked = 0;
  ops.use_workspace([&](std::size_t bytes) {
    ++asked;
    scratch.resize(bytes);
    return static_cast<void*>(scratch.data());
  });
  ops.matmul(d.tensor({T, I}), a.tensor({T, H}), false, b.tensor({I, H}), true);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(c.values, d.values);
}

TEST(ApiOps, MistakesNameTheTensor) {
  Memory a(random_numbers(T * H, 1)), b(random_numbers(I * H, 2)), c(T * I);
  Ops ops(Device::cpu);
  const auto message = [&](const Tensor& out, const Tensor& left, const Tensor& right) {
    return testing::user_error_of([&] { ops.matmul(out, left, false, right, true); });
  };
  EXPECT_EQ(message(c.tensor({T, I}), a.tensor({T, H}), b.tensor({H, I})), "matmul: b is [5, 6], expected [5, 5]");
  EXPECT_EQ(message(Tensor(), a.tensor({T, H}), b.tensor({I, H})), "matmul: c is missing");
  Tensor strided = a.tensor({H, T});
  std::swap(strided.shape[0], strided.shape[1]);
  std::swap(strided.strides[0], strided.strides[1]);
  EXPECT_EQ(message(c.tensor({T, I}), strided, b.tensor({I, H})),
            "matmul: a: the numbers of its last dimension are not neighbours; make it contiguous");
}

}  // namespace
}  // namespace inlay
