#include "weights/subspace.h"

#include <cmath>
#include <numeric>
#include <vector>

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

ConstView master_of(Exec& exec, const Parameter& factor) { return master_of(exec, factor, 0, factor.rows()); }

ConstView master_of(Exec& exec, const Parameter& factor, std::int64_t row, std::int64_t end) {
  const View value = factor.value.slice_rows(row, end);
  if (factor.low.absent()) return value;
  View master = exec.arena().scratch("fp32 factor", DType::f32, value.shape());
  ops::join_master(exec, master, value, factor.low.slice_rows(row, end));
  return master;
}

double relative_norm(Exec& exec, ConstView part, ConstView all) {
  const auto total = [&](ConstView sums) {
    std::vector<double> host(static_cast<std::size_t>(sums.size()));
    exec.download(host.data(), sums);
    return std::accumulate(host.begin(), host.end(), 0.0);
  };
  const double whole = total(all);
  return whole == 0 ? 0 : std::sqrt(total(part) / whole);
}

}  // namespace inlay::weights
