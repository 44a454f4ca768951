#pragma once

#include "weights/dense.h"

namespace inlay::weights {

// An embedding of which only some rows train: those of tokens that calibration has not seen.
class MaskedRows final : public DenseWeight {
 public:
  MaskedRows(Exec& exec, Parameter& parameter);

  void start(Exec& exec, const StartTensors* tensors) override;  // from tokens.free
  void project(Exec& exec, const Parameter& parameter, View rows, Projected what) override;

 private:
  View mask_;  // fp32 [rows], 1 for rows that train and 0 for others
};

class MaskedRowsKind final : public WeightKind {
 public:
  std::unique_ptr<Weight> make(Exec& exec, Parameter& parameter, const WeightMemory& memory) const override;
  std::string describe() const override { return "rows of unseen tokens"; }
};

}  // namespace inlay::weights
