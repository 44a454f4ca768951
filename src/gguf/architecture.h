#pragma once

#include <string>
#include <vector>

#include "gguf/file.h"
#include "model/config.h"

namespace inlay::gguf {

// What llama.cpp calls a family, and how it lays out and computes what the checkpoints of that family have.
struct Architecture {
  std::string name;
  // It rotates neighbours where the checkpoint rotates halves: rows of queries and keys change places.
  bool permutes = false;
  // gate and up stay one tensor, under the name of up.
  bool fused_gate_up = false;
  // The norm before the MLP goes by the name of one behind attention.
  bool mlp_norm_behind = false;
  std::vector<std::string> notes;  // what comes out otherwise there, for the user
};

// A UserError where llama.cpp has no such model.
Architecture architecture_of(const model::ModelConfig& config);

// What a file says of the model itself.
void describe(Metadata& metadata, const Architecture& architecture, const model::ModelConfig& config);

// What each pair's frequency is divided by, where the rotation is scaled so: the name of the tensor, and its numbers.
struct RopeTensor {
  std::string name;
  std::vector<float> divisors;
};
std::vector<RopeTensor> rope_tensors(const model::RopeConfig& rope);

}  // namespace inlay::gguf
