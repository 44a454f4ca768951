#include "train/model_folder.h"

#include <algorithm>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "core/finite.h"
#include "io/json.h"
#include "io/paths.h"
#include "model/attention_text.h"
#include "model/families/family.h"
#include "model/part_reader.h"

namespace inlay::train {

namespace fs = std::filesystem;

void copy_companions(const fs::path& base, const fs::path& folder, Companions which, io::FileSums& written) {
  for (const fs::path& file : io::entries_of(base)) {
    if (!io::is_file(file)) continue;
    const std::string name = file.filename().string(), extension = file.extension().string();
    // Where the base is itself the result of a run, what that run reported is not this one's.
    const bool ours = name == "trainer_state.json" || name == "optimizer.safetensors" || name == "checkpoint.json" ||
                      name == "summary.json" || name == "evaluation.json" || name == "samples.json" ||
                      name == "adapter_config.json";
    const bool weights = extension == ".safetensors" || extension == ".bin" || extension == ".pt" ||
                         extension == ".pth" || extension == ".gguf" || name.ends_with(".index.json");
    const bool text = extension == ".json" || extension == ".jinja" || extension == ".txt" || extension == ".model" ||
                      extension == ".md" || extension == ".tiktoken" || name == "LICENSE" || name == "NOTICE";
    // What an adapter's model is, its base model says.
    const bool model = name == "config.json" || name == "generation_config.json" || extension == ".md";
    if (ours || weights || !text || written.contains(name) || (which == Companions::of_adapter && model)) continue;
    written[name] = io::write_file_atomic(folder / name, io::MappedFile(file).bytes());
  }
}

std::optional<DType> saved_dtype(const io::Checkpoint& base, const weights::Part& part) {
  if (model::is_mxfp4(base, part.checkpoint_name)) return DType::bf16;
  const io::TensorInfo* info = base.find(part.checkpoint_name);
  return info != nullptr ? info->dtype : std::nullopt;
}

std::set<std::string> saved_otherwise(const model::ModelConfig& config, const io::Checkpoint* base, DType compute) {
  std::set<std::string> names;
  model::ModelParameters(config).for_each([&](const weights::Parameter& p) {
    const bool otherwise = std::ranges::any_of(p.parts, [&](const weights::Part& part) {
      return (base != nullptr ? saved_dtype(*base, part) : config.dtype) != compute;
    });
    if (otherwise) names.insert(p.name);
  });
  // A tied model's file may have its head as a tensor of its own: the embedding once more, in whatever dtype.
  const io::TensorInfo* head = base != nullptr && config.tied_embeddings ? base->find(config.names.head) : nullptr;
  if (head != nullptr && head->dtype != compute) {
    model::ModelParameters(config).for_each([&](const weights::Parameter& p) {
      if (p.role == weights::Role::embedding) names.insert(p.name);
    });
  }
  return names;
}

std::optional<io::Checkpoint> readable_weights(const fs::path& model) {
  try {
    return std::optional<io::Checkpoint>(std::in_place, model);
  } catch (const UserError&) {
    return std::nullopt;
  }
}

namespace {

// How a model is written: as the base model has it, tensor by tensor.
struct Layout {
  Layout(const ModelFolder& where, const model::ModelConfig& config, model::ModelParameters& parameters,
         const std::function<bool(const weights::Parameter&)>& changed, bool packs, const io::Checkpoint& source)
      : tensors(model::checkpoint_tensors(parameters)) {
    std::set<std::string> packed;  // the tensors that MXFP4 ones are made of
    for (const model::CheckpointTensor& tensor : tensors) {
      by_name[tensor.name] = &tensor;
      if (!model::is_mxfp4(source, tensor.name)) continue;
      packed.insert({tensor.name + "_blocks", tensor.name + "_scales"});
      const bool differs = std::ranges::any_of(tensor.parts, [&](const auto& part) { return changed(*part.first); });
      if (packs && differs) by_packed_name[tensor.name + "_blocks"] = by_packed_name[tensor.name + "_scales"] = &tensor;
      decodes = decodes || (!packs && (where.dtype || differs));
    }
    // A tied model may carry its head as a tensor of its own: it is the embedding once more.
    const model::NameMap& names = config.names;
    if (config.tied_embeddings) by_name[names.head] = by_name.at(names.embedding);

    for (const std::string& name : source.names()) {
      const io::TensorInfo& info = *source.find(name);
      if (!info.dtype) {
        user_error("{}: tensor {} is {}, which cannot be written back", source.path_of(name).string(), name,
                   info.format_dtype);
      }
      const bool converts = where.dtype && is_floating(*info.dtype) && by_name.contains(name);
      if (decodes && packed.contains(name)) continue;
      specs.push_back({name, converts ? *where.dtype : *info.dtype, info.shape});
    }
    for (const model::CheckpointTensor& tensor : tensors) {
      if (decodes && model::is_mxfp4(source, tensor.name)) {
        specs.push_back({tensor.name, where.dtype.value_or(DType::bf16), tensor.shape.extents()});
      }
    }
    io::widest_first(specs);
  }

