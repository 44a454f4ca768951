#pragma once

#include <cmath>
#include <cstdint>

// One parameter's AdamW step with decoupled weight decay, as torch.optim.AdamW has it. S is float or double.
namespace inlay::ops::reference {

template <class S>
struct AdamWParameter {
  S value{}, m{}, v{};
};

template <class S>
void adamw(AdamWParameter<S>& p, S grad, S lr, S beta1, S beta2, S eps, S weight_decay, std::int64_t step) {
  const S t = static_cast<S>(step);
  p.value *= S(1) - lr * weight_decay;
  p.m = beta1 * p.m + (S(1) - beta1) * grad;
  p.v = beta2 * p.v + (S(1) - beta2) * grad * grad;
  const S m_hat = p.m / (S(1) - std::pow(beta1, t));
  const S v_hat = p.v / (S(1) - std::pow(beta2, t));
  p.value -= lr * m_hat / (std::sqrt(v_hat) + eps);
}

}  // namespace inlay::ops::reference
