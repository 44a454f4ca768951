#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <span>
#include <vector>

// Attention over packed documents, causal or by any rule, as short as it can be said. S is float, double or
// std::complex (derivatives by complex step). Tensors are contiguous: q, out [T, heads, D]; k, v [T, kv_heads, D]; lse
// [T, heads].
namespace inlay::ops::reference {

struct AttentionShape {
  std::int64_t heads, kv_heads, head_size;
  double scale;
  std::int64_t window;  // 0: unlimited
  std::span<const std::int32_t> cu_seqlens;

  std::int64_t tokens() const { return cu_seqlens.back(); }
};

// A query and a key of one document; q and k are their positions in it.
struct AttentionPair {
  std::int64_t q, k, head, document, length;
};

// A rule says which pairs are seen, and what becomes of their scores.
struct CausalWindow {
  std::int64_t window;
  bool sees(const AttentionPair& at) const { return at.k <= at.q && (window == 0 || at.q - at.k < window); }
  template <class S>
  S score(const AttentionPair&, const S& s) const {
    return s;
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

// d score / d s, by complex step.
template <class Rule>
double slope_of(const Rule& rule, const AttentionPair& at, double s) {
  constexpr double step = 1e-100;
  return rule.score(at, std::complex<double>(s, step)).imag() / step;
}

// Calls each(query, head, the pairs that are seen) for all rows of scores; the query is a token of the batch.
template <class Rule, class Each>
void for_each_score_row(const AttentionShape& shape, const Rule& rule, const Each& each) {
  for (std::size_t d = 0; d + 1 < shape.cu_seqlens.size(); ++d) {
    const std::int64_t begin = shape.cu_seqlens[d], length = shape.cu_seqlens[d + 1] - begin;
    for (std::int64_t q = 0; q < length; ++q) {
      for (std::int64_t h = 0; h < shape.heads; ++h) {
        std::vector<AttentionPair> seen;
        for (std::int64_t k = 0; k < length; ++k) {
          const AttentionPair pair = {q, k, h, static_cast<std::int64_t>(d), length};
          if (rule.sees(pair)) seen.push_back(pair);
        }
        each(begin + q, h, seen);
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
// where given, hold a logit for each head that takes part in the softmax and gives no value. A query that sees nothing
// has an out of zeros and an lse of minus infinity.
template <class S, class Round, class Rule>
void attention_forward(std::vector<S>& out, std::vector<S>& lse, const std::vector<S>& q, const std::vector<S>& k,
                       const std::vector<S>& v, const AttentionShape& shape, const Round& round,
                       const std::vector<S>& sinks, const Rule& rule) {
  using std::exp, std::log;
  const std::int64_t n = shape.head_size;
  out.assign(q.size(), S{});
  lse.assign(static_cast<std::size_t>(shape.tokens() * shape.heads), S{});
  for_each_score_row(shape, rule, [&](std::int64_t t, std::int64_t h, const std::vector<AttentionPair>& pairs) {
    const S* query = q.data() + (t * shape.heads + h) * n;
    const auto at = [&](const std::vector<S>& x, const AttentionPair& pair) {
      return x.data() + ((t - pair.q + pair.k) * shape.kv_heads + h / (shape.heads / shape.kv_heads)) * n;
    };
    std::vector<S> scores;
    double top = sinks.empty() ? -INFINITY : real_part(sinks[static_cast<std::size_t>(h)]);
    for (const AttentionPair& pair : pairs) {
      scores.push_back(rule.score(pair, dot(query, at(k, pair), n) * S(shape.scale)));
      top = std::max(top, real_part(scores.back()));
    }
    if (top == -INFINITY) {
      lse[static_cast<std::size_t>(t * shape.heads + h)] = S(-INFINITY);
      return;
    }
    S total = sinks.empty() ? S{} : exp(sinks[static_cast<std::size_t>(h)] - S(top));
    std::vector<S> row(static_cast<std::size_t>(n), S{});
    for (std::size_t p = 0; p < pairs.size(); ++p) {
      const S weight = exp(scores[p] - S(top));
      total += weight;
      for (std::int64_t i = 0; i < n; ++i) row[static_cast<std::size_t>(i)] += round(weight) * at(v, pairs[p])[i];
    }
    for (std::int64_t i = 0; i < n; ++i) {
      out[static_cast<std::size_t>((t * shape.heads + h) * n + i)] = round(row[static_cast<std::size_t>(i)] / total);
    }
    lse[static_cast<std::size_t>(t * shape.heads + h)] = S(top) + log(total);
  });
}
template <class S, class Round>
void attention_forward(std::vector<S>& out, std::vector<S>& lse, const std::vector<S>& q, const std::vector<S>& k,
                       const std::vector<S>& v, const AttentionShape& shape, const Round& round,
                       const std::vector<S>& sinks = {}) {
  attention_forward(out, lse, q, k, v, shape, round, sinks, CausalWindow{shape.window});
}

// Gradients from out and lse as the forward pass left them.
template <class S, class Round, class Rule>
void attention_backward(std::vector<S>& dq, std::vector<S>& dk, std::vector<S>& dv, const std::vector<S>& dout,
                        const std::vector<S>& q, const std::vector<S>& k, const std::vector<S>& v,
                        const std::vector<S>& out, const std::vector<S>& lse, const AttentionShape& shape,
                        const Round& round, const Rule& rule) {
  using std::exp;
  const std::int64_t n = shape.head_size;
  dq.assign(q.size(), S{});
  dk.assign(k.size(), S{});
  dv.assign(v.size(), S{});
  for_each_score_row(shape, rule, [&](std::int64_t t, std::int64_t h, const std::vector<AttentionPair>& pairs) {
    const std::int64_t row = (t * shape.heads + h) * n;
    const S delta = dot(dout.data() + row, out.data() + row, n);
    for (const AttentionPair& pair : pairs) {
      const std::int64_t other = ((t - pair.q + pair.k) * shape.kv_heads + h / (shape.heads / shape.kv_heads)) * n;
      const S score = dot(q.data() + row, k.data() + other, n) * S(shape.scale);
      const S p = exp(rule.score(pair, score) - lse[static_cast<std::size_t>(t * shape.heads + h)]);
      const S slope = S(slope_of(rule, pair, real_part(score)));
      const S ds = round(p * (dot(dout.data() + row, v.data() + other, n) - delta) * slope);
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
template <class S, class Round>
void attention_backward(std::vector<S>& dq, std::vector<S>& dk, std::vector<S>& dv, const std::vector<S>& dout,
                        const std::vector<S>& q, const std::vector<S>& k, const std::vector<S>& v,
                        const std::vector<S>& out, const std::vector<S>& lse, const AttentionShape& shape,
                        const Round& round) {
  attention_backward(dq, dk, dv, dout, q, k, v, out, lse, shape, round, CausalWindow{shape.window});
}

// dσ_h = −Σ_t exp(σ_h − lse_t) (dout_t · out_t), from out and lse as the forward pass left them.
template <class S>
std::vector<S> sink_gradients(const std::vector<S>& dout, const std::vector<S>& out, const std::vector<S>& lse,
                              const AttentionShape& shape, const std::vector<S>& sinks) {
  using std::exp;
  std::vector<S> result(sinks.size(), S{});
  if (sinks.empty()) return result;
  for (std::int64_t row = 0; row < shape.tokens() * shape.heads; ++row) {
    const auto h = static_cast<std::size_t>(row % shape.heads);
    const std::int64_t at = row * shape.head_size;
    const S share = exp(sinks[h] - lse[static_cast<std::size_t>(row)]);
    result[h] -= share * dot(dout.data() + at, out.data() + at, shape.head_size);
  }
  return result;
}

}  // namespace inlay::ops::reference
