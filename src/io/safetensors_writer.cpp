#include "io/safetensors_writer.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "io/json.h"
#include "io/paths.h"
#include "io/safetensors.h"

namespace inlay::io {
namespace {

// As a JSON string. Names that are not UTF-8 are refused: no reader would take them.
std::string json_string(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    user_error("the name {} is not UTF-8 and cannot be written to a safetensors file", in_quotes(text));
  }
}

std::string extents(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t extent : shape) {
    if (!text.empty()) text += ',';
    text += std::to_string(extent);
  }
  return text;
}

}  // namespace

std::uint64_t TensorSpec::bytes() const {
  std::uint64_t product = size_of(dtype);
  for (const std::int64_t extent : shape) {
    INLAY_ASSERT(extent >= 0 && !__builtin_mul_overflow(product, static_cast<std::uint64_t>(extent), &product),
                 "tensor {} has an impossible shape", name);
  }
  return product;
}

void widest_first(std::vector<TensorSpec>& tensors) {
  std::ranges::stable_sort(tensors, std::greater<>(), [](const TensorSpec& spec) { return size_of(spec.dtype); });
}

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, std::vector<TensorSpec> tensors,
                                     const SafetensorsMetadata& metadata, Writers writers)
    : path_(std::move(path)), tensors_(std::move(tensors)) {
  if (writers == Writers::one) alone_.emplace(path_);
  widest_first(tensors_);
  std::string header = "{";
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      header += fmt::format("{}{}:{}", header.back() == '{' ? "" : ",", json_string(key), json_string(value));
    }
    header += '}';
  }
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const TensorSpec& spec = tensors_[i];
    INLAY_ASSERT(spec.name != "__metadata__", "__metadata__ is not a tensor's name");
    const Slot slot{.spec = i, .begin = total_, .bytes = spec.bytes()};
    INLAY_ASSERT(slots_.emplace(spec.name, slot).second, "tensor {} is declared twice", spec.name);
    total_ += slot.bytes;
    header +=
        fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", header.size() == 1 ? "" : ",",
                    json_string(spec.name), safetensors_name_of(spec.dtype), extents(spec.shape), slot.begin, total_);
  }
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');
  INLAY_ASSERT(header.size() <= SafetensorsFile::max_header_bytes, "{} tensors make too long a header",
               tensors_.size());

  const std::uint64_t header_bytes = header.size();
  beginning_.assign(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  beginning_ += header;
  for (auto& [name, slot] : slots_) slot.begin += beginning_.size();  // from here on, offsets in the file
  if (!alone_) return;
  alone_->reserve(beginning_.size() + total_);
  alone_->write_at(0, std::as_bytes(std::span(beginning_)));
}

void SafetensorsWriter::create() const {
  INLAY_ASSERT(!alone_, "{} has one writer", path_.string());
  OutputFile file = OutputFile::create(path_);
  file.reserve(beginning_.size() + total_);
  file.resize(beginning_.size() + total_);  // where nothing was reserved
  file.write_at(0, std::as_bytes(std::span(beginning_)));
  file.seal();
}

void SafetensorsWriter::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (alone_) return alone_->write_at(offset, bytes);
  if (!shared_) {
    if (!io::exists(path_)) {
      user_error(
          "{}: another process of this run has made it, but it cannot be found here; all of them must see the same "
          "files",
          path_.string());
    }
    shared_.emplace(OutputFile::open(path_));
  }
  shared_->write_at(offset, bytes);
}

SafetensorsWriter::Slot& SafetensorsWriter::slot(std::string_view name) {
  const auto found = slots_.find(std::string(name));
  INLAY_ASSERT(found != slots_.end(), "tensor {} was not declared for {}", name, path().string());
  return found->second;
}

void SafetensorsWriter::write_part(std::string_view name, std::uint64_t offset, std::span<const std::byte> bytes) {
  Slot& target = slot(name);
  INLAY_ASSERT(offset <= target.bytes && bytes.size() <= target.bytes - offset,
               "bytes [{}, {}) do not lie inside tensor {} of {} bytes", offset, offset + bytes.size(), name,
               target.bytes);
  INLAY_ASSERT(target.written + bytes.size() <= target.bytes, "tensor {} is written twice over", name);
  if (bytes.empty()) return;  // an empty tensor may come after the file is complete and sealed
  write_at(target.begin + offset, bytes);
  target.written += bytes.size();
  written_ += bytes.size();
}

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  INLAY_ASSERT(bytes.size() == slot(name).bytes, "tensor {} has {} bytes, got {}", name, slot(name).bytes,
               bytes.size());
  write_part(name, 0, bytes);
}

void SafetensorsWriter::write(std::string_view name, ConstView tensor) {
  const TensorSpec& spec = tensors_[slot(name).spec];
  INLAY_ASSERT(tensor.dtype() == spec.dtype && tensor.contiguous() && spec.shape.size() <= max_rank &&
                   tensor.shape() == Shape(std::span<const std::int64_t>(spec.shape)),
               "tensor {} was declared as {} [{}], got {} {}", name, name_of(spec.dtype), extents(spec.shape),
               name_of(tensor.dtype()), tensor.shape().str());
  write(name, std::span(static_cast<const std::byte*>(tensor.data()), tensor.bytes()));
}

void SafetensorsWriter::seal() {
  if (!alone_) {
    if (shared_) shared_->seal();
    return;
  }
  for (const auto& [name, slot] : slots_) {
    INLAY_ASSERT(slot.written == slot.bytes, "tensor {} was not written: {} of {} bytes", name, slot.written,
                 slot.bytes);
  }
  alone_->seal();
}

void SafetensorsWriter::finish() {
  seal();
  if (alone_) alone_->commit();
}

}  // namespace inlay::io
