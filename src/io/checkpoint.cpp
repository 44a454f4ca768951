#include "io/checkpoint.h"

#include <algorithm>
#include <map>

#include "core/error.h"
#include "io/hash.h"
#include "io/json.h"
#include "io/paths.h"

namespace inlay::io {
namespace {

// Says what stands there instead, so that the user knows what to do about it.
[[noreturn]] void no_weights(const std::filesystem::path& folder) {
  bool pickled = false;
  std::vector<std::string> others;
  for (const std::filesystem::path& entry : entries_of(folder)) {
    const std::string name = entry.filename().string();
    if ((name == single_name || name == index_name) && !io::exists(entry)) {
      user_error(
          "{}: {} is a link to a file that is not there: the model's download is not complete; download it again "
          "(hf download, or --download)",
          folder.string(), name);
    }
    pickled = pickled || (name.starts_with("pytorch_model") && name.ends_with(".bin"));
    if (name.ends_with(".safetensors")) others.push_back(name);
  }
  if (pickled) {
    user_error(
        "{}: holds pytorch_model.bin only, which is not read (a pickle can run code); convert it to safetensors: load "
        "the model with transformers and call save_pretrained(folder, safe_serialization=True)",
        folder.string());
  }
  if (!others.empty()) {
    std::ranges::sort(others);
    user_error("{}: has neither {} nor {} (it does have {})", folder.string(), single_name, index_name,
               in_quotes(others.front()));
  }
  user_error("{}: has neither {} nor {}", folder.string(), single_name, index_name);
}

// A shard lies beside its index; a name that leads anywhere else is an attack or a mistake.
bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

}  // namespace

Checkpoint::Checkpoint(const std::filesystem::path& folder) : folder_(folder) {
  if (!io::exists(folder)) user_error("{}: no such folder", folder.string());
  if (!is_folder(folder)) user_error("{}: is not a folder; expected a model folder", folder.string());
  // Where both stand there, transformers takes the single file; so do we.
  if (io::exists(folder / single_name)) {
    open_single(folder / single_name);
  } else if (io::exists(folder / index_name)) {
    open_sharded(folder / index_name);
  } else {
    no_weights(folder);
  }
  names_.reserve(file_of_.size());
  for (const auto& [name, file] : file_of_) {
    names_.push_back(name);
    total_bytes_ += files_[file].find(name)->bytes();
  }
  std::ranges::sort(names_);
}

void Checkpoint::open_single(const std::filesystem::path& path) {
  files_.emplace_back(path);
  for (const TensorInfo& info : files_.front().tensors()) file_of_.emplace(info.name, 0);
  if (file_of_.empty()) user_error("{}: holds no tensors", path.string());
}

void Checkpoint::open_sharded(const std::filesystem::path& index) {
  const Json json = Json::read(index);
  const Json map = json.object("weight_map");
  std::map<std::string, std::size_t> shards;
  for (const std::string& name : map.keys()) {
    const std::string file = map.string(name);
    if (!is_plain_file_name(file) || !file.ends_with(".safetensors")) {
      map.fail(name,
               fmt::format("expected the name of a .safetensors file in the same folder, got {}", in_quotes(file)));
    }
    const auto [shard, is_new] = shards.emplace(file, files_.size());
    if (is_new) {
      if (!io::exists(folder_ / file)) {
        map.fail(name, fmt::format("its file {} is missing from the folder", in_quotes(file)));
      }
      files_.emplace_back(folder_ / file);
    }
    if (files_[shard->second].find(name) == nullptr) {
      map.fail(name, fmt::format("its file {} has no such tensor", in_quotes(file)));
    }
    file_of_.emplace(name, shard->second);
  }
  if (file_of_.empty()) json.fail("weight_map", "lists no tensors");
}

const SafetensorsFile* Checkpoint::file_of(std::string_view name) const {
  const auto found = file_of_.find(std::string(name));
  return found == file_of_.end() ? nullptr : &files_[found->second];
}

const TensorInfo* Checkpoint::find(std::string_view name) const {
  const SafetensorsFile* file = file_of(name);
  return file == nullptr ? nullptr : file->find(name);
}

ConstView Checkpoint::tensor(std::string_view name) const {
  const SafetensorsFile* file = file_of(name);
  if (file == nullptr) user_error("{}: the model has no tensor {}", folder_.string(), in_quotes(name));
  return file->tensor(name);
}

void Checkpoint::prefetch(std::string_view name) const {
  if (const SafetensorsFile* file = file_of(name)) file->prefetch(name);
}

void Checkpoint::drop(std::string_view name) const {
  if (const SafetensorsFile* file = file_of(name)) file->drop(name);
}

std::uint64_t Checkpoint::sampled_hash() const {
  constexpr std::size_t pieces = 16, piece = 64;
  Hasher hasher;
  for (const std::string& name : names_) {
    const TensorInfo& info = *find(name);
    std::string about = name + " " + info.format_dtype;
    for (const std::int64_t extent : info.shape) about += fmt::format(" {}", extent);
    hasher.update(std::as_bytes(std::span(about)));
    if (!info.dtype) continue;
    const ConstView view = tensor(name);
    const std::span bytes(static_cast<const std::byte*>(view.data()), view.bytes());
    for (std::size_t i = 0; i < pieces; ++i) {
      const std::size_t at = bytes.size() / pieces * i;
      hasher.update(bytes.subspan(at, std::min(piece, bytes.size() - at)));
    }
  }
  return hasher.digest();
}

std::uint64_t Checkpoint::content_hash() const {
  Hasher hasher;
  for (const std::string& name : names_) {
    hasher.update(std::as_bytes(std::span(name)));
    if (!find(name)->dtype) continue;  // of a type that nothing here reads, so that nothing depends on it
    const ConstView values = tensor(name);
    hasher.update({static_cast<const std::byte*>(values.data()), values.bytes()});
    drop(name);
  }
  return hasher.digest();
}

std::filesystem::path Checkpoint::path_of(std::string_view name) const {
  const SafetensorsFile* file = file_of(name);
  return file == nullptr ? folder_ : file->path();
}

}  // namespace inlay::io
