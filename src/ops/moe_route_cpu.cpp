#include <cmath>
#include <cstring>
#include <limits>

#include "ops/column_sums.h"
#include "ops/moe_route.h"

namespace inlay::ops::cpu {

namespace {

constexpr float lowest = -std::numeric_limits<float>::infinity();

// Indices stay in range and distinct whatever the logits are: a NaN counts as the lowest.
void choose(std::int32_t* chosen, std::int64_t k, const float* logits, std::int64_t count) {
  bool taken[most_experts] = {};
  for (std::int64_t i = 0; i < k; ++i) {
    std::int64_t best = -1;
    float top = lowest;
    for (std::int64_t e = 0; e < count; ++e) {
      const float value = std::isnan(logits[e]) ? lowest : logits[e];
      if (taken[e] || (best >= 0 && value <= top)) continue;
      best = e;
      top = value;
    }
    taken[best] = true;
    chosen[i] = static_cast<std::int32_t>(best);
  }
}

// p = softmax(z), a vector at a time.
void softmax(float* p, const float* z, std::int64_t count) {
  float top = lowest;
  for (std::int64_t e = 0; e < count; ++e) top = std::max(top, z[e]);
  f32v total = {};
  each_vector(0, count, [&](std::int64_t i, auto part) {
    const f32v value = backend::cpu::exp(load(z + i, part) - top);
    store(p + i, value, part);
    total += load(p + i, part);  // what is stored: the lanes behind the end count for nothing
  });
  const f32v inverse = splat(1.0f / backend::cpu::sum(total));
  each_vector(0, count, [&](std::int64_t i, auto part) { store(p + i, load(p + i, part) * inverse, part); });
}

// The weights of the chosen experts of one token. `all` is room for its softmax over all experts, where that is wanted.
void weigh(float* weights, float* all, const std::int32_t* chosen, std::int64_t k, const float* logits,
           std::int64_t count, RouteWeights kind) {
  if (kind == RouteWeights::softmax_of_chosen) {
    for (std::int64_t i = 0; i < k; ++i) weights[i] = logits[chosen[i]];
    return softmax(weights, weights, k);
  }
  softmax(all, logits, count);
  for (std::int64_t i = 0; i < k; ++i) weights[i] = all[chosen[i]];
}

// dz += of the weights.
void add_weight_gradient(float* dz, const float* dweights, const float* weights, const std::int32_t* chosen,
                         std::int64_t k, const float* all, std::int64_t count, RouteWeights kind) {
  float spread = 0;  // Σ w · dw
  for (std::int64_t i = 0; i < k; ++i) spread += weights[i] * dweights[i];
  for (std::int64_t i = 0; i < k; ++i) dz[chosen[i]] += weights[i] * dweights[i];
  if (kind == RouteWeights::softmax_of_chosen) {
    for (std::int64_t i = 0; i < k; ++i) dz[chosen[i]] -= weights[i] * spread;
    return;
  }
  for (std::int64_t e = 0; e < count; ++e) dz[e] -= all[e] * spread;
}

// dz += of the load-balancing loss.
void add_balance_gradient(float* dz, const float* all, const std::int32_t* assigned, std::int64_t count, float factor) {
  float mean = 0;
  for (std::int64_t e = 0; e < count; ++e) mean += static_cast<float>(assigned[e]) * all[e];
  for (std::int64_t e = 0; e < count; ++e) dz[e] += factor * all[e] * (static_cast<float>(assigned[e]) - mean);
}

}  // namespace

void moe_route(Exec&, View experts, View weights, ConstView logits, RouteWeights kind) {
  const std::int64_t count = logits.dim(1), k = experts.dim(1);
  const Rows<const float> rows(logits);
  parallel_for(logits.dim(0), row_grain(count * k), [&](std::int64_t begin, std::int64_t end) {
    float all[most_experts];
    for (std::int64_t t = begin; t < end; ++t) {
      std::int32_t* chosen = experts.as<std::int32_t>() + t * k;
      choose(chosen, k, rows[t], count);
      weigh(weights.as<float>() + t * k, all, chosen, k, rows[t], count, kind);
    }
  });
}

void moe_balance_add(Exec&, const Balance& balance, ConstView logits, ConstView experts, View scratch) {
  const std::int64_t count = logits.dim(1);
  const Rows<const float> rows(logits);
  for_rows_with_sums(logits.dim(0), balance.probability, Grad::accumulate, scratch,
                     [&](std::int64_t row, float* partial) {
                       float all[most_experts];
                       softmax(all, rows[row], count);
                       for (std::int64_t e = 0; e < count; ++e) partial[e] += all[e];
                     });
  const auto* chosen = experts.as<std::int32_t>();
  auto* assigned = balance.assigned.as<std::int32_t>();
  for (std::int64_t i = 0; i < experts.size(); ++i) ++assigned[chosen[i]];
}

void moe_balance_loss(Exec&, View loss, const Balance& balance, float scale) {
  float sum = 0;
  for (std::int64_t e = 0; e < balance.assigned.dim(0); ++e) {
    sum += static_cast<float>(balance.assigned.as<std::int32_t>()[e]) * balance.probability.as<float>()[e];
  }
  *loss.as<float>() += scale * sum;
}

void moe_route_backward(Exec&, View dlogits, const RouteGrads& grads, ConstView experts, ConstView logits,
                        RouteWeights kind) {
  const std::int64_t count = logits.dim(1), k = experts.dim(1);
  const Rows<const float> rows(logits);
  const bool chosen_only = kind == RouteWeights::softmax_of_chosen;
  with_activation(dlogits.dtype(), [&](auto type) {
    using T = decltype(type);
    const Rows<T> out_rows(dlogits);
    parallel_for(logits.dim(0), row_grain(4 * count), [&](std::int64_t begin, std::int64_t end) {
      float all[most_experts], dz[most_experts], weights[most_choices];
      for (std::int64_t t = begin; t < end; ++t) {
        const auto* chosen = experts.as<std::int32_t>() + t * k;
        std::memset(dz, 0, static_cast<std::size_t>(count) * sizeof(float));
        weigh(weights, all, chosen, k, rows[t], count, kind);
        if (chosen_only && grads.assigned) softmax(all, rows[t], count);  // the other kind left it there
        add_weight_gradient(dz, grads.dweights.as<float>() + t * k, weights, chosen, k, all, count, kind);
        if (grads.assigned) {
          add_balance_gradient(dz, all, grads.assigned.as<std::int32_t>(), count, grads.balance_factor);
        }
        T* out = out_rows[t];
        each_vector(0, count, [&](std::int64_t i, auto part) { store(out + i, load(dz + i, part), part); });
      }
    });
  });
}

}  // namespace inlay::ops::cpu
