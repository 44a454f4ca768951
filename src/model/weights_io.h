#pragma once

#include <functional>

#include "io/checkpoint.h"
#include "model/parameters.h"
#include "model/part_reader.h"

// Between a checkpoint's tensors and the model's parameters: parts are cut out of and put together to fused matrices,
// and dtypes converted, a bounded piece at a time.
namespace inlay::model {

// Called with bytes done and bytes in all.
using Progress = std::function<void(std::uint64_t, std::uint64_t)>;

// A tied model's file may carry the head as well. Where it is not the embedding once more, the file and its config.json
// contradict each other: UserError.
void check_tied_head(const ModelConfig& config, const io::Checkpoint& checkpoint);

// Every part must be there, in its shape; errors name the file and the tensor. When planning, only the scratch is taken
// and the checkpoint may be null.
void load_weights(Exec& exec, ModelParameters& parameters, const io::Checkpoint* checkpoint,
                  const Progress& progress = {});

// The same for one parameter alone.
void load_parameter(Exec& exec, weights::Parameter& parameter, const io::Checkpoint& checkpoint);

// One part of the base model in fp32, into memory of the device. When planning, the checkpoint may be null.
void load_part(Exec& exec, View to, const weights::Parameter& parameter, const weights::Part& part,
               const io::Checkpoint* checkpoint);

// A tensor of a checkpoint, and the parts that make it up, in order: one, or those of all experts.
struct CheckpointTensor {
  std::string name;
  Shape shape;
  std::vector<std::pair<weights::Parameter*, const weights::Part*>> parts;
};
std::vector<CheckpointTensor> checkpoint_tensors(ModelParameters& parameters);

// Rows [begin, end) of a part, counted from its first.
struct PartRows {
  std::int64_t begin = 0, end = 0;
  std::int64_t count() const { return end - begin; }
};
// Whether every process saves its own rows of what was learned for a parameter.
bool is_saved_by_rows(const weights::Parameter& parameter);
// Those that this process can save: all of them elsewhere.
PartRows saved_rows(const weights::Parameter& parameter, const weights::Part& part);

// One part as host bytes in the given dtype and as its tensor has it, exact where the dtype can hold the fp32 master;
// in the compute dtype the very numbers that were computed with: saved_rows() of it (where the tensor is stacked, they
// are columns of its matrix). What does not train itself comes from the base model's own tensor, so that nothing is
// lost to the compute dtype, with the fp32 change that was learned for it, if any. `sink` gets consecutive pieces. When
// planning, the base may be null.
void read_part(Exec& exec, const weights::Parameter& parameter, const weights::Part& part, DType dtype,
               const io::Checkpoint* base, const std::function<void(std::span<const std::byte>)>& sink);
// The same for the part's gradient, in fp32.
std::vector<float> read_gradient(Exec& exec, const weights::Parameter& parameter, const weights::Part& part);

}  // namespace inlay::model
