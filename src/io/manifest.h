#pragma once

#include <functional>

#include "core/error.h"
#include "io/safetensors_writer.h"

// A folder's manifest: a JSON file with the size and the XXH3 of every other file that belongs to the folder (as
// `xxhsum -H3` shows it), and a checksum of itself.
namespace inlay::io {

// A file is not what was written. The message names it.
class DamagedFile : public UserError {
 public:
  using UserError::UserError;
};

// Of a file as it is on disk; between() is called now and then with the bytes since the last time.
FileSum sum_of(const std::filesystem::path& file, const std::function<void(std::uint64_t bytes)>& between = {});

void write_manifest(const std::filesystem::path& file, const FileSums& files);
FileSums read_manifest(const std::filesystem::path& file);

// Reads every byte of the files.
void verify_files(const std::filesystem::path& folder, const FileSums& files,
                  const std::function<void(std::uint64_t done, std::uint64_t total)>& progress);

}  // namespace inlay::io
