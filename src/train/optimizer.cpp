#include "train/optimizer.h"

namespace inlay::train {

namespace {

// The gradient, or AdamW's change in its place.
void project(Exec& exec, weights::Parameter& p, weights::Projected what) {
  if (p.my_grad().size() > 0) p.owner->project(exec, p, p.my_grad(), what);
}

// So small that launching a kernel for it costs more than running it: these go together.
bool is_small(const weights::Parameter& p) { return p.my_shape().size() <= std::int64_t{1} << 19; }

}  // namespace

Optimizer::Optimizer(Exec& exec, model::Decoder& decoder, const OptimizerOptions& options)
    : options_(options), mesh_(decoder.options().mesh) {
  decoder.for_each_trained([&](weights::Parameter& p) {
    Exec& home = p.home(exec);
    const auto moment = [&](const char* suffix) {
      View view = home.arena().keep(MemoryClass::optimizer, p.name + suffix, options_.moments, p.my_shape());
      home.fill_zero(view);
      return view;
    };
    View m = moment(".m"), v = moment(".v");
    (p.on_host ? host_slots_ : slots_).push_back({&p, m, v});
    projects_ = projects_ || p.projected;
    cut_ = cut_ || p.cut != nullptr;
  });
  if (!host_slots_.empty()) start_host(exec, decoder);
  // One more for what is summed on the host.
  const auto count = static_cast<std::int64_t>(slots_.size()) + (host_ != nullptr ? 1 : 0);
  Arena& arena = exec.arena();
  sums_ = arena.keep(MemoryClass::optimizer, "gradient square sums", DType::f64, {count});
  for (View* view : {&norm_, &scale_, &raw_norm_, &raw_scale_}) {
    *view = arena.keep(MemoryClass::optimizer, "gradient norm", DType::f32, {1});
  }
}

void Optimizer::start_host(Exec& exec, model::Decoder& decoder) {
  std::map<const weights::Parameter*, std::int64_t> layer_of;
  decoder.parameters().for_each_in_layers(
      [&](std::int64_t layer, const weights::Parameter& p) { layer_of[&p] = layer; });
  std::map<std::int64_t, std::vector<HostOptimizer::Slot>> layers;
  for (const Slot& slot : host_slots_) {
    const weights::Parameter& p = *slot.parameter;
    INLAY_ASSERT(!p.projected, "{} lives on the host and cannot be projected there", p.name);
    layers[layer_of.at(&p)].push_back({.state = {.value = p.my_value(), .low = p.low, .m = slot.m, .v = slot.v},
                                       .grad = p.my_grad(),
                                       .decays = decays(p)});
  }
  host_ = std::make_unique<HostOptimizer>(exec, std::move(layers), options_.max_grad_norm > 0);
  decoder.traffic()->before_upload = [this](std::int64_t layer) { host_->wait_for(layer); };
  decoder.traffic()->after_backward = [this](std::int64_t layer, const backend::Signal& arrived) {
    host_->gradients_arriving(layer, arrived);
  };
}

bool Optimizer::decays(const weights::Parameter& p) const {
  return p.decays && (p.is_matrix() || options_.decay_vectors);
}

ops::AdamWSettings Optimizer::settings(std::int64_t step, double learning_rate) const {
  return {.lr = learning_rate,
          .beta1 = options_.beta1,
          .beta2 = options_.beta2,
          .eps = options_.eps,
          .weight_decay = options_.weight_decay,
          .step = step};
}

void Optimizer::begin_step(int passes, std::int64_t step, double learning_rate) {
  if (host_ != nullptr) host_->begin_step(passes, settings(step, learning_rate));
}

void Optimizer::norms(Exec& exec, View norm, View scale) {
  std::vector<std::int64_t> small;
  std::vector<ConstView> gradients;
  if (cut_) exec.fill_zero(sums_);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const weights::Parameter& p = *slots_[i].parameter;
    if (p.my_grad().size() == 0 || (cut_ && p.cut == nullptr && !mesh_.shards->leads())) continue;
    if (is_small(p)) {
      small.push_back(static_cast<std::int64_t>(i));
      gradients.push_back(p.my_grad());
    } else {
      ops::sum_of_squares(exec, sums_, static_cast<std::int64_t>(i), p.my_grad());
    }
  }
  ops::sums_of_squares(exec, sums_, small, gradients);
  if (host_ != nullptr && !exec.planning()) {
    const double sum = host_->square_sum();
    const std::int64_t last = sums_.dim(0) - 1;
    exec.upload(sums_.slice_rows(last, last + 1), &sum);
  }
  if (cut_) {
    // What all processes have alike was counted by one of them.
    backend::Signal counted, summed;
    counted.record(exec, backend::Lane::compute);
    counted.wait(exec, backend::Lane::network);
    mesh_.shards->all_reduce(exec, {&sums_, 1}, "the gradients' norm");
    summed.record(exec, backend::Lane::network);
    summed.wait(exec, backend::Lane::compute);
  }
  ops::clip_scale(exec, norm, scale, sums_, static_cast<float>(options_.max_grad_norm));
}

