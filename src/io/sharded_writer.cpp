#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "io/checkpoint.h"
#include "io/paths.h"
#include "io/safetensors_writer.h"

namespace inlay::io {
bool is_weights_file(std::string_view name) {
  const bool shard = name.starts_with("model-") && name.ends_with(".safetensors") && name.find("-of-") != name.npos;
  return shard || name == single_name || name == index_name;
}

std::vector<std::vector<TensorSpec>> plan_shards(std::vector<TensorSpec> tensors, std::uint64_t max_bytes) {
  std::vector<std::vector<TensorSpec>> shards(1);
  std::uint64_t filled = 0;
  for (TensorSpec& spec : tensors) {
    const std::uint64_t bytes = spec.bytes();
    if (!shards.back().empty() && (bytes > max_bytes || filled > max_bytes - bytes)) {
      shards.emplace_back();
      filled = 0;
    }
    filled += bytes;
    shards.back().push_back(std::move(spec));
  }
  return shards;
}

ShardedWriter::ShardedWriter(std::filesystem::path folder, std::vector<TensorSpec> tensors,
                             std::uint64_t max_shard_bytes, Writers writers)
    : folder_(std::move(folder)), writers_(writers) {
  auto plan = plan_shards(std::move(tensors), max_shard_bytes);
  for (std::size_t i = 0; i < plan.size(); ++i) {
    for (const TensorSpec& spec : plan[i]) {
      INLAY_ASSERT(shard_of_.emplace(spec.name, i).second, "tensor {} is declared twice", spec.name);
      total_ += spec.bytes();
    }
    std::string file = plan.size() == 1 ? std::string(single_name)
                                        : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, plan.size());
    shards_.push_back({.file = std::move(file), .tensors = std::move(plan[i]), .writer = std::nullopt});
  }
}

// The shard that holds a tensor, opened at its first use: only those that are being written hold a file open.
ShardedWriter::Shard& ShardedWriter::shard(std::string_view name) {
  const auto found = shard_of_.find(std::string(name));
  INLAY_ASSERT(found != shard_of_.end(), "tensor {} was not declared for {}", name, folder_.string());
  Shard& shard = shards_[found->second];
  opened(shard);
  return shard;
}

SafetensorsWriter& ShardedWriter::opened(Shard& shard) {
  if (!shard.writer) shard.writer.emplace(folder_ / shard.file, std::move(shard.tensors), model_metadata, writers_);
  return *shard.writer;
}

void ShardedWriter::create() {
  for (Shard& shard : shards_) opened(shard).create();
  write_index();
  remove_stale_files();
}

void ShardedWriter::write_part(std::string_view name, std::uint64_t offset, std::span<const std::byte> bytes) {
  Shard& target = shard(name);
  target.writer->write_part(name, offset, bytes);
  if (target.writer->complete()) target.writer->seal();
}

void ShardedWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  Shard& target = shard(name);
  target.writer->write(name, bytes);
  if (target.writer->complete()) target.writer->seal();
}

void ShardedWriter::write(std::string_view name, ConstView tensor) {
  Shard& target = shard(name);
  target.writer->write(name, tensor);
  if (target.writer->complete()) target.writer->seal();
}

void ShardedWriter::finish() {
  for (Shard& shard : shards_) opened(shard).seal();  // all are on disk before the first takes its name
  if (writers_ == Writers::many) return;
  for (Shard& shard : shards_) shard.writer->finish();
  write_index();
  remove_stale_files();
}

void ShardedWriter::write_index() {
  if (shards_.size() == 1) return;
  nlohmann::json map = nlohmann::json::object();
  for (const auto& [name, i] : shard_of_) map[name] = shards_[i].file;
  const nlohmann::json index = {{"metadata", {{"total_size", total_}}}, {"weight_map", std::move(map)}};
  index_ = write_file_atomic(folder_ / index_name, index.dump(2) + "\n");
}

std::vector<std::string> ShardedWriter::files() const {
  std::vector<std::string> names;
  for (const Shard& shard : shards_) names.push_back(shard.file);
  if (shards_.size() > 1) names.emplace_back(index_name);
  return names;
}

std::uint64_t ShardedWriter::written_bytes() const {
  std::uint64_t written = 0;
  for (const Shard& shard : shards_) written += shard.writer ? shard.writer->written_bytes() : 0;
  return written;
}

FileSums ShardedWriter::sums() const {
  FileSums sums;
  for (const Shard& shard : shards_) sums[shard.file] = shard.writer->sum();
  if (shards_.size() > 1) sums[std::string(index_name)] = index_;
  return sums;
}

// A reader would take an old model.safetensors before the new index, or an old index beside new shards.
void ShardedWriter::remove_stale_files() const {
  const std::vector<std::string> names = files();
  const std::set<std::string> current(names.begin(), names.end());
  for (const std::filesystem::path& path : entries_of(folder_)) {
    const std::string name = path.filename().string();
    if (is_weights_file(name) && !current.contains(name)) io::remove_all(path);
  }
}

}  // namespace inlay::io