  std::vector<model::CheckpointTensor> tensors;
  std::map<std::string, const model::CheckpointTensor*> by_name;
  std::map<std::string, const model::CheckpointTensor*> by_packed_name;  // those to be packed again
  std::vector<io::TensorSpec> specs;
  bool decodes = false;  // the base model's MXFP4
};

// The base model's configuration where the trained model is no longer what it says: not quantised, in another
// dtype, or attending otherwise.
void write_changed_config(const ModelFolder& where, const model::ModelConfig& trained, bool decoded,
                          io::FileSums& written) {
  if (!decoded && !where.dtype && !trained.attention.given()) return;
  nlohmann::json config = io::Json::read(where.base / "config.json").raw();
  if (decoded) config.erase("quantization_config");
  if (where.dtype) {
    const char* name = *where.dtype == DType::f32 ? "float32" : *where.dtype == DType::f16 ? "float16" : "bfloat16";
    config.erase("torch_dtype");  // its old name
    config["dtype"] = name;
    if (const auto text = config.find("text_config"); text != config.end()) {  // it would say the same once more
      text->erase("torch_dtype");
      text->erase("dtype");
    }
  }
  if (trained.attention.given()) {
    nlohmann::json& attention = config[model::attention_key] = nlohmann::json::object();
    if (!trained.attention.mask.empty()) attention["mask"] = trained.attention.mask;
    if (!trained.attention.score.empty()) attention["score"] = trained.attention.score;
    if (!trained.attention.head_bias.empty()) attention["head_bias"] = trained.attention.head_bias;
  }
  written["config.json"] = io::write_file_atomic(where.folder / "config.json", config.dump(2) + "\n");
}

// Which of a model's tensors, or rows of them, this rank writes.
class Share {
 public:
  explicit Share(const Communicator& ranks) : dealer_(ranks) {}

  bool has(const io::TensorSpec& spec) { return dealer_.mine(spec.bytes()); }
  bool has(const weights::Parameter& p, const weights::Part& part) {
    if (model::is_saved_by_rows(p)) return p.first_copy && model::saved_rows(p, part).count() > 0;
    return dealer_.mine(static_cast<std::uint64_t>(part.rows * (p.size() / p.rows())));
  }

