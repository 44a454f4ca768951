#pragma once

#include "ops/factors.h"
#include "weights/basis.h"
#include "weights/dense.h"
#include "weights/masters.h"

namespace inlay::weights {

// A matrix of which only some directions train. The layers multiply by a dense weight in the compute dtype, as in plain
// fine-tuning; what trains are factors of its change, and after every optimizer step W = W₀ + change. Step 0 is the
// base model, bit for bit.
class SubspaceWeight : public Weight {
 public:
  // The matrix has its memory. keeps_start: W₀ is held beside W. Otherwise the weight itself never changes (factored
  // products).
  SubspaceWeight(Exec& exec, Parameter& dense, bool keeps_start);

  bool trainable() const override { return true; }
  bool multiplies_plainly() const override { return true; }
  void forward(Exec& exec, View y, Grad mode, ConstView x, const ops::Call& call = {}) override;
  void backward_input(Exec& exec, View dx, Grad mode, ConstView dy, const ops::Call& call = {}) override;

  // What was loaded is W₀ from now on; the directions come from the tensors.
  void start(Exec& exec, const StartTensors* tensors) final;
  void arrived(Exec& exec) final {
    if (parameter().on_host) update_value(exec);
  }
  void updated(Exec& exec) final;
  bool changes() const final { return true; }
  void complete(Exec& exec, View rows, std::int64_t row) final { add_change(exec, rows, row); }

  // W = W₀ + change, in the rows that this process has.
  virtual void update_value(Exec& exec) = 0;
  // rows += the change's rows from `row` on, in fp32 from the fp32 masters and the fp32 directions: what saving adds to
  // the base model. This is what the weight learned; W in the compute dtype is W₀ + that, rounded.
  virtual void add_change(Exec& exec, View rows, std::int64_t row) = 0;

 protected:
  virtual void set_directions(Exec& exec, const StartTensors& tensors) = 0;
  View start_value() const;
  // What update_value() writes: the rows of this process, or the whole that has come from the host.
  View changing_value() const { return parameter().on_host ? parameter().value : parameter().my_value(); }
  // value = W₀.
  void restart(Exec& exec);
  // Makes a factor that starts at zero; dtype f32 for vectors, the compute dtype for matrices. Its rows are
  // the matrix's, and belong to whom those do, who alone has a use for their values.
  Parameter make_factor(Exec& exec, const std::string& suffix, DType dtype, Shape shape);

 private:
  View start_;
};

// Takes a basis's rows from the tensors; does nothing where there is none.
void set_basis(Exec& exec, Basis& basis, const StartTensors& tensors, const std::string& name);
// Σ of what is on the device, fp64. Waits for it.
double total_of(Exec& exec, ConstView sums);
// What a matrix's change has beside what is allowed, in the rows that this process has. add(rows, row): rows += the
// change's rows from `row` on. Waits for the device.
Leak leak_of(Exec& exec, const Projection& allowed, const Parameter& matrix,
             const std::function<void(View rows, std::int64_t row)>& add);
inline ops::Master master_parts(const Parameter& factor) { return {.value = factor.my_value(), .low = factor.low}; }

}  // namespace inlay::weights
