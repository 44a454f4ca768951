#pragma once

#include <string>
#include <utility>
#include <vector>

#include "model/device_batch.h"
#include "ops/fused_linear_ce.h"
#include "weights/weight.h"

// What a model is trained towards. The decoder makes hidden states of a batch, and takes their gradient on; what lies
// between, head and loss, is the objective's. It never holds more logits than a chunk of them.
namespace inlay::model {

// What training makes of the cross entropy. Evaluation knows the plain one.
struct LossSettings {
  double label_smoothing = 0;  // in [0, 1)
  double z_loss = 0;
  std::int64_t chunk = 0;  // rows of logits held at once; 0: chosen by the op
  ops::TokenRuleSpec rule;
  double rule_temperature = 0;  // talr; 0: the mean loss of the micro-batch
};

// What a loss is divided by, over all micro-batches of a step and all processes.
struct BatchWeight {
  double units = 0;   // labels by their weights, or documents
  double labels = 0;  // of chosen answers, where preferences are learned
};

// The end of a forward pass.
struct HeadPass {
  View hidden;  // [T, H]; where gradients are wanted it becomes its own gradient
  weights::Weight& head;
  const DeviceBatch& batch;
  float softcap = 0;
  BatchWeight divisor;
  ops::OtherModel other = {};  // where the objective wants one
};

// Sums over what passes have seen since begin_step, on the host.
struct LossSums {
  double loss = 0;    // Σ cross entropy (already divided where a normalizer was given), and in training the z-loss
  double z_loss = 0;  // that part of it
  std::int64_t correct = 0;
  std::vector<double> parts;  // further sums of the objective's, which add up over processes
};

class Objective {
 public:
  virtual ~Objective() = default;
  // Adds to the sums; hidden becomes its gradient, and the head gets its own.
  virtual void train(Exec& exec, const HeadPass& pass) = 0;
  // Sums alone.
  virtual void evaluate(Exec& exec, const HeadPass& pass) = 0;
  // What a batch adds to the divisor of the whole step.
  virtual BatchWeight weight(const PackedBatch& batch) const { return {.units = batch.valid_weight()}; }
  // Whether the loss of a step is more than a sum over documents, so that it matters which stand together.
  virtual bool wants_whole_batches() const { return false; }
  // Whether evaluation gives a loss of its own kind, divided by documents, in place of the plain cross entropy.
  virtual bool counts_documents() const { return false; }
  // By name, from the parts that read() gave, summed over micro-batches and processes.
  using Metrics = std::vector<std::pair<std::string, double>>;
  virtual Metrics metrics(const std::vector<double>& /*parts*/) const { return {}; }
  virtual std::size_t part_count() const { return 0; }
  // The loss of an evaluation, from sums that nothing was divided out of; its parts become what metrics() wants.
  virtual double evaluation_loss(LossSums& sums, const BatchWeight& weight) const { return sums.loss / weight.units; }

  // Forgets the sums.
  virtual void begin_step(Exec& exec);
  // Waits for the device.
  virtual LossSums read(Exec& exec);
  View loss() const { return loss_; }  // fp32 [1]: whoever has a loss of its own adds it here

 protected:
  Objective(Exec& exec, const LossSettings& settings);
  // The cross entropy of an evaluation.
  void evaluate_plainly(Exec& exec, const HeadPass& pass);
  // The loss of every label, fp32 [T].
  void row_losses(Exec& exec, View losses, const HeadPass& pass);

  LossSettings settings_;
  View loss_, z_loss_, correct_;
};

// The next token; each weighted by a rule, where there is one.
class NextToken : public Objective {
 public:
  NextToken(Exec& exec, const LossSettings& settings) : Objective(exec, settings) {}
  void train(Exec& exec, const HeadPass& pass) override;
  void evaluate(Exec& exec, const HeadPass& pass) override { evaluate_plainly(exec, pass); }
  bool wants_whole_batches() const override;

 protected:
  // As training asks for it.
  ops::LossOptions loss_options(const HeadPass& pass) const;
  // Where the rule's temperature is the mean loss of the micro-batch, that comes first.
  void set_temperature(Exec& exec, ops::LossOptions& options, const HeadPass& pass);
};

}  // namespace inlay::model
