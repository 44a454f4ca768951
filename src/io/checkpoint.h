#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/safetensors.h"

namespace inlay::io {

// The files of a model: one, or several and what stands in which.
inline constexpr std::string_view single_name = "model.safetensors", index_name = "model.safetensors.index.json";

// The weights of a Hugging Face model folder: model.safetensors, or the shards that model.safetensors.index.json lists.
// All headers are read and checked at once; weights are read when they are touched.
class Checkpoint {
 public:
  explicit Checkpoint(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  const std::vector<std::string>& names() const { return names_; }  // sorted
  std::uint64_t total_bytes() const { return total_bytes_; }

  bool contains(std::string_view name) const { return file_of_.contains(std::string(name)); }
  // Null where there is no such tensor.
  const TensorInfo* find(std::string_view name) const;
  // As SafetensorsFile::tensor; valid as long as this checkpoint.
  ConstView tensor(std::string_view name) const;
  void prefetch(std::string_view name) const;
  void drop(std::string_view name) const;

  // Of all names and tensors; reads every byte of the weights.
  std::uint64_t content_hash() const;
  // Of names, dtypes, shapes and some bytes of every tensor: tells one model from another at once, but not every change
  // to one.
  std::uint64_t sampled_hash() const;

  // The file that holds a tensor, for messages; the folder where there is no such tensor.
  std::filesystem::path path_of(std::string_view name) const;
  const std::vector<SafetensorsFile>& files() const { return files_; }

 private:
  void open_single(const std::filesystem::path& path);
  void open_sharded(const std::filesystem::path& index);
  const SafetensorsFile* file_of(std::string_view name) const;

  std::filesystem::path folder_;
  std::vector<SafetensorsFile> files_;
  std::unordered_map<std::string, std::size_t> file_of_;
  std::vector<std::string> names_;
  std::uint64_t total_bytes_ = 0;
};

}  // namespace inlay::io
