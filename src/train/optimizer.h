#pragma once

#include <functional>
#include <string>
#include <vector>

#include "model/decoder.h"
#include "ops/adamw.h"
#include "train/host_optimizer.h"

namespace inlay::train {

using backend::Exec;

struct OptimizerOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decay_vectors = false;  // norms and biases are spared, as everybody's trainer does
  double max_grad_norm = 0;    // 0: no clipping
  DType moments = DType::f32;
};

struct GradientNorms {
  float projected = 0;  // of what the step uses, before clipping
  float raw = 0;        // before the projections; the same where nothing is projected
};

// AdamW over everything that trains. Clipping needs no host: the factor stays on the device. Where a parameter allows
// some changes only, its gradient is projected before clipping and AdamW's change after it: AdamW scales every
// coordinate by itself, which turns the change out of the subspace.
class Optimizer {
 public:
  Optimizer(Exec& exec, model::Decoder& decoder, const OptimizerOptions& options);

  // Before the step's first backward pass, of so many. step counts from 1.
  void begin_step(int passes, std::int64_t step, double learning_rate);
  // After the last one. Clears the gradients' "written" marks.
  void step(Exec& exec, std::int64_t step, double learning_rate);
  // The global norms of the last step. Waits for the device.
  GradientNorms read_grad_norms(Exec& exec);

  // Waits for what is still being updated on the host.
  void settle();
  // Every tensor of the training state, named, for exact resumption: values, low halves, moments; each with the Exec of
  // where it lives.
  using VisitState = std::function<void(const std::string& name, View tensor, Exec& home)>;
  void for_each_state(Exec& exec, const VisitState& visit);

 private:
  void norms(Exec& exec, View norm, View scale);
  void start_host(Exec& exec, model::Decoder& decoder);
  ops::AdamWSettings settings(std::int64_t step, double learning_rate) const;
  bool decays(const weights::Parameter& parameter) const;

  struct Slot {
    weights::Parameter* parameter;
    View m, v;
  };

  OptimizerOptions options_;
  std::vector<Slot> slots_, host_slots_;  // on the device, and on the host
  std::unique_ptr<HostOptimizer> host_;   // null where nothing is
  parallel::Mesh mesh_;
  bool projects_ = false;  // some parameter does
  bool cut_ = false;       // some parameter's rows are stepped elsewhere
  View sums_, norm_, scale_;
  View raw_norm_, raw_scale_;  // the same before projection; the factor is not used
};

}  // namespace inlay::train
