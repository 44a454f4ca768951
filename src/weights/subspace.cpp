#include "weights/subspace.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "ops/adamw.h"
#include "ops/elementwise.h"

namespace inlay::weights {

SubspaceWeight::SubspaceWeight(Exec& exec, Parameter& dense, bool keeps_start) : Weight(dense) {
  dense.trainable = false;  // its factors are
  // What lives on the host is W₀; the change is added whenever it has come.
  if (dense.on_host || !keeps_start) return;
  start_ = exec.arena().keep(MemoryClass::master, dense.name + ".start", dense.value.dtype(), dense.my_shape());
}

void SubspaceWeight::forward(Exec& exec, View y, Grad mode, ConstView x, const ops::Call& call) {
  multiply(exec, parameter(), y, mode, x, call);
}

void SubspaceWeight::backward_input(Exec& exec, View dx, Grad mode, ConstView dy, const ops::Call& call) {
  multiply_back(exec, parameter(), dx, mode, dy, call);
}

View SubspaceWeight::start_value() const { return parameter().on_host ? parameter().value : start_; }

void SubspaceWeight::restart(Exec& exec) {
  if (!parameter().on_host) ops::cast(exec, parameter().my_value(), start_);
}

void SubspaceWeight::start(Exec& exec, const StartTensors* tensors) {
  INLAY_ASSERT(tensors != nullptr, "{} has no directions to start from", parameter().name);
  if (!start_.absent()) ops::cast(exec, start_, parameter().my_value());
  set_directions(exec, *tensors);
}

void SubspaceWeight::updated(Exec& exec) {
  if (!parameter().on_host) update_value(exec);
}

void set_basis(Exec& exec, Basis& basis, const StartTensors& tensors, const std::string& name) {
  if (!basis.absent()) basis.set(exec, tensors.at(name, DType::f32, basis.shape()));
}

Parameter SubspaceWeight::make_factor(Exec& exec, const std::string& suffix, DType dtype, Shape shape) {
  Parameter factor;
  factor.name = parameter().name + suffix;
  factor.owner = this;
  factor.shape = shape;
  factor.layer = parameter().layer;
  factor.cut = parameter().cut;
  factor.rank = parameter().rank;
  factor.first_copy = parameter().first_copy;
  factor.holds_value = factor.cut != nullptr;
  factor.holds_grad = factor.cut != nullptr && parameter().holds_grad;
  allocate_value(exec, factor, dtype);
  allocate_training_state(exec, factor);
  exec.fill_zero(factor.my_value());
  if (!factor.low.absent()) exec.fill_zero(factor.low);
  return factor;
}

double total_of(Exec& exec, ConstView sums) {
  std::vector<double> host(static_cast<std::size_t>(sums.size()));
  exec.download(host.data(), sums);
  return std::accumulate(host.begin(), host.end(), 0.0);
}

Leak leak_of(Exec& exec, const Projection& allowed, const Parameter& matrix,
             const std::function<void(View rows, std::int64_t row)>& add) {
  constexpr std::int64_t piece_elements = std::int64_t{8} << 20;  // of the change at once
  const std::int64_t in = matrix.shape[1], begin = matrix.first_row(), end = matrix.end_row();
  if (begin == end) return {};
  const std::int64_t step = std::clamp<std::int64_t>(piece_elements / in, 1, end - begin);
  const std::int64_t pieces = (end - begin + step - 1) / step;
  const backend::ScratchScope scope(exec.arena());
  View all = exec.arena().scratch("leak", DType::f64, {pieces}),
       outside = exec.arena().scratch("leak", DType::f64, {pieces});
  for (std::int64_t piece = 0; piece < pieces; ++piece) {
    const backend::ScratchScope piece_scope(exec.arena());
    const std::int64_t row = begin + piece * step;
    View change = exec.arena().scratch("change", DType::f32, {std::min(step, end - row), in});
    exec.fill_zero(change);
    add(change, row);
    ops::sum_of_squares(exec, all, piece, change);
    allowed.square_outside(exec, outside, piece, change);
  }
  return {.outside = total_of(exec, outside), .all = total_of(exec, all)};
}

}  // namespace inlay::weights
