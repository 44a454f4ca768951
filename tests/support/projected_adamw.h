#pragma once

#include <map>
#include <string>

#include "ops/adamw.h"
#include "support/device_tensors.h"
#include "weights/weight.h"

namespace inlay::testing {

// The optimizer's step on one parameter as train/optimizer does it: the gradient projected, then AdamW's change.
class ProjectedAdamW {
 public:
  explicit ProjectedAdamW(TestBench& bench) : bench_(bench) {}

  void step(weights::Parameter& p, std::int64_t step, double lr) {
    using weights::Projected;
    auto& [m, v] = moments_[p.name];
    if (m.absent()) {
      const std::vector<double> zeros(static_cast<std::size_t>(p.size()));
      m = bench_.tensor(DType::f32, p.shape, zeros);
      v = bench_.tensor(DType::f32, p.shape, zeros);
    }
    const ops::AdamWSettings settings{.lr = lr, .step = step};
    if (p.projected) p.owner->project(bench_.exec, p, p.grad, Projected::gradient);
    ops::adamw_update(bench_.exec, p.grad, m, v, {}, settings);
    if (p.projected) p.owner->project(bench_.exec, p, p.grad, Projected::change);
    ops::add_update(bench_.exec, p.value, p.low, p.grad, settings);
    p.forget_grad();
  }

 private:
  TestBench& bench_;
  std::map<std::string, std::pair<View, View>> moments_;
};

}  // namespace inlay::testing
