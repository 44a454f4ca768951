#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include "train/model_folder.h"

// Models that are made of another one's numbers: on the host, a part of a tensor at a time.
namespace inlay::train {

// Numbers in another dtype, on the CPU.
std::vector<float> as_floats(ConstView view);
std::vector<std::byte> in_dtype(const std::vector<float>& numbers, DType dtype, const Shape& shape);

// A part as a checkpoint holds it, in our layout.
std::vector<float> part_numbers(const io::Checkpoint& source, const weights::Parameter& parameter,
                                const weights::Part& part);
Shape part_shape(const weights::Parameter& parameter, const weights::Part& part);
// The way back: as the part's tensor lies, which may stack experts turned round.
std::vector<std::byte> as_tensor(const weights::Part& part, std::vector<std::byte> numbers, DType dtype,
                                 const Shape& shape);

// A model folder that appears under its name whole or not at all: write(folder) fills another one, and companions of
// `base` (configuration, tokenizer) are added to what it says to have written. The name must not be taken.
void write_derived_folder(std::filesystem::path output, const std::filesystem::path& base,
                          const std::function<SavedFiles(const std::filesystem::path& folder)>& write);

}  // namespace inlay::train
