#pragma once

#include "model/decoder.h"
#include "ops/preference.h"

namespace inlay::objective {

using backend::Exec;

// Which answers are preferred, over the log-probabilities of whole sequences (docs/objectives.md). The head is gone
// through twice: once for the losses of all labels, and again when it is known what each of them counts. Batches bring
// the roles of their sequences, and the reference's log-probabilities where the loss compares with them.
class PreferenceKind final : public model::ObjectiveKind {
 public:
  explicit PreferenceKind(const ops::PreferenceSpec& spec) : spec_(spec) {}
  std::unique_ptr<model::Objective> make(Exec& exec, const model::LossSettings& settings) const override;

 private:
  ops::PreferenceSpec spec_;
};

}  // namespace inlay::objective
