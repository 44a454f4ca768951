#include "backend/spill_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "core/arena.h"
#include "core/error.h"

namespace inlay::backend {

SpillFile::SpillFile(const std::filesystem::path& folder, std::uint64_t bytes) : folder_(folder), bytes_(bytes) {
  std::string name = (folder / "inlay-spill-XXXXXX").string();
  file_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (file_ < 0) user_error("memory.disk: {}: no file can be created there: {}", folder.string(), std::strerror(errno));
  ::unlink(name.c_str());
  if (const int error = ::posix_fallocate(file_, 0, static_cast<off_t>(bytes)); error != 0) {
    ::close(file_);
    user_error("memory.disk: {}: the run needs {} there: {}", folder.string(), format_bytes(bytes),
               std::strerror(error));
  }
}

SpillFile::~SpillFile() { ::close(file_); }

namespace {

// Moves all bytes with repeated calls of transfer(at, left); 0 or the errno of the first failure.
template <class Transfer>
int move_all(std::uint64_t offset, std::size_t bytes, const Transfer& transfer) {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t moved = transfer(done, bytes - done, static_cast<off_t>(offset + done));
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return moved == 0 ? EIO : errno;
    done += static_cast<std::size_t>(moved);
  }
  return 0;
}

}  // namespace

void SpillFile::write(std::uint64_t offset, const void* from, std::size_t bytes) noexcept {
  const int error = move_all(offset, bytes, [&](std::size_t done, std::size_t left, off_t at) {
    return ::pwrite(file_, static_cast<const char*>(from) + done, left, at);
  });
  int none = 0;
  if (error != 0) failure_.compare_exchange_strong(none, error);
}

void SpillFile::read(std::uint64_t offset, void* to, std::size_t bytes) noexcept {
  const int error = move_all(offset, bytes, [&](std::size_t done, std::size_t left, off_t at) {
    return ::pread(file_, static_cast<char*>(to) + done, left, at);
  });
  int none = 0;
  if (error != 0) failure_.compare_exchange_strong(none, error);
}

void SpillFile::check() const {
  const int error = failure_.load();
  if (error != 0) {
    user_error("memory.disk: {}: activations could not be written or read back: {}; the last checkpoint is intact",
               folder_.string(), std::strerror(error));
  }
}

}  // namespace inlay::backend
