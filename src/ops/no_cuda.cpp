#include "ops/adamw.h"
#include "ops/adamw_8bit.h"
#include "ops/attention/decode.h"
#include "ops/attention/sinks.h"
#include "ops/columns.h"
#include "ops/dropout.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/expert_glu.h"
#include "ops/factors.h"
#include "ops/fp8.h"
#include "ops/moe_permute.h"
#include "ops/moe_route.h"
#include "ops/muon.h"
#include "ops/quantised.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/sample.h"
#include "ops/schedule_free.h"
#include "ops/swiglu.h"

// Stands in for the CUDA kernels where CUDA is not built. An Exec that runs on the GPU cannot be made then, so nobody
// gets here.
namespace inlay::ops::cuda {

namespace {
[[noreturn]] void unreachable() { INLAY_ASSERT(false, "a CUDA kernel in a build without CUDA"); }
}  // namespace

void schedule_free_begin(Exec&, const ScheduleFreeState&, float, bool) { unreachable(); }
void schedule_free_step(Exec&, const ScheduleFreeState&, ConstView, ConstView, const ScheduleFreeFactors&) {
  unreachable();
}
void adamw_update_8bit(Exec&, View, const Moments8&, ConstView, const AdamWFactors&) { unreachable(); }
void adamw_step_8bit(Exec&, View, View, View, const Moments8&, ConstView, const AdamWFactors&) { unreachable(); }
void muon_momentum(Exec&, View, View, ConstView, float) { unreachable(); }
void normalise(Exec&, View, ConstView, ConstView) { unreachable(); }

void rms_norm_forward(Exec&, View, ConstView, ConstView, NormSpec) { unreachable(); }
void residual_rms_norm_forward(Exec&, View, View, ConstView, ConstView, ConstView, NormSpec) { unreachable(); }
void rms_norm_backward(Exec&, RmsNormGrads, ConstView, ConstView, ConstView, NormSpec, View) { unreachable(); }

void rope(Exec&, View, ConstView, ConstView, Rotation, RopePairs) { unreachable(); }

void swiglu_forward(Exec&, View, ConstView, Gate) { unreachable(); }
void swiglu_backward(Exec&, View, View, ConstView, ConstView, Gate) { unreachable(); }
void swiglu_forward_fp8(Exec&, const Fp8Forms&, ConstView) { unreachable(); }
void swiglu_backward_fp8(Exec&, const Fp8Forms&, const Fp8Forms&, ConstView, ConstView) { unreachable(); }
void quantise_fp8(Exec&, const Fp8Forms&, ConstView) { unreachable(); }

void attention_sinks_forward(Exec&, View, View, ConstView) { unreachable(); }
void attention_sinks_backward(Exec&, View, Grad, ConstView, ConstView, ConstView, ConstView, View) { unreachable(); }

void moe_route(Exec&, View, View, ConstView, RouteWeights) { unreachable(); }
void moe_balance_add(Exec&, const Balance&, ConstView, ConstView, View) { unreachable(); }
void moe_balance_loss(Exec&, View, const Balance&, float) { unreachable(); }
void moe_route_backward(Exec&, View, const RouteGrads&, ConstView, ConstView, RouteWeights) { unreachable(); }

void moe_sort(Exec&, const ExpertOrder&, ConstView, View) { unreachable(); }
void moe_gather(Exec&, View, ConstView, const ExpertOrder&) { unreachable(); }
void moe_gather_fp8(Exec&, const Fp8Forms&, ConstView, const ExpertOrder&) { unreachable(); }
void moe_combine(Exec&, View, const Combine&, const ExpertOrder&) { unreachable(); }
void moe_combine_backward(Exec&, View, View, ConstView, const Combine&, const ExpertOrder&) { unreachable(); }
void moe_bias_backward(Exec&, View, Grad, ConstView, ConstView, const ExpertOrder&, RowsOf, View) { unreachable(); }

void expert_glu_forward_fp8(Exec&, const Fp8Forms&, ConstView, const ExpertRows&) { unreachable(); }
void expert_glu_backward_fp8(Exec&, const ExpertGluForms&, View, ConstView, ConstView, ConstView, const ExpertRows&,
                             const ExpertGluScratch&) {
  unreachable();
}
void expert_glu_forward(Exec&, View, ConstView, const ExpertRows&) { unreachable(); }
void expert_glu_backward(Exec&, const ExpertGluGrads&, ConstView, ConstView, ConstView, const ExpertRows&) {
  unreachable();
}

void embedding_forward(Exec&, View, ConstView, ConstView) { unreachable(); }
void embedding_backward(Exec&, View, ConstView, const TokenGroups&) { unreachable(); }

void decode_attention(Exec&, View, ConstView, ConstView, ConstView, const DecodeSpec&, View) { unreachable(); }
void fill_cache(Exec&, View, View, const CacheRows&, const CachePlaces&) { unreachable(); }
void advance(Exec&, View) { unreachable(); }
void sample(Exec&, View, ConstView, const SampleSpec&) { unreachable(); }
void keep_nucleus(Exec&, View, float, float) { unreachable(); }

void add_bias(Exec&, View, ConstView) { unreachable(); }
void bias_backward(Exec&, View, Grad, ConstView, View) { unreachable(); }
void add(Exec&, View, ConstView) { unreachable(); }
void scale(Exec&, View, ConstView, float) { unreachable(); }
void softcap(Exec&, View, float) { unreachable(); }
void cast(Exec&, View, ConstView) { unreachable(); }
void scale_rows(Exec&, View, ConstView) { unreachable(); }
void gather_rows(Exec&, View, ConstView, ConstView) { unreachable(); }
void scatter_rows(Exec&, View, ConstView, ConstView) { unreachable(); }

void adamw_update(Exec&, View, View, View, ConstView, const AdamWFactors&) { unreachable(); }
void add_update(Exec&, View, View, ConstView, float) { unreachable(); }
void split_master(Exec&, View, View, ConstView) { unreachable(); }
void join_master(Exec&, View, ConstView, ConstView) { unreachable(); }
bool steps_alike(const AdamWSlot&, const AdamWSlot&) { unreachable(); }
void adamw_steps(Exec&, std::span<const AdamWSlot* const>, ConstView, const AdamWFactors&) { unreachable(); }
bool sums_alike(const SquaredTensor&, const SquaredTensor&) { unreachable(); }
void sums_of_squares(Exec&, View, std::span<const SquaredTensor* const>, View) { unreachable(); }
void clip_scale(Exec&, View, View, ConstView, float) { unreachable(); }

void add_offset(Exec&, View, ConstView, const Master&) { unreachable(); }
void row_dot(Exec&, View, ConstView, ConstView) { unreachable(); }
void change_rows(Exec&, View, View, const FactorRows&) { unreachable(); }

void dropout(Exec&, View, Grad, ConstView, const Dropout&) { unreachable(); }

void column_dot(Exec&, View, Grad, ConstView, ConstView, View) { unreachable(); }
void scale_columns(Exec&, View, ConstView, ConstView) { unreachable(); }
void square_roots(Exec&, View) { unreachable(); }
void quotients(Exec&, View, ConstView, ConstView) { unreachable(); }

void quantise_rows(Exec&, const Quantised&, std::int64_t, ConstView, View) { unreachable(); }
void finish_quantising(Exec&, const Quantised&, View, std::optional<float>) { unreachable(); }
void dequantise_rows(Exec&, View, std::span<const Quantised>, std::int64_t) { unreachable(); }

}  // namespace inlay::ops::cuda
