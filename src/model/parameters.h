#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "model/attention_block.h"
#include "model/mlp_block.h"
#include "model/moe_block.h"

namespace inlay::model {

struct LayerParameters {
  AttentionParameters attention;
  MlpParameters mlp;  // empty where the layer has experts
  MoeParameters moe;  // empty where it has not
};

// All tensors of a model, named and shaped after its configuration, without memory yet.
struct ModelParameters {
  explicit ModelParameters(const ModelConfig& config);

  weights::Parameter embedding, final_norm, head;  // head is empty where it is tied to the embedding
  std::vector<std::unique_ptr<LayerParameters>> layers;

  // Every parameter that exists, in a fixed order: embedding, layers, final norm, head. Loading, allocating, updating
  // and saving all walk this way.
  void for_each(const std::function<void(weights::Parameter&)>& visit);
  // Those of the layers, with the layer's number.
  void for_each_in_layers(const std::function<void(std::int64_t layer, weights::Parameter&)>& visit);
};

}  // namespace inlay::model
