#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>

#include "model/parameters.h"
#include "osft/options.h"
#include "weights/factor_subspace.h"
#include "weights/input_subspace.h"
#include "weights/kind.h"

namespace inlay::osft {

// A share of a target's directions for each of its checkpoint tensors.
struct TargetRatios {
  std::vector<double> parts;
};

// Which of a model's matrices train in a subspace, by the options; errors name the target.
class OsftTargets {
 public:
  // frozen: parameters that do not train anyway.
  OsftTargets(const OsftOptions& options, const model::ModelConfig& config, std::set<std::string> frozen = {});

  bool on_activations() const { return options_.basis == BasisKind::activations; }
  const OsftOptions& options() const { return options_; }
  // The ratios of a parameter that is a target.
  std::optional<TargetRatios> ratios(const weights::Parameter& parameter) const;
  // Whether the options freeze it altogether.
  bool frozen(const weights::Parameter& parameter) const;

 private:
  bool targeted(const std::string& target) const;

  OsftOptions options_;
  bool tied_;
  std::set<std::string> frozen_;
};

// What OSFT decides: the ranks of every target, and what does not train at all. By the options
// alone, or as bases that were found say.
struct OsftLayout {
  using Ranks = std::variant<weights::InputLayout, weights::FactorLayout>;
  std::map<std::string, Ranks> targets;  // by the parameter's name
  std::vector<std::string> frozen;       // names of parameters
  weights::BasisPlace place = weights::BasisPlace::device;
  bool masks_embedding = false;  // rows of an embedding that is no target train only for unseen tokens

  const Ranks* find(const std::string& name) const {
    const auto found = targets.find(name);
    return found == targets.end() ? nullptr : &found->second;
  }
};

weights::WeightPlan weight_plan(const OsftLayout& layout);

// How many tokens a call and how many calls a step the gradients will see: what the cheapest route depends on.
struct StepShape {
  std::int64_t tokens = 0, micro_batches = 1, mlp_tile = 0;
};
// importance: for adaptive ranks, each layer's, with mean 1 (osft/calibration.h): a layer freezes the share
// floor + importance · (target − floor) of its directions. Empty: all layers the same.
OsftLayout nominal_layout(const OsftTargets& targets, const model::ModelConfig& config, const StepShape& step,
                          const std::vector<double>& importance = {});

}  // namespace inlay::osft
