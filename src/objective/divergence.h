#pragma once

#include "model/decoder.h"

namespace inlay::objective {

using backend::Exec;

// The next token, and another model's prediction of it: that of the base model, so as not to go far from it, or of a
// teacher (docs/objectives.md).
class DivergenceKind final : public model::ObjectiveKind {
 public:
  // metric: the name of the divergence in the metrics.
  DivergenceKind(const ops::DivergenceSpec& spec, std::string metric) : spec_(spec), metric_(std::move(metric)) {}
  std::unique_ptr<model::Objective> make(Exec& exec, const model::LossSettings& settings) const override;

 private:
  ops::DivergenceSpec spec_;
  std::string metric_;
};

}  // namespace inlay::objective
