#pragma once

#include <string>
#include <vector>

#include "io/safetensors_writer.h"
#include "train/engine.h"

namespace inlay::train {

struct NamedTensor {
  io::TensorSpec spec;
  std::vector<float> values;
};

// What Engine::gradients() has left, by the names of the checkpoint behind a prefix. Waits for the device.
std::vector<NamedTensor> gradients_of(Engine& engine, const std::string& prefix = "");

}  // namespace inlay::train
