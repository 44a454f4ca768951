#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "adapter/tensors.h"
#include "io/checkpoint.h"
#include "io/safetensors_writer.h"

namespace inlay::adapter {

inline constexpr const char* tensors_file = "adapter_model.safetensors";

// What PEFT has no place for. It stands in the metadata of the tensors' file, of which PEFT takes no notice; a key of
// its own in adapter_config.json would have it warn of a file from the future. Empty: not known, as in files of PEFT's.
struct AdapterOrigin {
  std::string base;         // base_fingerprint of the model that it was trained on
  std::string base_format;  // how that model's matrices were held in training: bf16, nf4, ...
  std::string init;         // lora_init

  bool operator==(const AdapterOrigin&) const = default;
};

// Tells one base model from another without reading all of it.
std::string base_fingerprint(const io::Checkpoint& base);

// An adapter folder of PEFT's, opened and checked against a model: all that is missing, unexpected or of another shape
// or dtype is one UserError, with what would be right.
class AdapterFile {
 public:
  AdapterFile(const std::filesystem::path& folder, const model::ModelConfig& model);

  const std::filesystem::path& folder() const { return folder_; }
  const AdapterConfig& config() const { return config_; }
  const AdapterTargets& targets() const { return targets_; }
  const AdapterOrigin& origin() const { return origin_; }

  // A UserError where the adapter says that it was trained on another model.
  void check_base(const io::Checkpoint& base) const;

  // The tensors of one of targets().parts in fp32, also where experts share them: [rank, in], [out, rank], and [out].
  std::vector<float> a(const AdaptedPart& part) const;
  std::vector<float> b(const AdaptedPart& part) const;
  std::vector<float> magnitude(const AdaptedPart& part) const;
  // Of one of targets().saved, as the file has it; valid as long as this.
  ConstView saved(const SavedPart& part) const;

 private:
  void check_tensors() const;
  ConstView tensor(const std::string& module, const char* suffix) const;

  std::filesystem::path folder_;
  AdapterConfig config_;
  AdapterTargets targets_;
  io::SafetensorsFile file_;
  AdapterOrigin origin_;
};

// Where the values of an adapter come from when it is written, in fp32 and as AdapterFile gives them. Null: another
// process writes them.
struct AdapterSource {
  std::function<std::vector<float>(const AdaptedPart&)> a, b, magnitude;
  // Pieces of the part in the given dtype, each with its place in the tensor.
  using Sink = std::function<void(std::uint64_t offset, std::span<const std::byte>)>;
  std::function<void(const SavedPart&, DType, const Sink&)> saved;
};

// An adapter's tensors as a file has them, each with the prefix before its name, and their numbers.
std::vector<io::TensorSpec> tensor_specs(const AdapterTargets& targets, DType dtype, const std::string& prefix = "");
void write_tensors(io::SafetensorsWriter& writer, const AdapterTargets& targets, const AdapterSource& source,
                   DType dtype = DType::f32, const std::string& prefix = "");

// The file of an adapter's tensors, to be written with write_tensors(). With adapter_config.json beside it (to_json())
// PEFT reads it as its own.
io::SafetensorsWriter tensors_writer(const std::filesystem::path& folder, const AdapterTargets& targets,
                                     const AdapterOrigin& origin, DType dtype = DType::f32,
                                     io::Writers writers = io::Writers::one);

}  // namespace inlay::adapter
