#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <vector>

// The fused linear cross entropy as plain scalar code, with every option: the specification that the kernels are held
// against. T is double, or std::complex<double> for gradients by complex step.
namespace inlay::ops::reference {

struct CrossEntropyOptions {
  double label_smoothing = 0, softcap = 0, z_loss = 0;
  enum class Reduction { mean, sum, none } reduction = Reduction::mean;
  double normalizer = 0, z_normalizer = 0;  // 0: from the batch
};

template <class T>
struct CrossEntropyProblem {
  std::int64_t tokens = 0, width = 0, columns = 0;
  std::vector<T> hidden;              // [tokens, width]
  std::vector<T> weight;              // [columns, width]
  std::vector<T> bias;                // [columns], or empty
  std::vector<std::int32_t> targets;  // [tokens]; negative: ignored
  std::vector<double> class_weights;  // [columns], or empty: 1
  std::vector<double> token_weights;  // [tokens], or empty: 1

  bool valid(std::int64_t t) const { return targets[static_cast<std::size_t>(t)] >= 0; }
  std::int64_t target(std::int64_t t) const { return targets[static_cast<std::size_t>(t)]; }
  double class_weight(std::int64_t v) const {
    return class_weights.empty() ? 1.0 : class_weights[static_cast<std::size_t>(v)];
  }
  double token_weight(std::int64_t t) const {
    return token_weights.empty() ? 1.0 : token_weights[static_cast<std::size_t>(t)];
  }
};

template <class T>
struct CrossEntropyResult {
  std::vector<T> loss, z_loss;  // [1], or [tokens] for none
  std::int32_t correct = 0;
  std::vector<std::int32_t> predicted;  // -1 where ignored
};

struct CrossEntropyGradients {
  std::vector<double> hidden, weight, bias;
};

inline double real_part(double x) { return x; }
inline double real_part(const std::complex<double>& x) { return x.real(); }

// What mean divides by: the cross entropy by the first, the z-loss by the second; 0 leaves the part out.
struct CrossEntropyScales {
  double ce = 1, z = 1;
};
template <class T>
CrossEntropyScales scales_of(const CrossEntropyProblem<T>& problem, const CrossEntropyOptions& options) {
  if (options.reduction != CrossEntropyOptions::Reduction::mean) return {1.0, options.z_loss};
  double weights = 0, counts = 0;
  for (std::int64_t t = 0; t < problem.tokens; ++t) {
    if (!problem.valid(t)) continue;
    weights += problem.token_weight(t) * problem.class_weight(problem.target(t));
    counts += problem.token_weight(t);
  }
  if (options.normalizer > 0) weights = counts = options.normalizer;
  if (options.z_normalizer > 0) counts = options.z_normalizer;
  return {weights != 0 ? 1.0 / weights : 0.0, counts != 0 ? options.z_loss / counts : 0.0};
}

// Z = X Wᵀ + bias; rows that are ignored stay zero.
template <class T>
std::vector<T> logits(const CrossEntropyProblem<T>& problem) {
  std::vector<T> z(static_cast<std::size_t>(problem.tokens * problem.columns));
#pragma omp parallel for if (problem.tokens * problem.columns > 100000)
  for (std::int64_t v = 0; v < problem.columns; ++v) {
    for (std::int64_t t = 0; t < problem.tokens; ++t) {
      if (!problem.valid(t)) continue;
      const T* x = problem.hidden.data() + t * problem.width;
      const T* w = problem.weight.data() + v * problem.width;
      T partial[8] = {};  // eight sums side by side, which compilers turn into vectors
      std::int64_t h = 0;
      for (; h + 8 <= problem.width; h += 8) {
        for (int i = 0; i < 8; ++i) partial[i] += x[h + i] * w[h + i];
      }
      T sum = problem.bias.empty() ? T(0) : problem.bias[static_cast<std::size_t>(v)];
      for (; h < problem.width; ++h) sum += x[h] * w[h];
      for (const T& part : partial) sum += part;
      z[static_cast<std::size_t>(t * problem.columns + v)] = sum;
    }
  }
  return z;
}

// A row of logits after softcap, and its log-sum-exp.
template <class T>
struct CappedRow {
  std::vector<T> z;
  T lse = T(0);
  std::int64_t argmax = 0;

