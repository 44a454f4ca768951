#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>

namespace inlay::io {

// Brings a file to disk while it is written from one end to the other. Left alone, the kernel keeps gigabytes of it in
// memory before it begins, and whoever wants the file safe then waits for the disk with nothing else to do. So every
// piece is sent on its way when it is whole. Of a large file the memory is given back behind it: a checkpoint would
// push out what is read again, and a virtual machine clears every page that it has not had yet.
class WriteBehind {
 public:
  struct Sizes {
    std::uint64_t piece = std::uint64_t{32} << 20;    // sent at a time
    std::uint64_t window = std::uint64_t{256} << 20;  // at most on its way
    std::uint64_t kept = std::uint64_t{1} << 30;      // of the beginning stays in memory: small files are soon read
  };
  static constexpr std::uint64_t all = ~std::uint64_t{0};  // kept: for what is read again when it is whole
  // What is asked of the kernel; tests listen.
  struct Calls {
    int (*sync)(int descriptor, off_t begin, off_t bytes, unsigned how);
    int (*forget)(int descriptor, off_t begin, off_t bytes, int advice);
  };
  static const Calls kernel;

  WriteBehind() = default;
  explicit WriteBehind(const Sizes& sizes, const Calls& calls = kernel) : sizes_(sizes), calls_(&calls) {}

  const Sizes& sizes() const { return sizes_; }
  // So many bytes were written there. What the disk could not take is a UserError naming the path.
  void wrote(int descriptor, const std::filesystem::path& path, std::uint64_t offset, std::uint64_t bytes);

 private:
  void bring_to_disk(int descriptor, const std::filesystem::path& path, std::uint64_t begin, std::uint64_t end,
                     unsigned how) const;

  Sizes sizes_;
  const Calls* calls_ = &kernel;
  // Of what is written in order: up to where it is, is being brought to disk, and is known to be there.
  std::uint64_t written_ = 0, started_ = 0, arrived_ = 0;
};

}  // namespace inlay::io
