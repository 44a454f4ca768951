#include "adapter/adapter_file.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "core/problems.h"
#include "core/text.h"

namespace inlay::adapter {

namespace {

namespace fs = std::filesystem;

constexpr const char* base_key = "inlay_base";
constexpr const char* format_key = "inlay_base_format";
constexpr const char* init_key = "inlay_init";

std::string shape_text(const std::vector<std::int64_t>& shape) { return io::TensorInfo{.shape = shape}.shape_text(); }

io::SafetensorsFile open_tensors(const fs::path& folder) {
  std::error_code error;
  const fs::path file = folder / tensors_file, pickled = folder / "adapter_model.bin";
  if (!fs::exists(file, error) && fs::exists(pickled, error)) {
    user_error(
        "{}: pickled tensors are not read, since they can run code; convert them, if you trust the file: "
        "python -c \"import torch, safetensors.torch as s; s.save_file({{k: v.contiguous() for k, v in "
        "torch.load('{}', weights_only=True).items()}}, '{}', {{'format': 'pt'}})\"",
        pickled.string(), pickled.string(), file.string());
  }
  if (!fs::exists(file, error)) user_error("{}: there is no {} in it", folder.string(), tensors_file);
  return io::SafetensorsFile(file);
}

AdapterOrigin origin_of(const io::SafetensorsFile& file) {
  const auto value = [&](const char* key) {
    const auto found = file.metadata().find(key);
    return found == file.metadata().end() ? std::string() : found->second;
  };
  return {.base = value(base_key), .base_format = value(format_key), .init = value(init_key)};
}

// Names of the base model's own embeddings, which PEFT saves beside their adapters although nobody trained them.
bool is_base_copy(const std::string& name) { return name.ends_with(".base_layer.weight"); }

float value_at(ConstView view, std::int64_t i) {
  switch (view.dtype()) {
    case DType::bf16: return static_cast<float>(view.as<bf16>()[i]);
    case DType::f16: return static_cast<float>(view.as<f16>()[i]);
    default: return view.as<float>()[i];
  }
}

}  // namespace

std::string base_fingerprint(const io::Checkpoint& base) { return fmt::format("{:016x}", base.sampled_hash()); }

AdapterFile::AdapterFile(const fs::path& folder, const model::ModelConfig& model)
    : folder_(folder),
      config_(read_adapter_config(folder)),
      targets_(find_targets(config_, model, {.file = (folder / config_file).string()})),
      file_(open_tensors(folder)),
      origin_(origin_of(file_)) {
  check_tensors();
}

void AdapterFile::check_tensors() const {
  const std::string where = file_.path().string();
  Problems problems;
  std::set<std::string> expected;
  std::vector<std::string> missing, unexpected;
  for (const AdapterTensor& tensor : adapter_tensors(targets_)) {
    expected.insert(tensor.name);
    const io::TensorInfo* info = file_.find(tensor.name);
    const bool again = tensor.kind == TensorKind::saved && !tensor.name.ends_with(targets_.saved[tensor.index].tensor);
    if (info == nullptr) {
      if (!again) missing.push_back(tensor.name + " " + shape_text(tensor.shape));
      continue;
    }
    if (info->shape != tensor.shape) {
      const AdaptedPart* part = tensor.kind == TensorKind::saved ? nullptr : &targets_.parts[tensor.index];
      const std::int64_t other = part == nullptr ? 0 : tensor.kind == TensorKind::a ? part->out : part->in;
      const bool turned = part != nullptr && part->stacked > 0 && info->shape.size() == 2 &&
                          info->shape[tensor.kind == TensorKind::a ? 1 : 0] == other;
      problems.add("{}: {} is {}, expected {}{}", where, tensor.name, info->shape_text(), shape_text(tensor.shape),
                   turned ? " (in and out are exchanged, as in old versions of PEFT for stacked experts)" : "");
    }
    if (info->dtype != DType::f32 && info->dtype != DType::bf16 && info->dtype != DType::f16) {
      problems.add("{}: {} is {}, expected F32, BF16 or F16", where, tensor.name, info->format_dtype);
    }
    if (again && info->shape == tensor.shape) {
      const io::TensorInfo* embedding = file_.find("base_model.model." + targets_.saved[tensor.index].tensor);
      if (embedding != nullptr && !std::ranges::equal(file_.bytes(*info), file_.bytes(*embedding))) {
        problems.add("{}: {} differs from {}, but they are the same tensor in this model", where, tensor.name,
                     embedding->name);
      }
    }
  }
  for (const io::TensorInfo& info : file_.tensors()) {
    if (!expected.contains(info.name) && !is_base_copy(info.name)) {
      unexpected.push_back(info.name + " " + info.shape_text());
    }
  }
  if (!missing.empty()) problems.add("{}: missing: {}", where, join(missing, ", "));
  if (!unexpected.empty()) {
    problems.add("{}: not expected by {} for this model: {}", where, config_file, join(unexpected, ", "));
  }
  problems.raise();
}

void AdapterFile::check_base(const io::Checkpoint& base) const {
  if (origin_.base.empty()) return;
  const std::string found = base_fingerprint(base);
  if (found == origin_.base) return;
  user_error("{}: was trained on another model than {} (its fingerprint is {}, the adapter's base had {}){}",
             folder_.string(), base.folder().string(), found, origin_.base,
             config_.base_model.empty() ? "" : "; it names " + config_.base_model);
}

ConstView AdapterFile::tensor(const std::string& module, const char* suffix) const {
  return file_.tensor("base_model.model." + module + suffix);
}

std::vector<float> AdapterFile::a(const AdaptedPart& part) const {
  const ConstView view = tensor(part.module, ".lora_A.weight");
  const std::int64_t size = part.rank * part.in;
  std::vector<float> values(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; ++i) values[static_cast<std::size_t>(i)] = value_at(view, part.expert * size + i);
  return values;
}

std::vector<float> AdapterFile::b(const AdaptedPart& part) const {
  const ConstView view = tensor(part.module, ".lora_B.weight");
  const std::int64_t size = part.out * part.rank, step = std::max<std::int64_t>(part.stacked, 1);
  std::vector<float> values(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; ++i) values[static_cast<std::size_t>(i)] = value_at(view, i * step + part.expert);
  return values;
}

std::vector<float> AdapterFile::magnitude(const AdaptedPart& part) const {
  const ConstView view = tensor(part.module, ".lora_magnitude_vector");
  std::vector<float> values(static_cast<std::size_t>(part.out));
  for (std::int64_t i = 0; i < part.out; ++i) values[static_cast<std::size_t>(i)] = value_at(view, i);
  return values;
}

ConstView AdapterFile::saved(const SavedPart& part) const { return tensor(part.tensor, ""); }

namespace {

// One tensor as bytes, put together of what its parts have.
class TensorBytes {
 public:
  TensorBytes(const AdapterTensor& tensor, DType dtype) : dtype_(dtype) {
    std::size_t size = size_of(dtype);
    for (const std::int64_t extent : tensor.shape) size *= static_cast<std::size_t>(extent);
    bytes_.resize(size);
  }

