#include "ops/swiglu.h"

namespace inlay::ops {

namespace {

void check_pair(std::string_view op, std::string_view tensor, ConstView act, ConstView gate_up) {
  check_activation(op, "gate_up", gate_up);
  INLAY_ASSERT(gate_up.rank() == 2 && gate_up.dim(1) % 2 == 0, "{}: gate_up is {}, expected [T, 2·I]", op,
               gate_up.shape().str());
  check_shape(op, tensor, act, {gate_up.dim(0), gate_up.dim(1) / 2});
  check_dtype(op, tensor, act, gate_up.dtype());
}

}  // namespace

void swiglu_forward(Exec& exec, View act, ConstView gate_up) {
  check_pair("swiglu_forward", "act", act, gate_up);
  exec.count_bytes({gate_up, act});
  if (exec.planning() || gate_up.size() == 0) return;
  if (exec.on_cuda()) return cuda::swiglu_forward(exec, act, gate_up);
  cpu::swiglu_forward(exec, act, gate_up);
}

void swiglu_backward(Exec& exec, View dgate_up, View act, ConstView dact, ConstView gate_up) {
  constexpr std::string_view op = "swiglu_backward";
  check_pair(op, "dact", dact, gate_up);
  if (act) check_pair(op, "act", act, gate_up);
  check_shape(op, "dgate_up", dgate_up, gate_up.shape());
  check_dtype(op, "dgate_up", dgate_up, gate_up.dtype());
  exec.count_bytes({dact, gate_up, dgate_up, act});
  if (exec.planning() || gate_up.size() == 0) return;
  if (exec.on_cuda()) return cuda::swiglu_backward(exec, dgate_up, act, dact, gate_up);
  cpu::swiglu_backward(exec, dgate_up, act, dact, gate_up);
}

}  // namespace inlay::ops
