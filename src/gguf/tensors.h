#pragma once

#include <functional>
#include <optional>

#include "gguf/architecture.h"
#include "io/checkpoint.h"

namespace inlay::gguf {

// A tensor of the file, and where its numbers come from. Rows are counted over all axes but the last.
struct TensorPlan {
  TensorEntry entry;
  // Rows [begin, end) as numbers.
  std::function<void(std::int64_t begin, std::int64_t end, float* to)> rows;
  // The same as bytes of the entry's type, where the checkpoint has them so; absent elsewhere.
  std::function<void(std::int64_t begin, std::int64_t end, std::span<std::byte> to)> bytes;
  std::vector<std::string> sources;  // of the checkpoint
};

// All tensors of a model, in order. Matrices are of the type that is asked for, with ggml's exceptions: vectors,
// routers and what is not in whole blocks; under mxfp4, in a mixture, all but the experts. Experts that the checkpoint
// has in MXFP4 stay as they are. The checkpoint must outlive the plan. Tensors that are missing are a UserError.
std::vector<TensorPlan> plan_tensors(const model::ModelConfig& config, const Architecture& architecture,
                                     const io::Checkpoint& checkpoint, NumberType type);

}  // namespace inlay::gguf
