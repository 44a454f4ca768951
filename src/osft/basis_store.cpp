#include "osft/basis_store.h"

#include <sstream>

#include "io/hash.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"

namespace inlay::osft {

namespace fs = std::filesystem;

const BasisStore::Tensor* BasisStore::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

const BasisStore::Tensor& BasisStore::at(const std::string& name) const {
  const Tensor* tensor = find(name);
  INLAY_ASSERT(tensor != nullptr, "no directions {}", name);
  return *tensor;
}

const void* BasisStore::at(const std::string& name, DType dtype, const Shape& shape) const {
  const Tensor& tensor = at(name);
  INLAY_ASSERT(tensor.shape == shape && tensor.dtype == dtype, "{} is {} {}, expected {} {}", name,
               name_of(tensor.dtype), tensor.shape.str(), name_of(dtype), shape.str());
  return tensor.bytes.data();
}

std::size_t BasisStore::bytes() const {
  std::size_t total = 0;
  for (const auto& [name, tensor] : tensors_) total += tensor.bytes.size();
  return total;
}

std::string BasisStore::fingerprint() const {
  io::Hasher hasher;
  for (const auto& [name, tensor] : tensors_) {
    hasher.update(std::as_bytes(std::span(name)));
    hasher.update(tensor.bytes);
  }
  return fmt::format("{:016x}", hasher.digest());
}

// With a checksum of everything that the file says of the tensors.
std::map<std::string, std::string> BasisStore::metadata() const {
  io::Hasher hasher;
  for (const auto& [name, tensor] : tensors_) {
    const std::string about = fmt::format("{} {} {} ", name, name_of(tensor.dtype), tensor.shape.str());
    hasher.update(std::as_bytes(std::span(about)));
    hasher.update(tensor.bytes);
  }
  return {{"format", "inlay"}, {"xxh3", fmt::format("{:016x}", hasher.digest())}};
}

void BasisStore::share(parallel::Communicator& ranks) {
  if (ranks.single()) return;
  constexpr const char* what = "directions that others found";
  std::string mine;
  for (const auto& [name, tensor] : tensors_) mine += name + "\n";
  // Of what several have, the first one's counts.
  std::map<std::string, int> owner_of;
  const std::vector<std::string> names = ranks.exchange(mine, what);
  for (int rank = 0; rank < ranks.size(); ++rank) {
    std::istringstream lines(names[static_cast<std::size_t>(rank)]);
    for (std::string name; std::getline(lines, name);) owner_of.emplace(name, rank);
  }
  for (const auto& [name, owner] : owner_of) {
    std::string header, bytes;
    if (owner == ranks.rank()) {
      const Tensor& tensor = tensors_.at(name);
      header = inlay::name_of(tensor.dtype);
      for (const std::int64_t extent : tensor.shape.extents()) header += fmt::format(" {}", extent);
      bytes.assign(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
    }
    const auto rank = static_cast<std::size_t>(owner);
    header = ranks.exchange(header, what)[rank];
    bytes = ranks.exchange(bytes, what)[rank];
    if (owner == ranks.rank()) continue;
    std::istringstream words(header);
    std::string dtype;
    words >> dtype;
    std::vector<std::int64_t> extents;
    for (std::int64_t extent = 0; words >> extent;) extents.push_back(extent);
    Tensor tensor{dtype == inlay::name_of(DType::f64) ? DType::f64 : DType::f32, Shape(std::span(extents)), {}};
    const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
    tensor.bytes.assign(data, data + bytes.size());
    tensors_[name] = std::move(tensor);
  }
}

void BasisStore::save(const fs::path& file) const {
  std::vector<io::TensorSpec> specs;
  for (const auto& [name, tensor] : tensors_) specs.push_back({name, tensor.dtype, tensor.shape.extents()});
  io::SafetensorsWriter writer(file, specs, metadata());
  for (const auto& [name, tensor] : tensors_) writer.write(name, tensor.bytes);
  writer.finish();
}

BasisStore BasisStore::load(const fs::path& file) {
  BasisStore store;
  const io::SafetensorsFile source(file);
  for (const std::string& name : source.names()) {
    const ConstView tensor = source.tensor(name);
    const auto* data = static_cast<const std::byte*>(tensor.data());
    store.put(name, {tensor.dtype(), tensor.shape(), std::vector<std::byte>(data, data + tensor.bytes())});
    source.drop(name);
  }
  if (source.metadata() != store.metadata()) {
    user_error("{}: is damaged: its checksum is not the one that was written", file.string());
  }
  return store;
}

void check_bases(const OsftLayout& nominal, const BasisStore& bases) {
  const auto require = [](bool holds, const std::string& name) {
    if (!holds) user_error("the directions of {} are missing, or differ in shape from the model's", name);
  };
  // Rows of a matrix that is one of several; -1 where it is no matrix.
  const auto rows = [&](const std::string& name) -> std::int64_t {
    const BasisStore::Tensor* tensor = bases.find(name);
    return tensor != nullptr && tensor->shape.rank() == 2 ? tensor->shape[0] : -1;
  };
  for (const auto& [name, ranks] : nominal.targets) {
    if (const auto* input = std::get_if<weights::InputLayout>(&ranks)) {
      const std::string stored = name + (bases.find(name + ".frozen") != nullptr ? ".frozen" : ".free");
      const std::int64_t all = input->free + input->frozen;
      require(rows(stored) >= 0 && rows(stored) <= all && bases.at(stored).shape[1] == all, stored);
      continue;
    }
    const auto& factors = std::get<weights::FactorLayout>(ranks);
    for (std::size_t i = 0; i < factors.parts.size(); ++i) {
      const std::string part = fmt::format("{}.{}", name, i);
      const std::int64_t free = rows(part + ".u");
      const BasisStore::Tensor* scale = bases.find(part + ".s");
      require(free >= 0 && free <= factors.parts[i].free + factors.parts[i].frozen && rows(part + ".v") == free, part);
      require(scale != nullptr && scale->shape.rank() == 1 && scale->shape[0] == free, part);
    }
  }
}

OsftLayout found_layout(const OsftLayout& nominal, const BasisStore& bases) {
  OsftLayout layout = nominal;
  for (auto& [name, ranks] : layout.targets) {
    if (auto* input = std::get_if<weights::InputLayout>(&ranks)) {
      const bool frozen = bases.find(name + ".frozen") != nullptr;
      const Shape& shape = bases.at(name + (frozen ? ".frozen" : ".free")).shape;
      const std::int64_t other = shape[1] - shape[0];
      input->free = frozen ? other : shape[0];
      input->frozen = frozen ? shape[0] : other;
      continue;
    }
    auto& factors = std::get<weights::FactorLayout>(ranks);
    for (std::size_t i = 0; i < factors.parts.size(); ++i) {
      weights::FactorLayout::PartRanks& part = factors.parts[i];
      const std::int64_t full = part.free + part.frozen;
      part.free = bases.at(fmt::format("{}.{}.u", name, i)).shape[0];
      part.frozen = full - part.free;
    }
  }
  return layout;
}

}  // namespace inlay::osft
