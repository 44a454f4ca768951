#include "weights/subspace.h"

#include "ops/adamw.h"
#include "ops/elementwise.h"

namespace inlay::weights {

SubspaceWeight::SubspaceWeight(Exec& exec, Parameter& dense, bool keeps_start) : dense_(&dense), product_(dense) {
  dense.trainable = false;  // its factors are
  dense.change = [this](Exec& e, View rows, std::int64_t row) { add_change(e, rows, row); };
  if (dense.on_host) {
    // What lives there is W₀; the change is added whenever it has come.
    dense.arrived = [this](Exec& e) { update_value(e); };
    return;
  }
  if (!keeps_start) return;
  start_ = exec.arena().keep(MemoryClass::master, dense.name + ".start", dense.value.dtype(), dense.shape);
}

void SubspaceWeight::forward(Exec& exec, View y, ConstView x) { product_.forward(exec, y, x); }

void SubspaceWeight::backward_input(Exec& exec, View dx, Grad mode, ConstView dy, const float* device_alpha) {
  product_.backward_input(exec, dx, mode, dy, device_alpha);
}

View SubspaceWeight::start() const { return dense_->on_host ? dense_->value : start_; }

void SubspaceWeight::restart(Exec& exec) {
  if (!dense_->on_host) ops::cast(exec, dense_->value, start_);
}

void SubspaceWeight::set_start(Exec& exec) {
  if (!start_.absent()) ops::cast(exec, start_, dense_->value);
}

Parameter SubspaceWeight::make_factor(Exec& exec, const std::string& suffix, DType dtype, Shape shape) {
  Parameter factor;
  factor.name = dense_->name + suffix;
  factor.shape = shape;
  allocate_value(exec, factor, dtype);
  allocate_training_state(exec, factor);
  exec.fill_zero(factor.value);
  if (!factor.low.absent()) exec.fill_zero(factor.low);
  return factor;
}

ConstView master_of(Exec& exec, const Parameter& factor) {
  if (factor.low.absent()) return factor.value;
  View master = exec.arena().scratch("fp32 factor", DType::f32, factor.shape);
  ops::join_master(exec, master, factor.value, factor.low);
  return master;
}

}  // namespace inlay::weights
