#include "weights/input_subspace.h"

#include <algorithm>

#include "backend/grouped_matmul.h"
#include "ops/adamw.h"
#include "ops/elementwise.h"

namespace inlay::weights {

using backend::grouped_matmul;
using backend::grouped_matmul_over_rows;
using backend::matmul;
using backend::ScratchScope;
using backend::Transpose;

InputSubspace::InputSubspace(Exec& exec, Parameter& dense, const InputLayout& layout, BasisPlace place)
    : SubspaceWeight(exec, dense, true), layout_(layout) {
  const std::int64_t in = dense.shape[1], out = dense.shape[0];
  const DType compute = dense.value.dtype();
  basis_ = Basis(exec, dense.name + ".basis", compute, {layout.stored(), in}, place);
  const bool frozen = layout_.stores_frozen();
  allowed_ = layout_.allowed(basis_);
  factor_ =
      frozen ? make_factor(exec, ".change", compute, {out, in}) : make_factor(exec, ".b", compute, {out, layout.free});
  if (layout_.masks_rows) {
    row_mask_ = exec.arena().keep(MemoryClass::bases, dense.name + ".row_mask", DType::f32, {out});
  }
  if (dense.fp8 != nullptr && !frozen && dense.expert < 0) {
    basis_products_.emplace(exec, dense.name + ".basis", dense.fp8->settings(), layout.free, in,
                            place == BasisPlace::device, ops::Fp8Use::rows);
  }
  factor_.projected = frozen || layout_.masks_rows;  // elsewhere there is nothing that B could leave
}

void InputSubspace::set_directions(Exec& exec, const StartTensors& tensors) {
  set_basis(exec, basis_, tensors, layout_.basis_name(parameter().name));
  if (basis_products_) basis_products_->forget();
  if (!row_mask_.absent()) exec.upload(row_mask_, tensors.at("tokens.free", DType::f32, row_mask_.shape()));
}

void InputSubspace::project(Exec& exec, const Parameter&, View rows, Projected what) {
  if (layout_.stores_frozen()) allowed_.apply(exec, rows, what);
  if (!row_mask_.absent()) ops::scale_rows(exec, rows, row_mask_.slice_rows(factor_.first_row(), factor_.end_row()));
}

void InputSubspace::accumulate(Exec& exec, ConstView dy, ConstView x, const ops::Call& call) {
  const Grad mode = factor_.next_grad_mode();
  if (layout_.stores_frozen()) return multiply_over_rows(exec, parameter(), factor_.grad, mode, dy, x, call);
  const ScratchScope scope(exec.arena());
  const std::int64_t tokens = call.x != nullptr ? call.x->rows.rows : x.dim(0);
  View seen = exec.arena().scratch("input in the subspace", parameter().value.dtype(), {tokens, layout_.free});
  if (basis_products_) {
    basis_products_->forward(exec, seen, Grad::overwrite, basis_.rows(exec), x, call);
  } else {
    matmul(exec, seen, x, Transpose::no, basis_.rows(exec), Transpose::yes);
  }
  ops::Call seen_call = call;
  seen_call.x = nullptr;
  multiply_over_rows(exec, parameter(), factor_.grad, mode, dy, seen, seen_call);
}

std::optional<ops::Fp8Operands> InputSubspace::fp8() const {
  if (layout_.stores_frozen()) return plain_fp8();
  if (!basis_products_) return std::nullopt;
  return ops::Fp8Operands{.settings = basis_products_->settings(), .gradient_input = ops::Fp8Use::rows};
}

class InputGroup final : public DenseProducts {
 public:
  explicit InputGroup(std::vector<InputSubspace*> all)
      : DenseProducts(std::vector<Weight*>(all.begin(), all.end())), all_(std::move(all)) {}

  void accumulate(Exec& exec, ConstView dy, ConstView x, ConstView offsets, const ops::Call& call) override {
    const ScratchScope scope(exec.arena());
    const InputLayout& layout = all_.front()->layout_;
    std::vector<View> gradients;
    std::vector<ConstView> bases;
    Grad mode = Grad::skip;
    for (InputSubspace* weight : all_) {
      gradients.push_back(weight->factor_.grad);
      mode = weight->factor_.next_grad_mode();
      if (!layout.stores_frozen()) bases.push_back(weight->basis_.rows(exec));
    }
    if (layout.stores_frozen()) return accumulate_products(exec, gradients, mode, dy, x, offsets, call);
    View seen = exec.arena().scratch("input in the subspace", x.dtype(), {x.dim(0), layout.free});
    grouped_matmul(exec, seen, x, bases, Transpose::yes, offsets);
    grouped_matmul_over_rows(exec, gradients, mode, dy, seen, offsets);
  }
  std::optional<GroupOperands> fp8() const override {
    return all_.front()->layout_.stores_frozen() ? fp8_alone(true) : DenseProducts::fp8();
  }

 private:
  std::vector<InputSubspace*> all_;
};

std::unique_ptr<WeightGroup> InputSubspace::group(std::span<Weight* const> all) {
  auto inputs = all_of<InputSubspace>(all);
  const auto differs = [&](const InputSubspace* weight) { return weight->layout_ != layout_; };
  if (inputs.empty() || std::any_of(inputs.begin(), inputs.end(), differs)) return nullptr;
  return std::make_unique<InputGroup>(std::move(inputs));
}

void InputSubspace::accumulate_lookup(Exec& exec, ConstView dout, const ops::TokenGroups& groups) {
  const Grad mode = factor_.next_grad_mode();
  if (layout_.stores_frozen()) {
    ops::embedding_backward(exec, factor_.grad, mode, dout, groups);
    return;
  }
  const ScratchScope scope(exec.arena());
  View seen = exec.arena().scratch("gradient in the subspace", dout.dtype(), {dout.dim(0), layout_.free});
  matmul(exec, seen, dout, Transpose::no, basis_.rows(exec), Transpose::yes);
  ops::embedding_backward(exec, factor_.grad, mode, seen, groups);
}

void InputSubspace::update_value(Exec& exec) {
  if (layout_.stores_frozen()) {
    ops::add_offset(exec, changing_value(), start_value(), master_parts(factor_));
    return;
  }
  const ScratchScope scope(exec.arena());
  restart(exec);
  matmul(exec, changing_value(), factor_.my_value(), Transpose::no, basis_.rows(exec), Transpose::no,
         {.beta = 1.0f});  // +=
}

void InputSubspace::add_change(Exec& exec, View rows, std::int64_t row) {
  const ScratchScope scope(exec.arena());
  const ConstView factor = master_of(exec, factor_, row, row + rows.dim(0));
  if (!layout_.stores_frozen()) {
    matmul(exec, rows, factor, Transpose::no, basis_.exact_rows(exec), Transpose::no, {.beta = 1.0f});  // +=
    return;
  }
  View change = exec.arena().scratch("change", DType::f32, rows.shape());
  ops::cast(exec, change, factor);
  allowed_.apply_exactly(exec, change);
  ops::add(exec, rows, change);
}

Leak InputSubspace::leak(Exec& exec) {
  return leak_of(exec, allowed_, parameter(), [&](View rows, std::int64_t row) { add_change(exec, rows, row); });
}

std::unique_ptr<Weight> InputKind::make(Exec& exec, Parameter& parameter, const WeightMemory& memory) const {
  INLAY_ASSERT(memory.training, "{} has directions, but does not train", parameter.name);
  allocate_value(exec, parameter, memory.compute);
  return std::make_unique<InputSubspace>(exec, parameter, layout_, place_);
}

}  // namespace inlay::weights
