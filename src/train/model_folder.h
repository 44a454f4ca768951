#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "io/checkpoint.h"
#include "io/safetensors_writer.h"
#include "model/weights_io.h"

// A model as Hugging Face has it: the base model's tensor names and dtypes with other values, its configuration and its
// tokenizer files.
namespace inlay::train {

// A trained tensor holds infinities or NaN, or numbers that are too large for the dtype it is written in.
class NotFinite : public UserError {
 public:
  using UserError::UserError;
};

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
// Hands over a part's numbers in the dtype, in consecutive pieces.
using ReadPart = std::function<void(const weights::Parameter&, const weights::Part&, DType, const io::Checkpoint& base,
                                    const PieceSink&)>;

// Writes weights and configuration; `changed` says which parameters are not the base's any more. Experts in MXFP4 stay
// so where none of them changed, byte for byte; otherwise all become bf16, which holds every such number, or MXFP4
// again where `pack` is given. NotFinite leaves nothing behind.
io::FileSums write_model(const ModelFolder& where, const model::ModelConfig& config, model::ModelParameters& parameters,
                         const std::function<bool(const weights::Parameter&)>& changed, const ReadPart& read,
                         const ReadPacked& pack = {});

// Everything of the base model that is neither weights nor written already: configuration, tokenizer, templates,
// licences; of these an adapter has the tokenizer's and the template.
enum class Companions : std::uint8_t { of_model, of_adapter };
void copy_companions(const std::filesystem::path& base, const std::filesystem::path& folder, Companions which,
                     io::FileSums& written);

}  // namespace inlay::train
