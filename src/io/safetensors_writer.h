#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/view.h"
#include "io/file.h"

namespace inlay::io {

// A tensor to be written: declared first, its bytes follow later.
struct TensorSpec {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;

  std::uint64_t bytes() const;
};

// The order in which tensors lie in a file: those of wide elements first, otherwise as they were. Each is then aligned
// to its own element.
void widest_first(std::vector<TensorSpec>& tensors);

// The files of a folder by their names.
using FileSums = std::map<std::string, FileSum>;

using SafetensorsMetadata = std::map<std::string, std::string>;

// What transformers expects in the files of a model.
inline const SafetensorsMetadata model_metadata = {{"format", "pt"}};

// Who writes a file. Of many processes each writes its own bytes of the same file, which is then to be in a folder that
// nobody takes notice of yet: one of them makes it in create(), under its name and in its full size, and when it has,
// all of them write, and bring what they wrote to disk in finish().
enum class Writers : std::uint8_t { one, many };

// Writes a safetensors file of any size without holding more than the caller's current piece of it. All tensors are
// declared at once; their bytes then come in any order, whole or in parts. The file appears under its name in finish();
// without it nothing stays behind. Disk full, no permission: UserError naming the file. A tensor left out, written
// twice over or with the wrong size is a defect of the caller's. The same input gives the same bytes.
class SafetensorsWriter {
 public:
  SafetensorsWriter(std::filesystem::path path, std::vector<TensorSpec> tensors,
                    const SafetensorsMetadata& metadata = model_metadata, Writers writers = Writers::one);

  void create() const;  // of many writers, one; before the others write

  void write(std::string_view name, std::span<const std::byte> bytes);
  // Checks dtype and shape as well; the view is contiguous and in host memory.
  void write(std::string_view name, ConstView tensor);
  // A part of a tensor, from a byte offset on.
  void write_part(std::string_view name, std::uint64_t offset, std::span<const std::byte> bytes);

  // Everything is written (and then on disk after seal(), still without a name).
  bool complete() const { return written_ == total_; }
  void seal();
  void finish();

  // For one who wrote the tensors in the order of widest_first().
  FileSum sum() const { return alone_->sum(); }

  const std::filesystem::path& path() const { return path_; }
  std::vector<std::string> files() const { return {path_.filename().string()}; }
  FileSums sums() const { return {{path_.filename().string(), sum()}}; }
  std::uint64_t tensor_bytes() const { return total_; }
  std::uint64_t written_bytes() const { return written_; }  // of them, here

 private:
  struct Slot {
    std::size_t spec;
    std::uint64_t begin, bytes, written = 0;
  };

  Slot& slot(std::string_view name);
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);

  std::filesystem::path path_;
  std::vector<TensorSpec> tensors_;
  std::string beginning_;             // of the file: everything before the tensors' bytes
  std::optional<AtomicFile> alone_;   // of one writer
  std::optional<OutputFile> shared_;  // of many, from the first write on
  std::unordered_map<std::string, Slot> slots_;
  std::uint64_t total_ = 0, written_ = 0;
};

// Writes a model's weights into a folder as Hugging Face lays them out: model.safetensors, or, where that would have
// more than max_shard_bytes, model-00001-of-0000N.safetensors and model.safetensors.index.json. No name appears before
// finish(); finish() also removes the weights of an earlier save that would contradict the new ones.
class ShardedWriter {
 public:
  static constexpr std::uint64_t default_shard_bytes = 5'000'000'000;  // "5GB", as transformers counts

  ShardedWriter(std::filesystem::path folder, std::vector<TensorSpec> tensors,
                std::uint64_t max_shard_bytes = default_shard_bytes, Writers writers = Writers::one);

  void create();  // of many writers, one; before the others write

  void write(std::string_view name, std::span<const std::byte> bytes);
  void write(std::string_view name, ConstView tensor);
  void write_part(std::string_view name, std::uint64_t offset, std::span<const std::byte> bytes);
  void finish();

  // Of what finish() wrote, for one who declared and wrote the tensors in the order of widest_first().
  FileSums sums() const;
  std::vector<std::string> files() const;

  std::size_t shard_count() const { return shards_.size(); }
  std::uint64_t tensor_bytes() const { return total_; }
  std::uint64_t written_bytes() const;  // of them, here

 private:
  struct Shard {
    std::string file;
    std::vector<TensorSpec> tensors;  // moved into the writer when it opens
    std::optional<SafetensorsWriter> writer;
  };

  Shard& shard(std::string_view name);
  SafetensorsWriter& opened(Shard& shard);
  void write_index();
  void remove_stale_files() const;

  std::filesystem::path folder_;
  Writers writers_;
  std::vector<Shard> shards_;
  std::unordered_map<std::string, std::size_t> shard_of_;
  std::uint64_t total_ = 0;
  FileSum index_;
};

// Whether a file of this name is part of a model's weights as ShardedWriter writes them.
bool is_weights_file(std::string_view name);

// Which tensors go into which shard: in order, a new one where the next tensor no longer fits. A tensor larger than
// max_bytes has a shard for itself. At least one shard.
std::vector<std::vector<TensorSpec>> plan_shards(std::vector<TensorSpec> tensors, std::uint64_t max_bytes);

}  // namespace inlay::io
