#include "train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ops/adamw_8bit.h"
#include "ops/muon.h"
#include "ops/schedule_free.h"

namespace inlay::train {

namespace {

// The gradient, or AdamW's change in its place.
void project(Exec& exec, weights::Parameter& p, weights::Projected what) {
  if (p.my_grad().size() > 0) p.owner->project(exec, p, p.my_grad(), what);
}

// Muon needs all rows of a matrix, where it trains.
void check_whole(const weights::Parameter& p) {
  if (p.on_host) {
    user_error("optimizer: muon works on the device; layers that live on the host (memory.host_layers) need adamw");
  }
  if (p.cut == nullptr) return;
  for (const weights::Part& part : p.parts) {
    const std::int64_t begin = std::max(part.row, p.first_row()), end = std::min(part.row + part.rows, p.end_row());
    if (begin < end && end - begin != part.rows) {
      user_error("optimizer: muon needs whole matrices, but processes divide the rows of {}; set parallel: {{zero: 0}}",
                 part.label());
    }
  }
}

// So does what looks ahead.
void check_looks_ahead(const weights::Parameter& p) {
  if (p.on_host) {
    user_error(
        "optimizer: schedule_free_adamw works on the device; layers that live on the host (memory.host_layers) need "
        "adamw");
  }
  if (p.cut != nullptr) {
    user_error(
        "optimizer: schedule_free_adamw needs whole weights, but processes divide the rows of {}; set parallel: "
        "{{zero: 0}}",
        p.name);
  }
  INLAY_ASSERT(!p.projected, "{} is projected", p.name);
}

}  // namespace

Optimizer::Optimizer(Exec& exec, model::Decoder& decoder, const OptimizerOptions& options)
    : options_(options), mesh_(decoder.options().mesh) {
  decoder.for_each_trained([&](weights::Parameter& p) {
    (p.on_host ? host_slots_ : slots_).push_back(make_slot(exec, p));
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
  if (options_.max_grad_norm <= 0 && decoder.resident() != nullptr) start_beside(exec, decoder);
}

Optimizer::Slot Optimizer::make_slot(Exec& exec, weights::Parameter& p) const {
  Exec& home = p.home(exec);
  const auto keep = [&](const char* suffix, DType dtype, const Shape& shape) {
    View view = home.arena().keep(MemoryClass::optimizer, p.name + suffix, dtype, shape);
    home.fill_zero(view);
    return view;
  };
  const Shape shape = p.my_shape();
  Slot slot{.parameter = &p, .m = {}, .v = {}, .m_scale = {}, .v_scale = {}};
  if (keeps_8_bits(p)) {
    const Shape scales{shape[0], ops::moment_blocks(shape[1])};
    slot.m = keep(".m", DType::u8, shape);
    slot.v = keep(".v", DType::u8, shape);
    slot.m_scale = keep(".m.scale", DType::f32, scales);
    slot.v_scale = keep(".v.scale", DType::f32, scales);
    return slot;
  }
  const DType moments = options_.moments == DType::u8 ? DType::f32 : options_.moments;
  slot.m = keep(".m", moments, shape);
  if (schedule_free()) check_looks_ahead(p);
  if (by_muon(p)) {
    check_whole(p);
  } else {
    slot.v = keep(".v", moments, shape);
  }
  return slot;
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

// What nobody makes anything of between the passes and the step, and nobody but AdamW steps: tensors of the model
// itself. What weights train in their place they see again (Weight::finish_gradients), and projecting waits for the
// norm of all.
bool Optimizer::may_go_beside(const Slot& slot) const {
  const weights::Parameter& p = *slot.parameter;
  const bool of_model = p.owner == nullptr || &p.owner->parameter() == &p;
  return of_model && !p.projected && !slot.by_muon() && !schedule_free();
}

void Optimizer::start_beside(Exec& exec, model::Decoder& decoder) {
  // As the way back comes to them: the head first.
  std::map<std::int64_t, Slots, std::greater<>> groups;
  for (Slot& slot : slots_) {
    if (may_go_beside(slot)) groups[decoder.group_of(*slot.parameter)].push_back(&slot);
  }
  if (groups.empty()) return;
  Slots together;
  std::int64_t numbers = 0;
  for (const auto& [group, slots] : groups) {
    together.insert(together.end(), slots.begin(), slots.end());
    for (const Slot* slot : slots) numbers += slot->parameter->size();
    if (numbers < options_.least_beside && group != groups.rbegin()->first) continue;
    after_group_[group] = std::exchange(together, {});
    numbers = 0;
  }
  Exec planner = Exec::planner(exec.device());
  for (const auto& [group, slots] : after_group_) sum(planner, slots);
  beside_.emplace(exec.beside(planner.arena().peak()));
  decoder.resident()->after_last_use = [this](Exec& from, std::int64_t group) {
    const auto found = after_group_.find(group);
    if (running_ && found != after_group_.end()) step_beside(from, found->second);
  };
}

void Optimizer::step_beside(Exec& exec, const Slots& slots) {
  const backend::CostScope cost(exec, backend::StepPart::optimizer);
  for (Slot* slot : slots) {
    slot->parameter->ensure_grad(exec);
    slot->stepped = true;
  }
  complete_.record(exec, backend::Lane::compute);
  complete_.wait(*beside_, backend::Lane::compute);
  sum(*beside_, slots);
  update(*beside_, slots, {}, *running_);
}

// Small tensors gain nothing; rows of an embedding are rarely seen, and their moments span too many decades.
bool Optimizer::keeps_8_bits(const weights::Parameter& p) const {
  constexpr std::int64_t fewest = 4096;
  const bool eligible =
      p.is_matrix() && p.shape.rank() == 2 && p.role != weights::Role::embedding && p.size() >= fewest;
  if (options_.moments != DType::u8 || !eligible) return false;
  if (p.on_host) {
    user_error(
        "optimizer_state: 8bit is not supported for layers that live on the host (memory.host_layers); use bf16");
  }
  return true;
}

bool Optimizer::by_muon(const weights::Parameter& p) const {
  using enum weights::Role;
  const bool in_layer = p.role == qkv || p.role == attention_output || p.role == gate_up || p.role == down;
  // Factors of a weight have no tensor of the checkpoint as their part, and are no matrices of the model.
  return options_.kind == OptimizerKind::muon && in_layer && p.is_matrix() && !p.parts.empty();
}

// Query, key and value are matrices of their own, however they are stored: so are all parts.
void Optimizer::make_change(Exec& exec, const Slot& slot, const ops::AdamWSettings& settings) const {
  const weights::Parameter& p = *slot.parameter;
  const View grad = p.my_grad();
  if (slot.in_8_bits()) {
    return ops::adamw_update_8bit(exec, grad, {slot.m, slot.v, slot.m_scale, slot.v_scale}, scale_, settings);
  }
  if (!slot.by_muon()) return ops::adamw_update(exec, grad, slot.m, slot.v, scale_, settings);
  ops::muon_momentum(exec, grad, slot.m, scale_, static_cast<float>(options_.muon_momentum));
  for (const weights::Part& part : p.parts) {
    const std::int64_t begin = std::max(part.row, p.first_row()), end = std::min(part.row + part.rows, p.end_row());
    if (begin >= end) continue;
    const auto rows = static_cast<double>(part.rows), columns = static_cast<double>(p.shape[1]);
    const double scale = options_.muon_scale == MuonScale::shape ? std::sqrt(std::max(1.0, rows / columns))
                                                                 : 0.2 * std::sqrt(std::max(rows, columns));
    ops::orthogonalise(exec, grad.slice_rows(begin - p.first_row(), end - p.first_row()),
                       static_cast<float>(-settings.lr * scale));
  }
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

void Optimizer::look_ahead(Exec& exec, std::int64_t step) {
  if (!schedule_free()) return;
  const backend::CostScope cost(exec, backend::StepPart::optimizer);
  for (const Slot& slot : slots_) {
    const weights::Parameter& p = *slot.parameter;
    ops::schedule_free_begin(exec, {p.my_value(), p.low, slot.m, slot.v}, options_.beta1, step == 1);
  }
}

void Optimizer::account(double learning_rate) {
  highest_rate_ = std::max(highest_rate_, learning_rate);
  rate_squares_ += highest_rate_ * highest_rate_;
}

void Optimizer::begin_step(int passes, std::int64_t step, double learning_rate) {
  const ops::AdamWSettings now = settings(step, learning_rate);
  for (Slot& slot : slots_) slot.stepped = false;  // of a step that was never ended
  // A GPU's products are timed in the first step, and what is chosen is kept for later runs: nothing goes beside them.
  const bool alone = beside_ && !beside_->planning() && !std::exchange(passed_, true);
  running_ = alone ? std::nullopt : std::optional(now);
  if (host_ != nullptr) host_->begin_step(passes, now);
}

void Optimizer::sum(Exec& exec, const Slots& slots) {
  std::vector<std::int64_t> numbers;
  std::vector<ConstView> gradients;
  for (const Slot* slot : slots) {
    numbers.push_back(slot - slots_.data());
    gradients.push_back(slot->parameter->my_grad());
  }
  ops::sums_of_squares(exec, sums_, numbers, gradients);
}

void Optimizer::norms(Exec& exec, View norm, View scale) {
  Slots mine;
  if (cut_) exec.fill_zero(sums_);
  for (Slot& slot : slots_) {
    const weights::Parameter& p = *slot.parameter;
    const bool counted = slot.stepped || (cut_ && p.cut == nullptr && !mesh_.shards->leads());
    if (!counted && p.my_grad().size() > 0) mine.push_back(&slot);
  }
  sum(exec, mine);
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

void Optimizer::update(Exec& exec, const Slots& slots, ConstView grad_scale, const ops::AdamWSettings& settings) {
  std::vector<ops::AdamWSlot> together;
  for (const Slot* slot : slots) {
    weights::Parameter& p = *slot->parameter;
    ops::AdamWSettings mine = settings;
    if (!decays(p)) mine.weight_decay = 0;
    if (schedule_free()) {
      const double share = rate_squares_ > 0 ? highest_rate_ * highest_rate_ / rate_squares_ : 0;
      ops::schedule_free_step(exec, {p.my_value(), p.low, slot->m, slot->v}, p.my_grad(), grad_scale,
                              {.lr = mine.lr,
                               .beta1 = mine.beta1,
                               .beta2 = mine.beta2,
                               .eps = mine.eps,
                               .weight_decay = mine.weight_decay,
                               .share = share,
                               .step = mine.step});
    } else if (slot->in_8_bits() && !p.projected) {
      ops::adamw_step_8bit(exec, p.my_value(), p.low, p.my_grad(), {slot->m, slot->v, slot->m_scale, slot->v_scale},
                           grad_scale, mine);
    } else if (p.projected || slot->by_muon()) {
      make_change(exec, *slot, mine);
      if (p.projected) project(exec, p, weights::Projected::change);
      ops::add_update(exec, p.my_value(), p.low, p.my_grad(), mine);
    } else {
      together.push_back({{.value = p.my_value(), .low = p.low, .m = slot->m, .v = slot->v}, p.my_grad(), decays(p)});
    }
  }
  ops::adamw_steps(exec, together, grad_scale, settings);
}

void Optimizer::step(Exec& exec, std::int64_t step, double learning_rate) {
  exec.arena().begin_phase("optimizer");
  const backend::CostScope cost(exec, backend::StepPart::optimizer);
  if (beside_) {
    stepped_.record(*beside_, backend::Lane::compute);
    stepped_.wait(exec, backend::Lane::compute);
  }
  running_.reset();
  for (const Slot& slot : slots_) slot.parameter->ensure_grad(exec);  // a step without a single label
  if (projects_) {
    norms(exec, raw_norm_, raw_scale_);
    for (const Slot& slot : slots_) {
      if (slot.parameter->projected) project(exec, *slot.parameter, weights::Projected::gradient);
    }
  }
  norms(exec, norm_, scale_);
  account(learning_rate);
  Slots left;
  for (Slot& slot : slots_) {
    if (!std::exchange(slot.stepped, false)) left.push_back(&slot);
  }
  update(exec, left, scale_, settings(step, learning_rate));
  for (const Slot& slot : slots_) slot.parameter->forget_grad();
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
        visit({p.name + suffix, share, everywhere, p.home(exec), share.shape().with_rows(p.rows()), p.first_row(),
               p.cut != nullptr ? p.first_copy : leads});
      };
      visit_share(".value", p.my_value(), p.holds_value ? View() : p.value);
      if (!p.low.absent()) visit_share(".low", p.low);
      visit_share(".m", slot.m);
      if (!slot.by_muon()) visit_share(".v", slot.v);
      if (!slot.in_8_bits()) continue;
      visit_share(".m.scale", slot.m_scale);
      visit_share(".v.scale", slot.v_scale);
    }
  }
}

}  // namespace inlay::train
