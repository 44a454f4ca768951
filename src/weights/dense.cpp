#include "weights/dense.h"

#include "backend/grouped_matmul.h"

namespace inlay::weights {

using backend::matmul;
using backend::Transpose;

void DenseWeight::forward(Exec& exec, View y, ConstView x) {
  matmul(exec, y, x, Transpose::no, parameter_->value, Transpose::yes);
}

void DenseWeight::backward_input(Exec& exec, View dx, Grad mode, ConstView dy, const float* device_alpha) {
  if (mode == Grad::skip) return;
  matmul(exec, dx, dy, Transpose::no, parameter_->value, Transpose::no,
         {.beta = mode == Grad::accumulate ? 1.0f : 0.0f, .device_alpha = device_alpha});
}

void DenseWeight::accumulate(Exec& exec, ConstView dy, ConstView x, const float* device_alpha) {
  const Grad mode = parameter_->next_grad_mode();
  if (mode == Grad::skip) return;
  matmul(exec, parameter_->grad, dy, Transpose::yes, x, Transpose::no,
         {.beta = mode == Grad::accumulate ? 1.0f : 0.0f, .device_alpha = device_alpha});
}

void DenseWeight::accumulate_group(Exec& exec, std::span<DenseWeight* const> group, ConstView dy, ConstView x,
                                   ConstView offsets) {
  std::vector<View> gradients;
  Grad mode = Grad::skip;
  for (DenseWeight* weight : group) {
    gradients.push_back(weight->parameter_->grad);  // absent where frozen
    const Grad own = weight->parameter_->next_grad_mode();
    if (own != Grad::skip) mode = own;
  }
  backend::grouped_matmul_over_rows(exec, gradients, mode, dy, x, offsets);
}

}  // namespace inlay::weights
