#include "weights/masked_rows.h"

#include "ops/elementwise.h"

namespace inlay::weights {

MaskedRows::MaskedRows(Exec& exec, Parameter& parameter) : DenseWeight(parameter) {
  mask_ = exec.arena().keep(MemoryClass::bases, parameter.name + ".row_mask", DType::f32, {parameter.rows()});
  parameter.projected = true;
  parameter.decays = false;
}

void MaskedRows::start(Exec& exec, const StartTensors* tensors) {
  INLAY_ASSERT(tensors != nullptr, "{} has no mask to start from", parameter().name);
  exec.upload(mask_, tensors->at("tokens.free", DType::f32, mask_.shape()));
}

void MaskedRows::project(Exec& exec, const Parameter& p, View rows, Projected) {
  ops::scale_rows(exec, rows, mask_.slice_rows(p.first_row(), p.end_row()));
}

std::unique_ptr<Weight> MaskedRowsKind::make(Exec& exec, Parameter& parameter, const WeightMemory& memory) const {
  allocate_value(exec, parameter, memory.compute);
  if (memory.training) allocate_training_state(exec, parameter);
  return std::make_unique<MaskedRows>(exec, parameter);
}

}  // namespace inlay::weights
