#pragma once

#include <functional>

#include "ops/embedding.h"
#include "ops/factors.h"
#include "ops/linear.h"
#include "weights/basis.h"
#include "weights/dense.h"
#include "weights/parameter.h"

namespace inlay::weights {

// A matrix of which only some directions train. The layers multiply by a dense weight in the compute dtype, as in plain
// fine-tuning; what trains are factors of its change, and after every optimizer step W = W₀ + change. Step 0 is the
// base model, bit for bit.
class SubspaceWeight : public ops::Linear {
 public:
  // keeps_start: W₀ is held beside W. Otherwise the weight itself never changes (factored products).
  SubspaceWeight(Exec& exec, Parameter& dense, bool keeps_start);

  std::int64_t in_features() const override { return dense_->shape[1]; }
  std::int64_t out_features() const override { return dense_->shape[0]; }
  bool trainable() const override { return true; }
  ConstView matrix() const override { return dense_->value; }
  void forward(Exec& exec, View y, ConstView x) override;
  void backward_input(Exec& exec, View dx, Grad mode, ConstView dy, const float* device_alpha) override;
  // The gradient where the matrix is looked up by token instead of multiplied by.
  virtual void accumulate_lookup(Exec& exec, ConstView dout, const ops::TokenGroups& groups) = 0;

  Parameter& dense() { return *dense_; }
  const Parameter& dense() const { return *dense_; }

  // The base weight was loaded: it is W₀ from now on.
  void set_start(Exec& exec);
  // What trains, in a fixed order; the parameters' projections keep their changes inside the subspace.
  virtual void for_each_factor(const std::function<void(Parameter&)>& visit) = 0;
  // After the last micro-batch: what accumulate() left becomes the factors' gradients.
  virtual void finish_gradients(Exec&) {}
  // After the optimizer's step, or when W₀ has come from the host: W = W₀ + change.
  virtual void update_value(Exec& exec) = 0;
  // rows += the change's rows from `row` on, in fp32 from the fp32 masters and the fp32 directions: what saving adds to
  // the base model. This is what the weight learned; W in the compute dtype is W₀ + that, rounded.
  virtual void add_change(Exec& exec, View rows, std::int64_t row) = 0;
  // ‖the part of add_change()'s change along frozen directions‖ / ‖change‖, 0 where nothing changed. Waits for the
  // device.
  virtual double leak(Exec& exec) = 0;
  // How gradients are found, for reports.
  virtual std::string describe() const = 0;

 protected:
  View start() const;
  // value = W₀.
  void restart(Exec& exec);
  // Makes a factor that starts at zero; dtype f32 for vectors, the compute dtype for matrices.
  Parameter make_factor(Exec& exec, const std::string& suffix, DType dtype, Shape shape);

 private:
  Parameter* dense_;
  DenseWeight product_;  // by W as it stands
  View start_;
};

// The fp32 value of a factor, or of some of its rows: itself, or joined in scratch.
ConstView master_of(Exec& exec, const Parameter& factor);
ConstView master_of(Exec& exec, const Parameter& factor, std::int64_t row, std::int64_t end);
// sqrt(Σ part / Σ all) of sums of squares on the device, fp64; 0 where all are 0. Waits for the device.
double relative_norm(Exec& exec, ConstView part, ConstView all);
inline ops::Master master_parts(const Parameter& factor) { return {.value = factor.value, .low = factor.low}; }

}  // namespace inlay::weights
