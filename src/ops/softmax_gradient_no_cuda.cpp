#include "ops/loss_rows.h"
#include "ops/preference.h"

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
void spread_kept(Exec&, View, const OtherModel&, ConstView, std::int64_t) { unavailable(); }
void token_rule(Exec&, const RuledRows&, const TokenRuleSpec&) { unavailable(); }
void divergence_gradient(Exec&, const DivergenceChunk&) { unavailable(); }
void preference(Exec&, View, View, const PreferenceInputs&, const PreferenceSpec&, View) { unavailable(); }
void mean_loss(Exec&, View, ConstView, ConstView) { unavailable(); }

}  // namespace inlay::ops::cuda