  CappedRow(const T* logits, std::int64_t columns, double softcap) : z(logits, logits + columns) {
    using std::exp, std::log, std::tanh;
    for (std::int64_t v = 0; v < columns; ++v) {
      if (real_part(logits[v]) > real_part(logits[argmax])) argmax = v;
    }
    if (softcap > 0) {
      for (T& value : z) value = softcap * tanh(value / softcap);
    }
    const double top = real_part(z[static_cast<std::size_t>(argmax)]);
    T sum = T(0);
    for (const T& value : z) sum += exp(value - top);
    lse = log(sum) + top;
  }
};

// loss_t = w_t · ( c_y (1 - ε)(lse - z_y) + (ε / V) Σ_v c_v (lse - z_v) )  and  w_t · lse², each with its scale.
template <class T>
CrossEntropyResult<T> cross_entropy(const CrossEntropyProblem<T>& problem, const CrossEntropyOptions& options,
                                    const std::vector<T>& logits) {
  const CrossEntropyScales scales = scales_of(problem, options);
  const bool none = options.reduction == CrossEntropyOptions::Reduction::none;
  CrossEntropyResult<T> result;
  result.loss.assign(static_cast<std::size_t>(none ? problem.tokens : 1), T(0));
  result.z_loss = result.loss;
  result.predicted.assign(static_cast<std::size_t>(problem.tokens), -1);
  for (std::int64_t t = 0; t < problem.tokens; ++t) {
    if (!problem.valid(t)) continue;
    const std::int64_t y = problem.target(t);
    const CappedRow<T> row(logits.data() + t * problem.columns, problem.columns, options.softcap);
    T smooth = T(0);
    for (std::int64_t v = 0; v < problem.columns; ++v) {
      smooth += problem.class_weight(v) * (row.lse - row.z[static_cast<std::size_t>(v)]);
    }
    const T nll = row.lse - row.z[static_cast<std::size_t>(y)];
    const T ce = problem.class_weight(y) * (1 - options.label_smoothing) * nll +
                 options.label_smoothing / static_cast<double>(problem.columns) * smooth;
    const T z_part = problem.token_weight(t) * scales.z * row.lse * row.lse;
    const auto slot = static_cast<std::size_t>(none ? t : 0);
    result.loss[slot] += problem.token_weight(t) * scales.ce * ce + z_part;
    result.z_loss[slot] += z_part;
    result.predicted[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(row.argmax);
    result.correct += row.argmax == y ? 1 : 0;
  }
  return result;
}

// dZ in closed form, by the logits before softcap. upstream: [1], or [tokens] for none; empty: 1.
inline std::vector<double> logit_gradient(const CrossEntropyProblem<double>& problem,
                                          const CrossEntropyOptions& options, const std::vector<double>& logits,
                                          const std::vector<double>& upstream = {}) {
  const CrossEntropyScales scales = scales_of(problem, options);
  const double each = options.label_smoothing / static_cast<double>(problem.columns);
  double class_sum = 0;
  for (std::int64_t v = 0; v < problem.columns; ++v) class_sum += problem.class_weight(v);
  std::vector<double> dz(logits.size());
  for (std::int64_t t = 0; t < problem.tokens; ++t) {
    if (!problem.valid(t)) continue;
    const std::int64_t y = problem.target(t);
    const CappedRow<double> row(logits.data() + t * problem.columns, problem.columns, options.softcap);
    const double own = problem.class_weight(y) * (1 - options.label_smoothing);
    const double given = upstream.empty() ? 1.0 : upstream[upstream.size() == 1 ? 0 : static_cast<std::size_t>(t)];
    const double outer = problem.token_weight(t) * given;
    for (std::int64_t v = 0; v < problem.columns; ++v) {
      const double z = row.z[static_cast<std::size_t>(v)], p = std::exp(z - row.lse);
      const double ce = p * (own + each * class_sum) - each * problem.class_weight(v) - (v == y ? own : 0.0);
      const double slope = options.softcap > 0 ? 1 - z * z / (options.softcap * options.softcap) : 1.0;
      dz[static_cast<std::size_t>(t * problem.columns + v)] =
          outer * (scales.ce * ce + 2 * scales.z * row.lse * p) * slope;
    }
  }
  return dz;
}

// dX = dZ W, dW = dZᵀ X, dbias = column sums of dZ.
inline CrossEntropyGradients backward(const CrossEntropyProblem<double>& problem, const std::vector<double>& dz) {
  const std::int64_t tokens = problem.tokens, width = problem.width, columns = problem.columns;
  CrossEntropyGradients gradients;
  gradients.hidden.assign(problem.hidden.size(), 0.0);
  gradients.weight.assign(problem.weight.size(), 0.0);
  gradients.bias.assign(static_cast<std::size_t>(columns), 0.0);
#pragma omp parallel for if (tokens * columns > 100000)
  for (std::int64_t v = 0; v < columns; ++v) {
    double* dw = gradients.weight.data() + v * width;
    for (std::int64_t t = 0; t < tokens; ++t) {
      if (!problem.valid(t)) continue;
      const double d = dz[static_cast<std::size_t>(t * columns + v)];
      const double* x = problem.hidden.data() + t * width;
      gradients.bias[static_cast<std::size_t>(v)] += d;
      for (std::int64_t h = 0; h < width; ++h) dw[h] += d * x[h];
    }
  }
#pragma omp parallel for if (tokens * columns > 100000)
  for (std::int64_t block = 0; block < (tokens + 31) / 32; ++block) {  // so that a row of W serves 32 tokens
    for (std::int64_t v = 0; v < columns; ++v) {
      const double* w = problem.weight.data() + v * width;
      for (std::int64_t t = block * 32; t < std::min(tokens, block * 32 + 32); ++t) {
        if (!problem.valid(t)) continue;
        const double d = dz[static_cast<std::size_t>(t * columns + v)];
        double* dx = gradients.hidden.data() + t * width;
        for (std::int64_t h = 0; h < width; ++h) dx[h] += d * w[h];
      }
    }
  }
  return gradients;
}

}  // namespace inlay::ops::reference
