#include "ops/attention/attention.h"

// Stands in for the CUDA kernels where CUDA is not built. No Exec of that device can exist then.
namespace inlay::ops::cuda {

void attention_forward(Exec&, const AttentionTensors&, const AttentionSpec&, View) {
  INLAY_ASSERT(false, "attention_forward: built without CUDA");
}

void attention_backward(Exec&, const AttentionGrads&, ConstView, const AttentionTensors&, const AttentionSpec&, View) {
  INLAY_ASSERT(false, "attention_backward: built without CUDA");
}

}  // namespace inlay::ops::cuda
