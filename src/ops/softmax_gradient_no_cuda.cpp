#include "ops/loss_rows.h"

// Stands in for the CUDA side of the loss where CUDA is not built. An Exec on cuda cannot exist there.
namespace inlay::ops::cuda {

namespace {
[[noreturn]] void unavailable() {
  user_error("device: cuda was asked for, but this inlay was built without CUDA (install nvcc and run ./dev build)");
}
}  // namespace

void softmax_gradient(Exec&, const SoftmaxChunk&) { unavailable(); }
void loss_scales(Exec&, const LossCall&, float) { unavailable(); }
void finish_loss(Exec&, const LossCall&) { unavailable(); }
void gather_piece(Exec&, View, ConstView, ConstView) { unavailable(); }
void scatter_piece(Exec&, View, ConstView, ConstView, std::int64_t, std::int64_t) { unavailable(); }
void column_sums(Exec&, View, Grad, ConstView, const float*) { unavailable(); }

}  // namespace inlay::ops::cuda
