#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>

namespace inlay::backend {

// A file of a fixed size on a local disk for what fits into no memory. It has no name any more once it is open, so that
// nothing is left behind however the process ends. All its space is taken at once: a disk that is too full is an error
// before the first step.
class SpillFile {
 public:
  SpillFile(const std::filesystem::path& folder, std::uint64_t bytes);
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  // Called from any thread, and never throw: a failure is kept for check().
  void write(std::uint64_t offset, const void* from, std::size_t bytes) noexcept;
  void read(std::uint64_t offset, void* to, std::size_t bytes) noexcept;
  // Throws what went wrong since it was opened.
  void check() const;

  std::uint64_t bytes() const { return bytes_; }

 private:
  std::filesystem::path folder_;
  std::uint64_t bytes_;
  int file_ = -1;
  std::atomic<int> failure_ = 0;  // errno of the first one
};

}  // namespace inlay::backend
