#include "train/optimizer.h"

namespace inlay::train {

Optimizer::Optimizer(Exec& exec, model::ModelParameters& parameters, const OptimizerOptions& options)
    : options_(options) {
  Arena& arena = exec.arena();
  parameters.for_each([&](weights::Parameter& p) {
    if (!p.trainable) return;
    const auto moment = [&](const char* suffix) {
      View view = arena.keep(MemoryClass::optimizer, p.name + suffix, options_.moments, p.shape);
      exec.fill_zero(view);
      return view;
    };
    View m = moment(".m"), v = moment(".v");
    slots_.push_back({&p, m, v});
  });
  sums_ = arena.keep(MemoryClass::optimizer, "gradient square sums", DType::f64,
                     {static_cast<std::int64_t>(slots_.size())});
  norm_ = arena.keep(MemoryClass::optimizer, "gradient norm", DType::f32, {1});
  scale_ = arena.keep(MemoryClass::optimizer, "clipping factor", DType::f32, {1});
}

void Optimizer::step(Exec& exec, std::int64_t step, double learning_rate) {
  exec.arena().begin_phase("optimizer");
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    weights::Parameter& p = *slots_[i].parameter;
    if (!p.grad_written()) exec.fill_zero(p.grad);  // a step without a single label
    ops::sum_of_squares(exec, sums_, static_cast<std::int64_t>(i), p.grad);
  }
  ops::clip_scale(exec, norm_, scale_, sums_, static_cast<float>(options_.max_grad_norm));
  for (const Slot& slot : slots_) {
    weights::Parameter& p = *slot.parameter;
    const bool decays = p.shape.rank() > 1 || options_.decay_vectors;
    ops::adamw_step(exec, {.value = p.value, .low = p.low, .m = slot.m, .v = slot.v}, p.grad, scale_,
                    {.lr = static_cast<float>(learning_rate),
                     .beta1 = static_cast<float>(options_.beta1),
                     .beta2 = static_cast<float>(options_.beta2),
                     .eps = static_cast<float>(options_.eps),
                     .weight_decay = decays ? static_cast<float>(options_.weight_decay) : 0.0f,
                     .step = step});
    p.forget_grad();
  }
}

float Optimizer::read_grad_norm(Exec& exec) {
  float norm = 0;
  exec.download(&norm, norm_);
  return norm;
}

void Optimizer::for_each_state(const std::function<void(const std::string& name, View tensor)>& visit) {
  for (const Slot& slot : slots_) {
    const weights::Parameter& p = *slot.parameter;
    visit(p.name + ".value", p.value);
    if (!p.low.absent()) visit(p.name + ".low", p.low);
    visit(p.name + ".m", slot.m);
    visit(p.name + ".v", slot.v);
  }
}

}  // namespace inlay::train