  // values[i] goes to place first + i · step.
  void put(const std::vector<float>& values, std::size_t first, std::size_t step) {
    const std::size_t width = size_of(dtype_);
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::byte* to = bytes_.data() + (first + i * step) * width;
      switch (dtype_) {
        case DType::bf16: copy(bf16(values[i]), to); break;
        case DType::f16: copy(f16(values[i]), to); break;
        default: copy(values[i], to);
      }
    }
  }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  template <class T>
  static void copy(T value, std::byte* to) {
    std::memcpy(to, &value, sizeof(T));
  }

  DType dtype_;
  std::vector<std::byte> bytes_;
};

}  // namespace

std::vector<io::TensorSpec> tensor_specs(const AdapterTargets& targets, DType dtype, const std::string& prefix) {
  INLAY_ASSERT(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16, "adapters are floating-point");
  std::vector<io::TensorSpec> specs;
  for (const AdapterTensor& tensor : adapter_tensors(targets)) {
    specs.push_back({prefix + tensor.name, dtype, tensor.shape});
  }
  return specs;
}

void write_tensors(io::SafetensorsWriter& writer, const AdapterTargets& targets, const AdapterSource& source,
                   DType dtype, const std::string& prefix) {
  for (const AdapterTensor& tensor : adapter_tensors(targets)) {
    if (tensor.kind == TensorKind::saved) {
      source.saved(targets.saved[tensor.index], dtype, [&](std::uint64_t offset, std::span<const std::byte> piece) {
        writer.write_part(prefix + tensor.name, offset, piece);
      });
      continue;
    }
    if (source.a == nullptr) continue;
    TensorBytes bytes(tensor, dtype);
    const AdaptedPart& first = targets.parts[tensor.index];
    const auto count = static_cast<std::size_t>(std::max<std::int64_t>(first.stacked, 1));
    for (std::size_t e = 0; e < count; ++e) {
      const AdaptedPart& part = targets.parts[tensor.index + e];
      switch (tensor.kind) {
        case TensorKind::a: bytes.put(source.a(part), e * static_cast<std::size_t>(part.rank * part.in), 1); break;
        case TensorKind::b: bytes.put(source.b(part), e, count); break;
        default: bytes.put(source.magnitude(part), 0, 1);
      }
    }
    writer.write(prefix + tensor.name, bytes.bytes());
  }
}

io::SafetensorsWriter tensors_writer(const fs::path& folder, const AdapterTargets& targets, const AdapterOrigin& origin,
                                     DType dtype, io::Writers writers) {
  io::SafetensorsMetadata metadata = io::model_metadata;
  for (const auto& [key, value] :
       {std::pair(base_key, &origin.base), {format_key, &origin.base_format}, {init_key, &origin.init}}) {
    if (!value->empty()) metadata[key] = *value;
  }
  return io::SafetensorsWriter(folder / tensors_file, tensor_specs(targets, dtype), metadata, writers);
}

}  // namespace inlay::adapter
