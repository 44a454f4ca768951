#include "weights/dense.h"

#include "backend/grouped_matmul.h"

namespace inlay::weights {

using backend::Transpose;

namespace {

// All were written before in this step, or none.
class DenseGroup final : public DenseProducts {
 public:
  explicit DenseGroup(std::vector<DenseWeight*> dense)
      : DenseProducts(std::vector<Weight*>(dense.begin(), dense.end())), dense_(std::move(dense)) {}

  void accumulate(Exec& exec, ConstView dy, ConstView x, ConstView offsets, const ops::Call&) override {
    std::vector<View> gradients;
    Grad mode = Grad::skip;
    for (DenseWeight* weight : dense_) {
      Parameter& p = weight->parameter();
      gradients.push_back(p.grad);  // absent where frozen
      const Grad own = p.next_grad_mode();
      if (own != Grad::skip) mode = own;
    }
    backend::grouped_matmul_over_rows(exec, gradients, mode, dy, x, offsets);
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

std::vector<ConstView> DenseProducts::matrices() const {
  std::vector<ConstView> result;
  for (const Weight* weight : all_) result.push_back(weight->parameter().value);
  return result;
}

void DenseProducts::forward(Exec& exec, View y, Grad mode, ConstView x, ConstView offsets, const ops::Call&) {
  backend::grouped_matmul(exec, y, x, matrices(), Transpose::yes, offsets, {.beta = beta_of(mode)});
}

void DenseProducts::backward_input(Exec& exec, View dx, Grad mode, ConstView dy, ConstView offsets, const ops::Call&) {
  backend::grouped_matmul(exec, dx, dy, matrices(), Transpose::no, offsets, {.beta = beta_of(mode)});
}

std::unique_ptr<Weight> DenseKind::make(Exec& exec, Parameter& parameter, const WeightMemory& memory) const {
  allocate_value(exec, parameter, memory.compute);
  if (memory.training) allocate_training_state(exec, parameter);
  return std::make_unique<DenseWeight>(parameter);
}

}  // namespace inlay::weights
