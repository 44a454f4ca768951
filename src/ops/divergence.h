#pragma once

#include <cmath>

#include "ops/softmax_gradient.h"

#ifndef INLAY_BOTH
#ifdef __CUDACC__
#define INLAY_BOTH __host__ __device__ inline
#else
#define INLAY_BOTH inline
#endif
#endif

// The middle of the fused loss where another model's prediction is learned as well: a chunk of the model's logits
// becomes the gradient of cross entropy and divergence together, in place.
namespace inlay::ops {

// Between the other model's prediction q and this one's p, both by logits / temperature.
enum class DivergenceKind : std::uint8_t {
  forward,         // Σ q (ln q - ln p)
  reverse,         // Σ p (ln p - ln q)
  jensen_shannon,  // beta · Σ q (ln q - ln m) + (1 - beta) · Σ p (ln p - ln m), m = beta · q + (1 - beta) · p
};

struct DivergenceSpec {
  DivergenceKind kind = DivergenceKind::forward;
  float beta = 0.5f;
  float temperature = 1;
  float weight = 1;     // the divergence counts so much, times temperature²
  float ce_weight = 1;  // and the cross entropy so much
};

struct DivergenceChunk {
  SoftmaxChunk own;  // without bias or class weights
  ConstView others;  // [n, V] in own's dtype or fp32: the other model's logits, before its softcap; minus infinity is a
                     // probability of 0
  float others_softcap = 0;
  ConstView weights;  // fp32 [T], or absent: of the divergence, in place of own.token_weights
  View divergence;    // fp32 [n] =: of each row, before weight and temperature²
  DivergenceSpec spec;
};

// A column's part of what is summed over a row. Where q = 0 its logarithm is minus infinity and its part is 0.
struct DivergenceTerms {
  float divergence, own;  // own: Σ p (ln p - ln q), or ln m in place of ln q
};
INLAY_BOTH DivergenceTerms divergence_terms(const DivergenceSpec& spec, float log_p, float log_q) {
  const float p = expf(log_p), q = expf(log_q);
  if (spec.kind == DivergenceKind::forward) return {q > 0 ? q * (log_q - log_p) : 0.0f, 0.0f};
  if (spec.kind == DivergenceKind::reverse) {
    const float term = p > 0 ? p * (log_p - log_q) : 0.0f;
    return {term, term};
  }
  const float log_m = logf(spec.beta * q + (1.0f - spec.beta) * p);
  const float theirs = q > 0 ? q * (log_q - log_m) : 0.0f, ours = p > 0 ? p * (log_p - log_m) : 0.0f;
  return {spec.beta * theirs + (1.0f - spec.beta) * ours, ours};
}
// The derivative of the divergence by p's logit, before temperature; own: the sum of all columns' DivergenceTerms::own.
INLAY_BOTH float divergence_slope(const DivergenceSpec& spec, float log_p, float log_q, float own) {
  const float p = expf(log_p), q = expf(log_q);
  if (spec.kind == DivergenceKind::forward) return p - q;
  if (!(p > 0)) return 0.0f;
  if (spec.kind == DivergenceKind::reverse) return p * (log_p - log_q - own);
  return (1.0f - spec.beta) * p * (log_p - logf(spec.beta * q + (1.0f - spec.beta) * p) - own);
}

namespace cpu {
void divergence_gradient(Exec& exec, const DivergenceChunk& chunk);
}
namespace cuda {
void divergence_gradient(Exec& exec, const DivergenceChunk& chunk);
}

}  // namespace inlay::ops
