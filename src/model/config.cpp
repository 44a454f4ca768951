#include "model/config.h"

namespace inlay::model {

namespace {

// Elements of the matrices of one layer.
std::int64_t layer_matrix_size(const ModelConfig& c) {
  return c.qkv_width() * c.hidden + c.hidden * c.q_width() + 3 * c.hidden * c.intermediate;
}

}  // namespace

std::int64_t ModelConfig::parameter_count() const {
  std::int64_t layer = layer_matrix_size(*this) + 2 * hidden;
  if (qkv_bias) layer += qkv_width();
  if (output_bias) layer += hidden;
  if (mlp_bias) layer += 2 * intermediate + hidden;
  if (qk_norm) layer += 2 * head_dim;
  return layer * layer_count() + vocab * hidden * (tied_embeddings ? 1 : 2) + hidden;
}

double ModelConfig::matmul_flops_per_token() const {
  return 6.0 * static_cast<double>(layer_matrix_size(*this) * layer_count() + vocab * hidden);
}

}  // namespace inlay::model