void Optimizer::step(Exec& exec, std::int64_t step, double learning_rate) {
  exec.arena().begin_phase("optimizer");
  const backend::CostScope cost(exec, backend::StepPart::optimizer);
  for (const Slot& slot : slots_) slot.parameter->ensure_grad(exec);  // a step without a single label
  if (projects_) {
    norms(exec, raw_norm_, raw_scale_);
    for (const Slot& slot : slots_) {
      if (slot.parameter->projected) project(exec, *slot.parameter, weights::Projected::gradient);
    }
  }
  norms(exec, norm_, scale_);
  std::vector<ops::AdamWSlot> small[2];  // that decay not, and that do
  const auto settings_of = [&](bool decay) {
    ops::AdamWSettings result = settings(step, learning_rate);
    if (!decay) result.weight_decay = 0;
    return result;
  };
  for (const Slot& slot : slots_) {
    weights::Parameter& p = *slot.parameter;
    const ops::AdamWSettings mine = settings_of(decays(p));
    const ops::AdamWState state{.value = p.my_value(), .low = p.low, .m = slot.m, .v = slot.v};
    if (p.projected) {
      ops::adamw_update(exec, p.my_grad(), slot.m, slot.v, scale_, mine);
      project(exec, p, weights::Projected::change);
      ops::add_update(exec, p.my_value(), p.low, p.my_grad(), mine);
    } else if (is_small(p)) {
      small[decays(p) ? 1 : 0].push_back({state, p.my_grad()});
    } else {
      ops::adamw_step(exec, state, p.my_grad(), scale_, mine);
    }
    p.forget_grad();
  }
  for (const bool decay : {false, true}) ops::adamw_steps(exec, small[decay ? 1 : 0], scale_, settings_of(decay));
  if (host_ == nullptr) return;
  if (exec.planning()) return host_->plan(settings(step, learning_rate));
  float scale = 1;
  if (options_.max_grad_norm > 0) exec.download(&scale, scale_);
  host_->update(scale);
  for (const Slot& slot : host_slots_) slot.parameter->forget_grad();
}

void Optimizer::settle() {
  if (host_ != nullptr) host_->wait();
}

GradientNorms Optimizer::read_grad_norms(Exec& exec) {
  GradientNorms result;
  exec.download(&result.projected, norm_);
  exec.download(&result.raw, projects_ ? raw_norm_ : norm_);
  return result;
}

void Optimizer::for_each_state(Exec& exec, bool leads, const VisitState& visit) {
  settle();
  for (const std::vector<Slot>* slots : {&slots_, &host_slots_}) {
    for (const Slot& slot : *slots) {
      const weights::Parameter& p = *slot.parameter;
      const auto visit_share = [&](const char* suffix, View share, View everywhere = {}) {
        visit({p.name + suffix, share, everywhere, p.home(exec), p.shape, p.first_row(),
               p.cut != nullptr ? p.first_copy : leads});
      };
      visit_share(".value", p.my_value(), p.holds_value ? View() : p.value);
      if (!p.low.absent()) visit_share(".low", p.low);
      visit_share(".m", slot.m);
      visit_share(".v", slot.v);
    }
  }
}

}  // namespace inlay::train
