#pragma once

#include "model/families/family.h"

namespace inlay::testing {

// A model that exists in plans alone: large enough that its layers matter beside the workspace of products.
inline model::ModelConfig imaginary_model(std::size_t layers) {
  model::ModelConfig config;
  config.hidden = 1024;
  config.intermediate = 4096;
  config.vocab = 8000;
  config.heads = 8;
  config.kv_heads = 2;
  config.head_dim = config.rope.rotary_dim = 128;
  config.layers.resize(layers);
  return config;
}

}  // namespace inlay::testing
