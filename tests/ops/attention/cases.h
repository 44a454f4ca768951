#pragma once

#include <numeric>

#include "ops/attention/attention.h"
#include "ops/reference/attention.h"
#include "support/device_tensors.h"

// What the tests of attention share: cases, their numbers, the reference's results, and tensors laid out as the blocks
// of a model do.
namespace inlay::ops::attention_cases {

using testing::random_values;
using testing::rounded;
using testing::TestBench;

struct Case {
  std::vector<std::int32_t> documents;  // lengths
  std::int64_t heads, kv_heads, head_size, window = 0;
  bool sinks = false;

  std::vector<std::int32_t> offsets() const {
    std::vector<std::int32_t> result(documents.size() + 1);
    std::partial_sum(documents.begin(), documents.end(), result.begin() + 1);
    return result;
  }
  std::int64_t tokens() const { return std::accumulate(documents.begin(), documents.end(), std::int64_t{0}); }
  std::string name() const {
    return fmt::format("{} tokens in {} documents, {}/{} heads of {}, window {}{}", tokens(), documents.size(), heads,
                       kv_heads, head_size, window, sinks ? ", sinks" : "");
  }
};

inline double norm(const std::vector<double>& x) {
  return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
}

inline double distance(const std::vector<double>& a, const std::vector<double>& b) {
  return testing::relative_error(a, b) * std::max(norm(b), 1e-30);
}

// Numbers for one case, standard normal, as the dtype holds them.
struct Inputs {
  Inputs(const Case& c, DType dtype, std::uint64_t seed = 1)
      : q(rounded(random_values(c.tokens() * c.heads * c.head_size, seed), dtype)),
        k(rounded(random_values(c.tokens() * c.kv_heads * c.head_size, seed + 1), dtype)),
        v(rounded(random_values(c.tokens() * c.kv_heads * c.head_size, seed + 2), dtype)),
        dout(rounded(random_values(c.tokens() * c.heads * c.head_size, seed + 3), dtype)) {
    // About as large as the log of a sum of exponentials of a few hundred standard normal scores.
    if (c.sinks) sinks = rounded(random_values(c.heads, seed + 4, 4.0), dtype);
  }
  std::vector<double> q, k, v, dout, sinks;
};

struct Results {
  std::vector<double> out, lse, dq, dk, dv, dsinks;
};

inline float scale_of(const Case& c) { return 1.0f / std::sqrt(static_cast<float>(c.head_size)); }

template <class Round, class Rule>
Results reference_results(const Case& c, const Inputs& in, const Round& round, const Rule& rule) {
  const auto offsets = c.offsets();
  const reference::AttentionShape shape = {c.heads, c.kv_heads, c.head_size, scale_of(c), c.window, offsets};
  Results r;
  reference::attention_forward(r.out, r.lse, in.q, in.k, in.v, shape, round, in.sinks, rule);
  reference::attention_backward(r.dq, r.dk, r.dv, in.dout, in.q, in.k, in.v, r.out, r.lse, shape, round, rule);
  r.dsinks = reference::sink_gradients(in.dout, r.out, r.lse, shape, in.sinks);
  return r;
}
template <class Round>
Results reference_results(const Case& c, const Inputs& in, const Round& round) {
  return reference_results(c, in, round, reference::CausalWindow{c.window});
}

inline constexpr auto exact = [](const auto& x) { return x; };

// Tensors as the blocks of a model lay them out: q, k, v side by side in one buffer, and so their gradients, with some
// columns to the right that belong to nobody.
struct Layout {
  static constexpr std::int64_t spare = 8;

  Layout(TestBench& bench, DType dtype, const Case& c, const Inputs& in) : c(c) {
    const std::int64_t d = c.head_size, q_width = c.heads * d, kv_width = c.kv_heads * d;
    const std::int64_t width = q_width + 2 * kv_width + spare;
    std::vector<double> fused(static_cast<std::size_t>(c.tokens() * width), std::nan(""));
    for (std::int64_t t = 0; t < c.tokens(); ++t) {
      double* row = fused.data() + t * width;
      std::copy_n(in.q.data() + t * q_width, q_width, row);
      std::copy_n(in.k.data() + t * kv_width, kv_width, row + q_width);
      std::copy_n(in.v.data() + t * kv_width, kv_width, row + q_width + kv_width);
    }
    const View qkv = bench.tensor(dtype, {c.tokens(), width}, fused);
    dqkv = bench.poisoned(dtype, {c.tokens(), width});
    const auto part = [&](const View& whole, std::int64_t begin, std::int64_t heads) {
      return whole.slice_cols(begin, begin + heads * d).split_cols(heads);
    };
    tensors = {part(qkv, 0, c.heads), part(qkv, q_width, c.kv_heads), part(qkv, q_width + kv_width, c.kv_heads),
               bench.poisoned(dtype, {c.tokens(), c.heads, d}), bench.poisoned(DType::f32, {c.tokens(), c.heads})};
    grads = {part(dqkv, 0, c.heads), part(dqkv, q_width, c.kv_heads), part(dqkv, q_width + kv_width, c.kv_heads)};
    dout = bench.tensor(dtype, {c.tokens(), c.heads, d}, in.dout);
    offsets = c.offsets();
    spec.scale = scale_of(c);
    spec.window = c.window;
    spec.cu_seqlens = bench.indices(offsets);
    spec.host_cu_seqlens = offsets;
    if (!c.sinks) return;
    spec.sinks = bench.tensor(dtype, {c.heads}, in.sinks);
    grads.dsinks = bench.poisoned(DType::f32, {c.heads});
    grads.dsinks_mode = Grad::overwrite;
  }

  Results run(TestBench& bench) {
    attention_forward(bench.exec, tensors, spec);
    attention_backward(bench.exec, grads, dout, tensors, spec);
    return {bench.read(tensors.out), bench.read(tensors.lse),
            bench.read(grads.dq),    bench.read(grads.dk),
            bench.read(grads.dv),    c.sinks ? bench.read(grads.dsinks) : std::vector<double>()};
  }

  Case c;
  View dqkv;
  AttentionTensors tensors;
  AttentionGrads grads;
  ConstView dout;
  std::vector<std::int32_t> offsets;
  AttentionSpec spec;
};

// What rounding to the dtype, or to nothing, makes of a number.
inline auto rounding(DType dtype) {
  return [dtype](double x) {
    return dtype == DType::bf16 ? static_cast<double>(static_cast<float>(bf16(static_cast<float>(x)))) : x;
  };
}

// bf16: a flash kernel has to round P, dS and its results to bf16 and to take delta from the rounded output; the
// reference does just that, and we may err twice as much. fp32: rounding of sums of a few hundred standard normal
// products, relative to the result and, where dP − delta cancels (one token), to numbers of size one.
inline void expect_close(DType dtype, const char* what, const std::vector<double>& actual,
                         const std::vector<double>& expected, const std::vector<double>& simulated, double factor = 2) {
  const double size = norm(expected), count = std::sqrt(static_cast<double>(expected.size()));
  const double allowed =
      dtype == DType::f32 ? 2e-6 * size + 1e-6 * count : factor * distance(simulated, expected) + 1e-4 * count;
  EXPECT_LE(distance(actual, expected), allowed) << what << ", norm " << size;
}

}  // namespace inlay::ops::attention_cases
