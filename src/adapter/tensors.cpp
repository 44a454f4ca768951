#include "adapter/tensors.h"

#include <algorithm>

namespace inlay::adapter {

std::vector<AdapterTensor> adapter_tensors(const AdapterTargets& targets) {
  const std::string prefix = "base_model.model.";
  std::vector<AdapterTensor> tensors;
  for (std::size_t i = 0; i < targets.parts.size(); ++i) {
    const AdaptedPart& part = targets.parts[i];
    if (part.stacked > 0 && part.expert > 0) continue;
    const std::int64_t rank = part.rank * std::max<std::int64_t>(part.stacked, 1);
    tensors.push_back({prefix + part.module + ".lora_A.weight", TensorKind::a, {rank, part.in}, i});
    tensors.push_back({prefix + part.module + ".lora_B.weight", TensorKind::b, {part.out, rank}, i});
    if (targets.dora) {
      tensors.push_back({prefix + part.module + ".lora_magnitude_vector", TensorKind::magnitude, {part.out}, i});
    }
  }
  for (std::size_t i = 0; i < targets.saved.size(); ++i) {
    const SavedPart& part = targets.saved[i];
    tensors.push_back({prefix + part.tensor, TensorKind::saved, part.shape.extents(), i});
    // PEFT wants to find the embedding of a tied model under the head's name as well.
    if (part.is_tied_head) {
      tensors.push_back({prefix + "lm_head.weight", TensorKind::saved, part.shape.extents(), i});
    }
  }
  std::ranges::sort(tensors, {}, &AdapterTensor::name);
  return tensors;
}

}  // namespace inlay::adapter
