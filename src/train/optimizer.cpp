#include "train/optimizer.h"

namespace inlay::train {

Optimizer::Optimizer(Exec& exec, model::Decoder& decoder, const OptimizerOptions& options) : options_(options) {
  Arena& arena = exec.arena();
  decoder.for_each_trained([&](weights::Parameter& p) {
    const auto moment = [&](const char* suffix) {
      View view = arena.keep(MemoryClass::optimizer, p.name + suffix, options_.moments, p.shape);
      exec.fill_zero(view);
      return view;
    };
    View m = moment(".m"), v = moment(".v");
    slots_.push_back({&p, m, v});
    projects_ = projects_ || p.project;
  });
  sums_ = arena.keep(MemoryClass::optimizer, "gradient square sums", DType::f64,
                     {static_cast<std::int64_t>(slots_.size())});
  for (View* view : {&norm_, &scale_, &raw_norm_, &raw_scale_}) {
    *view = arena.keep(MemoryClass::optimizer, "gradient norm", DType::f32, {1});
  }
}

void Optimizer::norms(Exec& exec, View norm, View scale) {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    ops::sum_of_squares(exec, sums_, static_cast<std::int64_t>(i), slots_[i].parameter->grad);
  }
  ops::clip_scale(exec, norm, scale, sums_, static_cast<float>(options_.max_grad_norm));
}

void Optimizer::step(Exec& exec, std::int64_t step, double learning_rate) {
  exec.arena().begin_phase("optimizer");
  for (const Slot& slot : slots_) slot.parameter->ensure_grad(exec);  // a step without a single label
  if (projects_) {
    norms(exec, raw_norm_, raw_scale_);
    for (const Slot& slot : slots_) {
      if (slot.parameter->project) slot.parameter->project(exec, slot.parameter->grad, weights::Projected::gradient);
    }
  }
  norms(exec, norm_, scale_);
  for (const Slot& slot : slots_) {
    weights::Parameter& p = *slot.parameter;
    const bool decays = p.decays && (p.shape.rank() > 1 || options_.decay_vectors);
    const ops::AdamWSettings settings = {.lr = learning_rate,
                                         .beta1 = options_.beta1,
                                         .beta2 = options_.beta2,
                                         .eps = options_.eps,
                                         .weight_decay = decays ? options_.weight_decay : 0.0,
                                         .step = step};
    if (p.project) {
      ops::adamw_update(exec, p.grad, slot.m, slot.v, scale_, settings);
      p.project(exec, p.grad, weights::Projected::change);
      ops::add_update(exec, p.value, p.low, p.grad, settings);
    } else {
      ops::adamw_step(exec, {.value = p.value, .low = p.low, .m = slot.m, .v = slot.v}, p.grad, scale_, settings);
    }
    p.forget_grad();
  }
}

GradientNorms Optimizer::read_grad_norms(Exec& exec) {
  GradientNorms result;
  exec.download(&result.projected, norm_);
  exec.download(&result.raw, projects_ ? raw_norm_ : norm_);
  return result;
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
