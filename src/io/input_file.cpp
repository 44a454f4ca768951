#include "io/input_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

#include "core/error.h"
#include "io/hash.h"
#include "io/paths.h"

namespace inlay::io {
namespace {

int nameless_file() {
  const int memory = ::memfd_create("inlay", MFD_CLOEXEC);
  if (memory >= 0) return memory;
  std::error_code ignored;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(ignored);
  return ::open(folder.empty() ? "/tmp" : folder.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
}

}  // namespace

InputFile::InputFile(const std::filesystem::path& path) : name_(path.string()) {
  // Not blocking: opening a pipe that nobody writes to would wait for ever, and pipes are refused just below.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0 && errno == ENOENT) user_error("{}: no such file", name_);
  if (descriptor_ < 0) user_error("{}: cannot be opened: {}", name_, reason(errno));
  try {
    const struct stat found = status();
    if (!S_ISREG(found.st_mode)) fail("is not a regular file");
    size_ = static_cast<std::uint64_t>(found.st_size);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

InputFile InputFile::in_memory(std::string name) {
  const int descriptor = nameless_file();
  if (descriptor < 0) user_error("{}: there is not enough memory for its documents: {}", name, reason(errno));
  return InputFile(std::move(name), descriptor);
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : name_(std::move(other.name_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      is_in_memory_(other.is_in_memory_),
      size_(other.size_) {}

void InputFile::fail(std::string_view what) const { user_error("{}: {}", name_, what); }

struct stat InputFile::status() const {
  struct stat found {};
  if (::fstat(descriptor_, &found) != 0) fail(fmt::format("cannot be read: {}", reason(errno)));
  return found;
}

void InputFile::read_at(std::uint64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t got = ::pread(descriptor_, to.data(), to.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(fmt::format("cannot be read: {}", reason(errno)));
    if (got == 0)
      fail(fmt::format("was cut short while it was in use: it had {} bytes, and byte {} is gone", size_, offset));
    offset += static_cast<std::uint64_t>(got);
    to = to.subspan(static_cast<std::size_t>(got));
  }
}

void InputFile::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(size_));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0)
      fail(fmt::format("there is not enough memory for its documents: {}", reason(done < 0 ? errno : ENOSPC)));
    size_ += static_cast<std::uint64_t>(done);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
}

std::string InputFile::identity() const {
  const struct stat found = status();
  return fmt::format("{} {} {} {}.{} {}.{}", found.st_dev, found.st_ino, found.st_size, found.st_mtim.tv_sec,
                     found.st_mtim.tv_nsec, found.st_ctim.tv_sec, found.st_ctim.tv_nsec);
}

std::uint64_t content_hash(const InputFile& file, std::uint64_t begin, std::uint64_t end,
                           const std::function<void(std::uint64_t done)>& between) {
  std::vector<std::byte> buffer(std::size_t{1} << 20);
  Hasher hasher;
  while (begin < end) {
    const auto part = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), end - begin));
    file.read_at(begin, part);
    hasher.update(part);
    begin += part.size();
    if (between) between(begin);
  }
  return hasher.digest();
}

}  // namespace inlay::io
