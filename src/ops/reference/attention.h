#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <span>
#include <vector>

// Causal attention over packed documents, as short as it can be said. S is float, double or std::complex (derivatives
// by complex step). Tensors are contiguous: q, out [T, heads, D]; k, v [T, kv_heads, D]; lse [T, heads].
namespace inlay::ops::reference {

struct AttentionShape {
  std::int64_t heads, kv_heads, head_size;
  double scale;
  std::int64_t window;  // 0: unlimited
  std::span<const std::int32_t> cu_seqlens;

  std::int64_t tokens() const { return cu_seqlens.back(); }
  std::int64_t first_key(std::int64_t query, std::int64_t document_begin) const {
    return window == 0 ? document_begin : std::max(document_begin, query - window + 1);
  }
};

template <class S>
double real_part(const S& x) {
  if constexpr (requires { x.real(); }) {
    return static_cast<double>(x.real());
  } else {
    return static_cast<double>(x);
  }
}

// Calls each(query, head, first key, kv_head) for all rows of scores.
template <class Each>
void for_each_score_row(const AttentionShape& shape, const Each& each) {
  for (std::size_t d = 0; d + 1 < shape.cu_seqlens.size(); ++d) {
    for (std::int64_t t = shape.cu_seqlens[d]; t < shape.cu_seqlens[d + 1]; ++t) {
      for (std::int64_t h = 0; h < shape.heads; ++h) {
        each(t, h, shape.first_key(t, shape.cu_seqlens[d]), h / (shape.heads / shape.kv_heads));
      }
    }
  }
}

template <class S>
S dot(const S* a, const S* b, std::int64_t n) {
  S sum{};
  for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// `round` is what storing a probability or a result does to it; the identity for the mathematical function. sinks,
// where given, hold a logit for each head that takes part in the softmax and gives no value.
template <class S, class Round>
void attention_forward(std::vector<S>& out, std::vector<S>& lse, const std::vector<S>& q, const std::vector<S>& k,
                       const std::vector<S>& v, const AttentionShape& shape, const Round& round,
                       const std::vector<S>& sinks = {}) {
  using std::exp, std::log;
  const std::int64_t n = shape.head_size;
  out.assign(q.size(), S{});
  lse.assign(static_cast<std::size_t>(shape.tokens() * shape.heads), S{});
  for_each_score_row(shape, [&](std::int64_t t, std::int64_t h, std::int64_t first, std::int64_t kv) {
    const S* query = q.data() + (t * shape.heads + h) * n;
    const auto at = [&](const std::vector<S>& x, std::int64_t key) {
      return x.data() + (key * shape.kv_heads + kv) * n;
    };
    std::vector<S> scores;
    double top = sinks.empty() ? -INFINITY : real_part(sinks[static_cast<std::size_t>(h)]);
    for (std::int64_t key = first; key <= t; ++key) {
      scores.push_back(dot(query, at(k, key), n) * S(shape.scale));
      top = std::max(top, real_part(scores.back()));
    }
    S total = sinks.empty() ? S{} : exp(sinks[static_cast<std::size_t>(h)] - S(top));
    std::vector<S> row(static_cast<std::size_t>(n), S{});
    for (std::int64_t key = first; key <= t; ++key) {
      const S p = exp(scores[static_cast<std::size_t>(key - first)] - S(top));
      total += p;
      for (std::int64_t i = 0; i < n; ++i) row[static_cast<std::size_t>(i)] += round(p) * at(v, key)[i];
    }
    for (std::int64_t i = 0; i < n; ++i) {
      out[static_cast<std::size_t>((t * shape.heads + h) * n + i)] = round(row[static_cast<std::size_t>(i)] / total);
    }
    lse[static_cast<std::size_t>(t * shape.heads + h)] = S(top) + log(total);
  });
}

// Gradients from out and lse as the forward pass left them.
template <class S, class Round>
void attention_backward(std::vector<S>& dq, std::vector<S>& dk, std::vector<S>& dv, const std::vector<S>& dout,
                        const std::vector<S>& q, const std::vector<S>& k, const std::vector<S>& v,
                        const std::vector<S>& out, const std::vector<S>& lse, const AttentionShape& shape,
                        const Round& round) {
  using std::exp;
  const std::int64_t n = shape.head_size;
  dq.assign(q.size(), S{});
  dk.assign(k.size(), S{});
  dv.assign(v.size(), S{});
  for_each_score_row(shape, [&](std::int64_t t, std::int64_t h, std::int64_t first, std::int64_t kv) {
    const std::int64_t row = (t * shape.heads + h) * n;
    const S delta = dot(dout.data() + row, out.data() + row, n);
    for (std::int64_t key = first; key <= t; ++key) {
      const std::int64_t other = (key * shape.kv_heads + kv) * n;
      const S score = dot(q.data() + row, k.data() + other, n) * S(shape.scale);
      const S p = exp(score - lse[static_cast<std::size_t>(t * shape.heads + h)]);
      const S ds = round(p * (dot(dout.data() + row, v.data() + other, n) - delta));
      for (std::int64_t i = 0; i < n; ++i) {
        dv[static_cast<std::size_t>(other + i)] += round(p) * dout[static_cast<std::size_t>(row + i)];
        dq[static_cast<std::size_t>(row + i)] += S(shape.scale) * ds * k[static_cast<std::size_t>(other + i)];
        dk[static_cast<std::size_t>(other + i)] += S(shape.scale) * ds * q[static_cast<std::size_t>(row + i)];
      }
    }
  });
  for (auto* gradient : {&dq, &dk, &dv}) {
    for (S& x : *gradient) x = round(x);
  }
}

// dσ_h = −Σ_t exp(σ_h − lse_t) (dout_t · out_t), from out and lse as the forward pass left them.
template <class S>
std::vector<S> sink_gradients(const std::vector<S>& dout, const std::vector<S>& out, const std::vector<S>& lse,
                              const AttentionShape& shape, const std::vector<S>& sinks) {
  using std::exp;
  std::vector<S> result(sinks.size(), S{});
  if (sinks.empty()) return result;
  for_each_score_row(shape, [&](std::int64_t t, std::int64_t h, std::int64_t, std::int64_t) {
    const std::int64_t row = t * shape.heads + h, at = row * shape.head_size;
    const S share = exp(sinks[static_cast<std::size_t>(h)] - lse[static_cast<std::size_t>(row)]);
    result[static_cast<std::size_t>(h)] -= share * dot(dout.data() + at, out.data() + at, shape.head_size);
  });
  return result;
}

}  // namespace inlay::ops::reference
