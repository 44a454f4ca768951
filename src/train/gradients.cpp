#include "train/gradients.h"

namespace inlay::train {

std::vector<NamedTensor> gradients_of(Engine& engine, const std::string& prefix) {
  std::vector<NamedTensor> tensors;
  for (const model::CheckpointTensor& tensor : model::checkpoint_tensors(engine.decoder().parameters())) {
    std::vector<float> values;
    for (const auto& [parameter, part] : tensor.parts) {
      parameter->ensure_grad(engine.exec());
      const std::vector<float> mine = model::read_gradient(engine.exec(), *parameter, *part);
      values.insert(values.end(), mine.begin(), mine.end());
    }
    tensors.push_back({{prefix + tensor.name, DType::f32, tensor.shape.extents()}, std::move(values)});
  }
  return tensors;
}

}  // namespace inlay::train
