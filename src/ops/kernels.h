#pragma once

#include "ops/adamw.h"
#include "ops/adamw_8bit.h"
#include "ops/attention/attention.h"
#include "ops/attention/decode.h"
#include "ops/attention/sinks.h"
#include "ops/columns.h"
#include "ops/divergence.h"
#include "ops/dropout.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/expert_glu.h"
#include "ops/factors.h"
#include "ops/fp8.h"
#include "ops/loss_rows.h"
#include "ops/moe_permute.h"
#include "ops/moe_route.h"
#include "ops/muon.h"
#include "ops/preference.h"
#include "ops/quantised.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/sample.h"
#include "ops/schedule_free.h"
#include "ops/softmax_gradient.h"
#include "ops/swiglu.h"
#include "ops/token_rule.h"

// What the CPU answers: the functions that the ops declare in their namespace cpu. They exist once per instruction set,
// and are called through the table of the one that was chosen (see cmake/InlayKernels.cmake).
namespace inlay::ops::cpu {

// Attention is all that the set of AMX has beyond that of AVX-512.
// clang-format off
#define INLAY_ATTENTION_KERNELS(X) \
  X(attention_forward_scratch_bytes) X(attention_backward_scratch_bytes) X(attention_forward) X(attention_backward)
#define INLAY_OTHER_KERNELS(X) \
  X(adamw_step) X(adamw_update) X(add_update) X(split_master) X(join_master) X(sum_of_squares) X(clip_scale) \
  X(adamw_update_8bit) \
  X(attention_sinks_forward) X(attention_sinks_backward) X(decode_attention) X(fill_cache) X(advance) \
  X(column_dot) X(scale_columns) X(square_roots) X(quotients) \
  X(divergence_gradient) X(spread_kept) \
  X(dropout) \
  X(add_bias) X(bias_backward) X(add) X(cast) X(scale) X(scale_rows) X(softcap) X(gather_rows) X(scatter_rows) \
  X(embedding_forward) X(embedding_backward) \
  X(expert_glu_forward) X(expert_glu_backward) \
  X(add_offset) X(row_dot) X(change_rows) \
  X(loss_scales) X(finish_loss) X(gather_piece) X(scatter_piece) X(column_sums) \
  X(moe_sort) X(moe_gather) X(moe_combine) X(moe_combine_backward) X(moe_bias_backward) \
  X(moe_route) X(moe_balance_add) X(moe_balance_loss) X(moe_route_backward) \
  X(muon_momentum) X(normalise) \
  X(preference) X(mean_loss) \
  X(quantise_fp8) \
  X(quantise_rows) X(finish_quantising) X(dequantise_rows) \
  X(rms_norm_forward) X(residual_rms_norm_forward) X(rms_norm_backward) \
  X(rope) \
  X(sample) \
  X(schedule_free_begin) X(schedule_free_step) \
  X(softmax_gradient) \
  X(swiglu_forward) X(swiglu_backward) \
  X(token_rule)
// clang-format on

struct Kernels {
#define INLAY_MEMBER(name) decltype(&cpu::name) name = nullptr;
  INLAY_ATTENTION_KERNELS(INLAY_MEMBER)
  INLAY_OTHER_KERNELS(INLAY_MEMBER)
#undef INLAY_MEMBER
};

// Those of backend::cpu::chosen_isa().
const Kernels& kernels();

}  // namespace inlay::ops::cpu
