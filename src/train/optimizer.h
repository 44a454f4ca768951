#pragma once

#include <functional>
#include <string>
#include <vector>

#include "model/parameters.h"
#include "ops/adamw.h"

namespace inlay::train {

using backend::Exec;

struct OptimizerOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decay_vectors = false;  // norms and biases are spared, as everybody's trainer does
  double max_grad_norm = 0;    // 0: no clipping
  DType moments = DType::f32;
};

// AdamW over everything that trains. Clipping needs no host: the factor stays on the device.
class Optimizer {
 public:
  Optimizer(Exec& exec, model::ModelParameters& parameters, const OptimizerOptions& options);

  // step counts from 1. Clears the gradients' "written" marks.
  void step(Exec& exec, std::int64_t step, double learning_rate);
  // The global norm before clipping of the last step. Waits for the device.
  float read_grad_norm(Exec& exec);

  // Every tensor of the training state, named, for exact resumption: values, low halves, moments.
  void for_each_state(const std::function<void(const std::string& name, View tensor)>& visit);

 private:
  struct Slot {
    weights::Parameter* parameter;
    View m, v;
  };

  OptimizerOptions options_;
  std::vector<Slot> slots_;
  View sums_, norm_, scale_;
};

}  // namespace inlay::train
