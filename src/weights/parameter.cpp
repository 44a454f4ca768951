#include "weights/parameter.h"

namespace inlay::weights {

namespace {

// The whole, or an absent one beside the rows that are held.
void allocate(Exec& exec, const Parameter& parameter, MemoryClass memory_class, const std::string& name, DType dtype,
              bool holds, View& whole, View& held) {
  Arena& arena = parameter.home(exec).arena();
  if (!holds) {
    whole = arena.keep(memory_class, name, dtype, parameter.shape);
    return;
  }
  whole = View(nullptr, dtype, parameter.shape);
  held = arena.keep(memory_class, name, dtype, parameter.my_shape());
}

}  // namespace

void allocate_value(Exec& exec, Parameter& p, DType compute) {
  allocate(exec, p, MemoryClass::weights, p.name, compute, p.holds_value, p.value, p.held_value);
}

void allocate_gradient(Exec& exec, Parameter& p, const std::string& suffix) {
  allocate(exec, p, MemoryClass::gradients, p.name + suffix, DType::f32, p.holds_grad, p.grad, p.held_grad);
}

void allocate_training_state(Exec& exec, Parameter& parameter) {
  if (!parameter.trainable) return;
  if (parameter.value.dtype() == DType::bf16) {
    parameter.low = parameter.home(exec).arena().keep(MemoryClass::master, parameter.name + ".low", DType::i16,
                                                      parameter.my_shape());
  }
  allocate_gradient(exec, parameter);
}

}  // namespace inlay::weights
