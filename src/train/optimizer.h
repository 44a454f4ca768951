#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/decoder.h"
#include "ops/adamw.h"
#include "options/optimizer.h"
#include "train/host_optimizer.h"

namespace inlay::train {

using backend::Exec;

using options::MuonScale;
using options::OptimizerKind;

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::adamw;
  double muon_momentum = 0.95;
  MuonScale muon_scale = MuonScale::adamw;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decay_vectors = false;  // norms and biases are spared, as everybody's trainer does
  double max_grad_norm = 0;    // 0: no clipping
  DType moments = DType::f32;  // u8: those of large matrices in eight bits, embeddings aside; the others in fp32
  // At least so many numbers are stepped at once beside the passes, if need be of several layers: of fewer, launching
  // takes longer than stepping.
  std::int64_t least_beside = std::int64_t{1} << 24;
};

struct GradientNorms {
  float projected = 0;  // of what the step uses, before clipping
  float raw = 0;        // before the projections; the same where nothing is projected
};

// A tensor of the training state, and this rank's rows of it.
struct StateTensor {
  std::string name;
  View share;
  View everywhere;  // all rows, where every rank has them although each changes only its share; absent otherwise
  Exec& home;       // where it lives
  Shape whole;
  std::int64_t first_row = 0;  // of the share
  bool mine_to_write = true;
};

// AdamW over everything that trains, or Muon over the matrices among it. Clipping needs no host: the factor stays on
// the device. Where nothing is clipped, layers are stepped as soon as the last pass is done with them, beside what is
// left of it. Where a parameter allows some changes only, its gradient is projected before clipping and AdamW's change
// after it: AdamW scales every coordinate by itself, which turns the change out of the subspace.
class Optimizer {
 public:
  Optimizer(Exec& exec, model::Decoder& decoder, const OptimizerOptions& options);

  // Where gradients are computed elsewhere than where the model is: the weights go there. Before everything else of a
  // step, which counts from 1.
  void look_ahead(Exec& exec, std::int64_t step);
  // A step's learning rate, in order; step() does it itself. For steps that were done before a run was resumed.
  void account(double learning_rate);
  // Before the step's first backward pass, of so many. step counts from 1. Without it nothing is stepped before step();
  // after it some layers may have been stepped where a pass ended by an exception, so that the state is that of no
  // step.
  void begin_step(int passes, std::int64_t step, double learning_rate);
  // What changes parts of the device's state before step(), from begin_step() on: whoever still reads that state must
  // be waited for there as well. Null where nothing does.
  Exec* beside() { return beside_ ? &*beside_ : nullptr; }
  // After the last pass. Clears the gradients' "written" marks.
  void step(Exec& exec, std::int64_t step, double learning_rate);
  // The global norms of the last step. Waits for the device.
  GradientNorms read_grad_norms(Exec& exec);

  // Waits for what is still being updated on the host.
  void settle();
  // Every tensor of the training state for exact resumption: values, low halves, moments. leads: of the ranks that have
  // the same of one, this is the one that writes it.
  using VisitState = std::function<void(const StateTensor&)>;
  void for_each_state(Exec& exec, bool leads, const VisitState& visit);

 private:
  struct Slot {
    weights::Parameter* parameter;
    View m, v;              // Muon has no second moment; without a schedule m is where plain steps lead
    View m_scale, v_scale;  // of moments in eight bits
    bool stepped = false;   // in this step, before step()
    bool by_muon() const { return v.absent(); }
    bool in_8_bits() const { return !m_scale.absent(); }
  };
  using Slots = std::vector<Slot*>;

  void norms(Exec& exec, View norm, View scale);
  // The gradients' sums of squares, and the step itself.
  void sum(Exec& exec, const Slots& slots);
  void update(Exec& exec, const Slots& slots, ConstView grad_scale, const ops::AdamWSettings& settings);
  void start_host(Exec& exec, model::Decoder& decoder);
  bool may_go_beside(const Slot& slot) const;
  void start_beside(Exec& exec, model::Decoder& decoder);
  void step_beside(Exec& exec, const Slots& slots);
  ops::AdamWSettings settings(std::int64_t step, double learning_rate) const;
  bool decays(const weights::Parameter& parameter) const;
  bool by_muon(const weights::Parameter& parameter) const;
  bool schedule_free() const { return options_.kind == OptimizerKind::schedule_free; }
  bool keeps_8_bits(const weights::Parameter& parameter) const;

  Slot make_slot(Exec& exec, weights::Parameter& parameter) const;
  // Turns the gradient into the change, decay aside.
  void make_change(Exec& exec, const Slot& slot, const ops::AdamWSettings& settings) const;

  OptimizerOptions options_;
  std::vector<Slot> slots_, host_slots_;       // on the device, and on the host
  std::unique_ptr<HostOptimizer> host_;        // null where nothing is
  std::map<std::int64_t, Slots> after_group_;  // what is stepped when a pass has gone through a group of weights
  std::optional<Exec> beside_;
  backend::Signal complete_, stepped_;         // the gradients beside the passes are; all of them
  std::optional<ops::AdamWSettings> running_;  // of the step beside whose passes layers are stepped
  bool passed_ = false;                        // a step of this optimizer has begun
  parallel::Mesh mesh_;
  double highest_rate_ = 0, rate_squares_ = 0;  // of the steps so far: the share of each in the average
  bool projects_ = false;                       // some parameter does
  bool cut_ = false;                            // some parameter's rows are stepped elsewhere
  View sums_, norm_, scale_;
  View raw_norm_, raw_scale_;  // the same before projection; the factor is not used
};

}  // namespace inlay::train
