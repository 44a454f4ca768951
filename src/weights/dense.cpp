#include "weights/dense.h"

#include <algorithm>

#include "backend/grouped_fp8_matmul.h"
#include "backend/grouped_matmul.h"

namespace inlay::weights {

using backend::ScratchScope;
using backend::Transpose;
using ops::Fp8Matrix;
using ops::Fp8Role;
using ops::Fp8Use;

namespace {

// All were written before in this step, or none.
class DenseGroup final : public DenseProducts {
 public:
  explicit DenseGroup(std::vector<DenseWeight*> dense)
      : DenseProducts(std::vector<Weight*>(dense.begin(), dense.end())), dense_(std::move(dense)) {}

  void accumulate(Exec& exec, ConstView dy, ConstView x, ConstView offsets, const ops::Call& call) override {
    std::vector<View> gradients;
    Grad mode = Grad::skip;
    for (DenseWeight* weight : dense_) {
      Parameter& p = weight->parameter();
      gradients.push_back(p.grad);  // absent where frozen
      const Grad own = p.next_grad_mode();
      if (own != Grad::skip) mode = own;
    }
    accumulate_products(exec, gradients, mode, dy, x, offsets, call);
  }
  std::optional<GroupOperands> fp8() const override {
    return fp8_alone(std::ranges::any_of(dense_, [](const DenseWeight* weight) { return weight->trainable(); }));
  }

 private:
  std::vector<DenseWeight*> dense_;
};

}  // namespace

void DenseWeight::forward(Exec& exec, View y, Grad mode, ConstView x, const ops::Call& call) {
  multiply(exec, parameter(), y, mode, x, call);
}

void DenseWeight::backward_input(Exec& exec, View dx, Grad mode, ConstView dy, const ops::Call& call) {
  multiply_back(exec, parameter(), dx, mode, dy, call);
}

void DenseWeight::accumulate(Exec& exec, ConstView dy, ConstView x, const ops::Call& call) {
  const Grad mode = parameter().next_grad_mode();
  multiply_over_rows(exec, parameter(), parameter().grad, mode, dy, x, call);
}

void DenseWeight::accumulate_lookup(Exec& exec, ConstView dout, const ops::TokenGroups& groups) {
  const Grad mode = parameter().next_grad_mode();
  ops::embedding_backward(exec, parameter().grad, mode, dout, groups);
}

std::unique_ptr<WeightGroup> DenseWeight::group(std::span<Weight* const> all) {
  auto dense = all_of<DenseWeight>(all);
  return dense.empty() ? nullptr : std::make_unique<DenseGroup>(std::move(dense));
}

DenseProducts::DenseProducts(std::span<Weight* const> all) {
  for (const Weight* weight : all) parameters_.push_back(&weight->parameter());
  const auto in_fp8 = [](const Parameter* p) { return p->fp8 != nullptr; };
  if (std::ranges::all_of(parameters_, in_fp8)) fp8_ = parameters_.front()->fp8->settings();
}

std::optional<GroupOperands> DenseProducts::fp8() const {
  if (!fp8_) return std::nullopt;
  return GroupOperands{.settings = *fp8_, .plain = true};
}

std::optional<GroupOperands> DenseProducts::fp8_alone(bool gradients) const {
  if (!fp8_) return std::nullopt;
  return GroupOperands{.settings = *fp8_, .gradients = gradients};
}

std::vector<ConstView> DenseProducts::matrices() const {
  std::vector<ConstView> result;
  for (const Parameter* p : parameters_) result.push_back(p->value);
  return result;
}

void DenseProducts::forward(Exec& exec, View y, Grad mode, ConstView x, ConstView offsets, const ops::Call& call) {
  if (!fp8_) return backend::grouped_matmul(exec, y, x, matrices(), Transpose::yes, offsets, {.beta = beta_of(mode)});
  const ScratchScope scope(exec.arena());
  const Fp8Matrix input = operand_in_fp8(exec, "input", *fp8_, Fp8Role::input, Fp8Use::rows, x, call.x);
  backend::grouped_fp8_matmul(exec, y, input, copies_of_all(exec, parameters_, Fp8Use::rows), offsets,
                              {.beta = beta_of(mode)}, fp8_->sums);
}

void DenseProducts::backward_input(Exec& exec, View dx, Grad mode, ConstView dy, ConstView offsets,
                                   const ops::Call& call) {
  if (!fp8_) return backend::grouped_matmul(exec, dx, dy, matrices(), Transpose::no, offsets, {.beta = beta_of(mode)});
  const ScratchScope scope(exec.arena());
  const Fp8Matrix gradient = operand_in_fp8(exec, "gradient", *fp8_, Fp8Role::gradient, Fp8Use::rows, dy, call.dy);
  backend::grouped_fp8_matmul(exec, dx, gradient, copies_of_all(exec, parameters_, Fp8Use::columns), offsets,
                              {.beta = beta_of(mode)}, fp8_->sums);
}

void DenseProducts::accumulate_products(Exec& exec, std::span<const View> gradients, Grad mode, ConstView dy,
                                        ConstView x, ConstView offsets, const ops::Call& call) const {
  if (mode == Grad::skip) return;
  if (!fp8_) return backend::grouped_matmul_over_rows(exec, gradients, mode, dy, x, offsets);
  const ScratchScope scope(exec.arena());
  const Fp8Matrix left = operand_in_fp8(exec, "gradient", *fp8_, Fp8Role::gradient, Fp8Use::columns, dy, call.dy);
  const Fp8Matrix right = operand_in_fp8(exec, "input", *fp8_, Fp8Role::input, Fp8Use::columns, x, call.x);
  backend::grouped_fp8_matmul_over_rows(exec, gradients, mode, left, right, offsets);
}

std::unique_ptr<Weight> DenseKind::make(Exec& exec, Parameter& parameter, const WeightMemory& memory) const {
  allocate_value(exec, parameter, memory.compute);
  if (memory.training) allocate_training_state(exec, parameter);
  return std::make_unique<DenseWeight>(parameter);
}

}  // namespace inlay::weights
