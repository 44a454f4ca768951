#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "io/safetensors_writer.h"
#include "model/weights_io.h"
#include "train/shared_save.h"

// A model as Hugging Face has it: the base model's tensor names and dtypes with other values, its configuration and its
// tokenizer files.
namespace inlay::train {

struct ModelFolder {
  std::filesystem::path base, folder;  // from, to
  std::optional<DType> dtype;          // of all matrices and vectors; absent: each as the base has it
};
// A part of an expert in MXFP4, as its tensors hold it.
struct PackedPart {
  std::vector<std::byte> blocks, scales;
};
using ReadPacked =
    std::function<PackedPart(const weights::Parameter&, const weights::Part&, const io::Checkpoint& base)>;
using PieceSink = std::function<void(std::span<const std::byte>)>;
// What a part of a model like this one is saved in, where it has changed; nothing where it is unknown.
std::optional<DType> saved_dtype(const io::Checkpoint& base, const weights::Part& part);
// Names of the parameters that a model like this one holds in another dtype than the numbers that were computed with.
// base: absent where its weights are not there; then its configuration's dtype is what they will have.
std::set<std::string> saved_otherwise(const model::ModelConfig& config, const io::Checkpoint* base, DType compute);

// A model's weights; nothing where there are none, or none that can be read: that is said where they are loaded.
std::optional<io::Checkpoint> readable_weights(const std::filesystem::path& model);

// Hands over a part's numbers in the dtype, in consecutive pieces: of what trains, those that this rank has (as
// model::read_part).
using ReadPart = std::function<void(const weights::Parameter&, const weights::Part&, DType, const io::Checkpoint& base,
                                    const PieceSink&)>;

// Writes weights and configuration, all ranks together: each its rows of what is cut, and of the rest what it is dealt;
// `changed` says which parameters are not the base's any more. Experts in MXFP4 stay so where none of them changed,
// byte for byte; otherwise all become bf16, which holds every such number, or MXFP4 again where `pack` is given.
// NotFinite leaves nothing behind, or in a run of many processes a folder to be removed.
SavedFiles write_model(Communicator& ranks, const ModelFolder& where, const model::ModelConfig& config,
                       model::ModelParameters& parameters,
                       const std::function<bool(const weights::Parameter&)>& changed, const ReadPart& read,
                       const ReadPacked& pack = {});

// Of all tensors that it writes without `pack`.
std::uint64_t written_bytes(const ModelFolder& where, const model::ModelConfig& config,
                            model::ModelParameters& parameters,
                            const std::function<bool(const weights::Parameter&)>& changed);

// Writes the rows of a part that a ReadPart hands over where they belong in the part's tensor, which begins `offset`
// bytes into it.
class PartWriter {
 public:
  using Write = std::function<void(std::uint64_t offset, std::span<const std::byte>)>;
  PartWriter(const weights::Parameter& parameter, const weights::Part& part, DType dtype, std::uint64_t offset,
             Write write);
  void operator()(std::span<const std::byte> piece);

 private:
  Write write_;
  std::uint64_t at_, run_, stride_;  // bytes: where the next piece goes; in one go; from one go to the next
};

// Everything of the base model that is neither weights nor written already: configuration, tokenizer, templates,
// licences; of these an adapter has the tokenizer's and the template.
enum class Companions : std::uint8_t { of_model, of_adapter };
void copy_companions(const std::filesystem::path& base, const std::filesystem::path& folder, Companions which,
                     io::FileSums& written);

}  // namespace inlay::train
