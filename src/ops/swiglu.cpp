#include "ops/swiglu.h"

#include "ops/kernels.h"

namespace inlay::ops {

namespace {

void check_pair(std::string_view op, std::string_view tensor, ConstView act, ConstView gate_up) {
  check_activation(op, "gate_up", gate_up);
  INLAY_ASSERT(gate_up.rank() == 2 && gate_up.dim(1) % 2 == 0, "{}: gate_up is {}, expected [T, 2·I]", op,
               gate_up.shape().str());
  check_shape(op, tensor, act, {gate_up.dim(0), gate_up.dim(1) / 2});
  check_dtype(op, tensor, act, gate_up.dtype());
}

// Asked of a plan as well, so that nobody waits for weights first.
void check_gate(const Exec& exec, Gate gate) {
  if (gate != Gate::gelu || !exec.on_cuda()) return;
  user_error(
      "config.json: the activation 'gelu' is not supported on a GPU; set it to gelu_pytorch_tanh, which Gemma was "
      "trained "
      "with, or use the CPU");
}

const Fp8Matrix& any_of(const Fp8Forms& forms) { return forms.rows.absent() ? forms.columns : forms.rows; }

// Whether kernels write codes and nothing else: silu in bf16, where every block of 128 columns lies in one half of
// gate_up. Blocks know their own scales; for one scale of all, the same is computed twice, which takes less than
// storing it.
bool without_storing(const Exec& exec, const Fp8Forms& forms, ConstView gate_up, Gate gate) {
  return exec.on_cuda() && gate == Gate::silu && gate_up.dtype() == DType::bf16 &&
         any_of(forms).scaling != Fp8Scaling::row && gate_up.dim(1) / 2 % backend::fp8_block == 0;
}

// What the kernels read, and once more where largest magnitudes come first.
void count_reads(Exec& exec, const Fp8Forms& forms, std::initializer_list<ConstView> inputs) {
  exec.count_bytes(inputs);
  if (any_of(forms).scaling == Fp8Scaling::tensor) exec.count_bytes(inputs);
}

void count_forms(Exec& exec, const Fp8Forms& forms) { exec.count_bytes({forms.rows.codes, forms.columns.codes}); }

}  // namespace

void swiglu_forward(Exec& exec, View act, ConstView gate_up, Gate gate) {
  check_pair("swiglu_forward", "act", act, gate_up);
  check_gate(exec, gate);
  exec.count_bytes({gate_up, act});
  if (exec.planning() || gate_up.size() == 0) return;
  if (exec.on_cuda()) return cuda::swiglu_forward(exec, act, gate_up, gate);
  cpu::kernels().swiglu_forward(exec, act, gate_up, gate);
}

void swiglu_backward(Exec& exec, View dgate_up, View act, ConstView dact, ConstView gate_up, Gate gate) {
  constexpr std::string_view op = "swiglu_backward";
  check_pair(op, "dact", dact, gate_up);
  check_gate(exec, gate);
  if (act) check_pair(op, "act", act, gate_up);
  check_shape(op, "dgate_up", dgate_up, gate_up.shape());
  check_dtype(op, "dgate_up", dgate_up, gate_up.dtype());
  exec.count_bytes({dact, gate_up, dgate_up, act});
  if (exec.planning() || gate_up.size() == 0) return;
  if (exec.on_cuda()) return cuda::swiglu_backward(exec, dgate_up, act, dact, gate_up, gate);
  cpu::kernels().swiglu_backward(exec, dgate_up, act, dact, gate_up, gate);
}

void swiglu_forward_fp8(Exec& exec, const Fp8Forms& act, ConstView gate_up, Gate gate) {
  if (!without_storing(exec, act, gate_up, gate)) {
    const ScratchScope scope(exec.arena());
    View plain = exec.arena().scratch("mlp activation", gate_up.dtype(), {gate_up.dim(0), gate_up.dim(1) / 2});
    swiglu_forward(exec, plain, gate_up, gate);
    return quantise_fp8(exec, act, plain);
  }
  check_activation("swiglu_forward_fp8", "gate_up", gate_up);
  count_reads(exec, act, {gate_up});
  count_forms(exec, act);
  if (!exec.planning() && gate_up.size() != 0) cuda::swiglu_forward_fp8(exec, act, gate_up);
}

void swiglu_backward_fp8(Exec& exec, const Fp8Forms& dgate_up, const Fp8Forms& act, ConstView dact, ConstView gate_up,
                         Gate gate) {
  constexpr std::string_view op = "swiglu_backward_fp8";
  if (!without_storing(exec, dgate_up, gate_up, gate)) {
    const ScratchScope scope(exec.arena());
    View gradient = exec.arena().scratch("gate and up gradient", gate_up.dtype(), gate_up.shape());
    View plain = exec.arena().scratch("mlp activation", gate_up.dtype(), dact.shape());
    swiglu_backward(exec, gradient, plain, dact, gate_up, gate);
    quantise_fp8(exec, dgate_up, gradient);
    return quantise_fp8(exec, act, plain);
  }
  check_pair(op, "dact", dact, gate_up);
  count_reads(exec, dgate_up, {dact, gate_up});
  count_forms(exec, dgate_up);
  count_forms(exec, act);
  if (!exec.planning() && gate_up.size() != 0) cuda::swiglu_backward_fp8(exec, dgate_up, act, dact, gate_up);
}

}  // namespace inlay::ops
