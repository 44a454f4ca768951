#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "adapter/targets.h"

namespace inlay::adapter {

enum class TensorKind : std::uint8_t { a, b, magnitude, saved };

// A tensor of adapter_model.safetensors.
struct AdapterTensor {
  std::string name;
  TensorKind kind = TensorKind::a;
  std::vector<std::int64_t> shape;
  // Whose it is: the first of parts, or one of saved. Stacked experts share a tensor, and are the parts that follow.
  std::size_t index = 0;
};

// All of them, by name, as PEFT names, shapes and sorts them:
//   base_model.model.MODULE.lora_A.weight           [rank, in]; of stacked experts [experts · rank, in], where expert e
//                                                   has rows e·rank, e·rank + 1, ...
//   base_model.model.MODULE.lora_B.weight           [out, rank]; of stacked experts [out, rank · experts], where expert
//                                                   e has columns e, e + experts, ...
//   base_model.model.MODULE.lora_magnitude_vector   [out], of DoRA
//   base_model.model.TENSOR                         of a module to save
std::vector<AdapterTensor> adapter_tensors(const AdapterTargets& targets);

}  // namespace inlay::adapter
