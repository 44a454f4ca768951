#include "ops/sample.h"

#include <limits>

#include "ops/kernels.h"

namespace inlay::ops {

void sample(Exec& exec, View ids, ConstView logits, const SampleSpec& spec) {
  constexpr std::string_view op = "sample";
  INLAY_ASSERT(logits.rank() == 2, "sample: logits are {}, expected [B, V]", logits.shape().str());
  check_dtype(op, "logits", logits, DType::f32);
  check_shape(op, "ids", ids, {logits.dim(0)});
  check_dtype(op, "ids", ids, DType::i32);
  // Smaller ones than this have no finite inverse.
  INLAY_ASSERT(spec.temperature == 0.0f || spec.temperature >= std::numeric_limits<float>::min(),
               "sample: temperature {}, expected 0 or a positive number", spec.temperature);
  INLAY_ASSERT(spec.first_sequence >= 0 && spec.position >= 0, "sample: sequence {} at position {}",
               spec.first_sequence, spec.position);
  exec.count_bytes({logits});
  if (exec.planning() || logits.size() == 0) return;
  if (exec.on_cuda()) return cuda::sample(exec, ids, logits, spec);
  cpu::kernels().sample(exec, ids, logits, spec);
}

}  // namespace inlay::ops
