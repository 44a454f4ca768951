#include "model/config.h"

#include <algorithm>

namespace inlay::model {

namespace {

std::int64_t attention_matrix_size(const ModelConfig& c) { return c.qkv_width() * c.hidden + c.hidden * c.q_width(); }

// Of a gated MLP.
std::int64_t mlp_matrix_size(const ModelConfig& c, std::int64_t intermediate) { return 3 * c.hidden * intermediate; }

std::int64_t mlp_size(const ModelConfig& c) {
  return mlp_matrix_size(c, c.intermediate) + (c.mlp_bias ? 2 * c.intermediate + c.hidden : 0);
}

std::int64_t experts_size(const ModelConfig& c) {
  const ExpertsConfig& e = c.experts;
  const std::int64_t expert = mlp_matrix_size(c, e.intermediate) + (e.bias ? 2 * e.intermediate + c.hidden : 0);
  return e.count * (expert + c.hidden + (e.router_bias ? 1 : 0));
}

}  // namespace

std::int64_t ModelConfig::expert_layers() const {
  return std::count_if(layers.begin(), layers.end(), [](const LayerConfig& layer) { return layer.experts; });
}

std::int64_t ModelConfig::parameter_count() const {
  std::int64_t attention =
      attention_matrix_size(*this) + (input_norms ? 2 * hidden : 0) + (output_norms ? 2 * hidden : 0);
  if (qkv_bias) attention += qkv_width();
  if (output_bias) attention += hidden;
  if (qk_norm == QkNorm::heads) attention += 2 * head_dim;
  if (qk_norm == QkNorm::whole) attention += q_width() + kv_width();
  if (sinks) attention += heads;
  const std::int64_t sparse = expert_layers(), dense = layer_count() - sparse;
  return attention * layer_count() + dense * mlp_size(*this) + (sparse > 0 ? sparse * experts_size(*this) : 0) +
         vocab * hidden * (tied_embeddings ? 1 : 2) + hidden;
}

}  // namespace inlay::model
