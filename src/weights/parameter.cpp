#include "weights/parameter.h"

namespace inlay::weights {

void allocate_value(Exec& exec, Parameter& parameter, DType compute) {
  parameter.value = parameter.home(exec).arena().keep(MemoryClass::weights, parameter.name, compute, parameter.shape);
}

void allocate_training_state(Exec& exec, Parameter& parameter) {
  if (!parameter.trainable) return;
  Arena& arena = parameter.home(exec).arena();
  if (parameter.value.dtype() == DType::bf16) {
    parameter.low = arena.keep(MemoryClass::master, parameter.name + ".low", DType::i16, parameter.shape);
  }
  parameter.grad = arena.keep(MemoryClass::gradients, parameter.name + ".grad", DType::f32, parameter.shape);
}

}  // namespace inlay::weights