 private:
  Dealer dealer_;
};

}  // namespace

std::uint64_t written_bytes(const ModelFolder& where, const model::ModelConfig& config,
                            model::ModelParameters& parameters,
                            const std::function<bool(const weights::Parameter&)>& changed) {
  const io::Checkpoint base(where.base);
  std::uint64_t bytes = 0;
  for (const io::TensorSpec& spec : Layout(where, config, parameters, changed, false, base).specs)
    bytes += spec.bytes();
  return bytes;
}

PartWriter::PartWriter(const weights::Parameter& parameter, const weights::Part& part, DType dtype,
                       std::uint64_t offset, Write write)
    : write_(std::move(write)) {
  const model::PartRows rows = model::saved_rows(parameter, part);
  const std::int64_t across = parameter.size() / parameter.rows();
  const auto bytes = [&](std::int64_t elements) { return static_cast<std::uint64_t>(elements) * size_of(dtype); };
  // Rows of the parameter are rows of the tensor, or columns of one of its matrices.
  const bool turned = part.stacked > 0 && rows.count() < part.rows;
  at_ = offset + bytes(turned ? rows.begin : rows.begin * across);
  run_ = turned ? bytes(rows.count()) : 0;
  stride_ = turned ? bytes(part.rows) : 0;
}

void PartWriter::operator()(std::span<const std::byte> piece) {
  if (run_ == 0) {
    write_(at_, piece);
    at_ += piece.size();
    return;
  }
  INLAY_ASSERT(piece.size() % run_ == 0, "{} bytes are no whole rows of {}", piece.size(), run_);
  for (; !piece.empty(); piece = piece.subspan(run_), at_ += stride_) write_(at_, piece.first(run_));
}

SavedFiles write_model(Communicator& ranks, const ModelFolder& where, const model::ModelConfig& config,
                       model::ModelParameters& parameters,
                       const std::function<bool(const weights::Parameter&)>& changed, const ReadPart& read,
                       const ReadPacked& pack) {
  std::optional<io::Checkpoint> base;
  std::optional<Layout> planned;
  parallel::together(ranks, "the base model's tensors", [&] {
    base.emplace(where.base);
    planned.emplace(where, config, parameters, changed, pack != nullptr, *base);
  });
  const io::Checkpoint& source = *base;
  const Layout& layout = *planned;
  io::ShardedWriter writer(where.folder, layout.specs, io::ShardedWriter::default_shard_bytes, writers_of(ranks));
  Share share(ranks);
  const auto write_packed = [&](const io::TensorSpec& spec, const model::CheckpointTensor& tensor) {
    std::uint64_t offset = 0;
    for (const auto& [parameter, part] : tensor.parts) {
      const PackedPart both = pack(*parameter, *part, source);
      const std::vector<std::byte>& piece = spec.name.ends_with("_blocks") ? both.blocks : both.scales;
      writer.write_part(spec.name, offset, piece);
      offset += piece.size();
    }
  };
  const auto write_parts = [&](const io::TensorSpec& spec, const model::CheckpointTensor& tensor) {
    std::uint64_t offset = 0;
    for (const auto& [parameter, part] : tensor.parts) {
      PartWriter place(*parameter, *part, spec.dtype, offset, [&](std::uint64_t at, std::span<const std::byte> bytes) {
        writer.write_part(spec.name, at, bytes);
      });
      offset += static_cast<std::uint64_t>(part->rows * (parameter->size() / parameter->rows())) * size_of(spec.dtype);
      if (!share.has(*parameter, *part)) continue;
      read(*parameter, *part, spec.dtype, source, [&](std::span<const std::byte> piece) {
        if (!all_finite(piece, spec.dtype)) {
          throw NotFinite(fmt::format("{} holds numbers that are not finite in {}", spec.name, name_of(spec.dtype)));
        }
        place(piece);
      });
    }
  };
  SavedFiles written = write_together(ranks, writer, [&] {
    for (const io::TensorSpec& spec : layout.specs) {
      const auto packed = layout.by_packed_name.find(spec.name);
      const auto found = layout.by_name.find(spec.name);
      if (packed == layout.by_packed_name.end() && found != layout.by_name.end()) {
        write_parts(spec, *found->second);
      } else if (!share.has(spec)) {
        continue;
      } else if (packed != layout.by_packed_name.end()) {
        write_packed(spec, *packed->second);
      } else {  // not a tensor that trains: as it was
        writer.write(spec.name, source.tensor(spec.name));
        source.drop(spec.name);
      }
    }
  });
  by_leader(ranks, "config.json", [&] { write_changed_config(where, config, layout.decodes, written.sums); });
  return written;
}

}  // namespace inlay::train
