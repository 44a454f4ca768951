#include "io/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <future>
#include <system_error>
#include <utility>

#include "core/arena.h"
#include "core/error.h"
#include "io/fault.h"
#include "io/paths.h"

namespace inlay::io {
namespace {

// Closes on every way out.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }

 private:
  int value_;
};

int open_for_reading(const std::filesystem::path& path) {
  // Not blocking: opening a pipe that nobody writes to would wait for ever, and pipes are refused just below.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    const int error = errno;
    if (error == ENOENT) user_error("{}: no such file", path.string());
    user_error("{}: cannot be opened: {}", path.string(), reason(error));
  }
  return descriptor;
}

std::uint64_t regular_size(int descriptor, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) user_error("{}: cannot be read: {}", path.string(), reason(errno));
  if (S_ISDIR(status.st_mode)) user_error("{}: is a folder, expected a file", path.string());
  if (!S_ISREG(status.st_mode)) user_error("{}: is not a regular file", path.string());
  return static_cast<std::uint64_t>(status.st_size);
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

}  // namespace

std::string read_file(const std::filesystem::path& path, std::size_t max_bytes) {
  const Descriptor file(open_for_reading(path));
  const std::uint64_t size = regular_size(file.get(), path);
  if (size > max_bytes) {
    user_error("{}: has {}; at most {} is allowed here", path.string(), format_bytes(size), format_bytes(max_bytes));
  }
  std::string text(size, '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) user_error("{}: cannot be read: {}", path.string(), reason(errno));
    if (got == 0) break;  // it shrank meanwhile
    done += static_cast<std::size_t>(got);
  }
  text.resize(done);
  return text;
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const Descriptor file(open_for_reading(path));
  size_ = regular_size(file.get(), path);
  if (size_ == 0) return;  // mmap refuses length 0
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) user_error("{}: cannot be mapped: {}", path.string(), reason(errno));
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::advise(std::span<const std::byte> range, int advice) const {
  if (range.empty()) return;
  // Whole pages, rounded outwards: a neighbour's page that goes too is only read again.
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto base = reinterpret_cast<std::uintptr_t>(data_);
  const std::uintptr_t begin = std::max(base, reinterpret_cast<std::uintptr_t>(range.data()) / page * page);
  const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(range.data()) + range.size();
  ::madvise(reinterpret_cast<void*>(begin), end - begin, advice);  // advice only: a refusal changes nothing
}

void MappedFile::prefetch(std::span<const std::byte> range) const { advise(range, MADV_WILLNEED); }
void MappedFile::drop(std::span<const std::byte> range) const { advise(range, MADV_DONTNEED); }

namespace {

[[noreturn]] void cannot_write(const std::filesystem::path& path, int error) {
  user_error("cannot write {}: {}", path.string(), reason(error));
}

}  // namespace

OutputFile OutputFile::opened(const std::filesystem::path& path, int flags) {
  if (const int error = injected_fault(DiskOperation::open, path); error != 0) cannot_write(path, error);
  int descriptor;
  do {
    descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | flags, 0666);
  } while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) cannot_write(path, errno);
  return OutputFile(path, descriptor);
}

OutputFile OutputFile::create(const std::filesystem::path& path) { return opened(path, O_CREAT | O_TRUNC); }
OutputFile OutputFile::open(const std::filesystem::path& path) {
  OutputFile file = opened(path, 0);
  file.behind_ = WriteBehind({.kept = WriteBehind::all});  // what several have written is read for its checksum
  return file;
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)), behind_(other.behind_) {}

void OutputFile::reserve(std::uint64_t bytes) {
  INLAY_ASSERT(descriptor_ >= 0, "{} is closed", path_.string());
  if (bytes == 0) return;
  int result;
  do {
    result = ::fallocate(descriptor_, 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result == 0) return;
  const int error = errno;
  if (error == ENOSPC || error == EFBIG || error == EDQUOT) {
    user_error("cannot write {}: {} of space is needed: {}", path_.string(), format_bytes(bytes), reason(error));
  }
  // Anything else: this file system does not reserve. Writing will tell.
}

void OutputFile::resize(std::uint64_t bytes) {
  INLAY_ASSERT(descriptor_ >= 0, "{} is closed", path_.string());
  int result;
  do {
    result = ::ftruncate(descriptor_, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result != 0) cannot_write(path_, errno);
}

std::uint64_t OutputFile::size() const { return regular_size(descriptor_, path_); }

void OutputFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  INLAY_ASSERT(descriptor_ >= 0, "{} is closed", path_.string());
  if (const int error = injected_fault(DiskOperation::write, path_); error != 0) cannot_write(path_, error);
  while (!bytes.empty()) {
    // In pieces, so that the first is on its way while the next is copied.
    const std::size_t piece = std::min(bytes.size(), static_cast<std::size_t>(behind_.sizes().piece));
    const ssize_t done = ::pwrite(descriptor_, bytes.data(), piece, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) cannot_write(path_, done < 0 ? errno : ENOSPC);
    behind_.wrote(descriptor_, path_, offset, static_cast<std::uint64_t>(done));
    offset += static_cast<std::uint64_t>(done);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
}

void OutputFile::seal() {
  if (descriptor_ < 0) return;
  if (const int error = injected_fault(DiskOperation::sync, path_); error != 0) cannot_write(path_, error);
  if (::fsync(descriptor_) != 0) cannot_write(path_, errno);
  if (::close(std::exchange(descriptor_, -1)) != 0) cannot_write(path_, errno);
}

AtomicFile::AtomicFile(std::filesystem::path path) : file_(std::move(path), -1) {
  static std::atomic<unsigned> counter{0};
  const std::filesystem::path& name = file_.path();
  if (!name.has_filename()) user_error("{}: is not the name of a file to write", name.string());
  if (is_folder(name)) cannot_write(name, EISDIR);
  if (const int error = injected_fault(DiskOperation::open, name); error != 0) cannot_write(name, error);
  const std::filesystem::path folder = folder_of(name);
  for (;;) {
    temporary_ = folder / fmt::format(".{}.tmp-{}-{}", name.filename().string(), ::getpid(), counter++);
    file_.descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file_.descriptor_ >= 0) return;
    if (errno == EEXIST || errno == EINTR) continue;  // left by a killed process with our number: take the next name
    const int error = errno;
    if (error == ENOENT) user_error("cannot write {}: the folder {} does not exist", name.string(), folder.string());
    cannot_write(name, error);
  }
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : temporary_(std::exchange(other.temporary_, {})),
      file_(std::move(other.file_)),
      hasher_(std::move(other.hasher_)),
      hashed_(other.hashed_),
      in_order_(other.in_order_) {}

void AtomicFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  in_order_ = in_order_ && offset == hashed_;
  hashed_ += bytes.size();
  // Large pieces are hashed beside the writing, which takes longer: a sum then costs next to nothing.
  constexpr std::size_t large = std::size_t{4} << 20;
  std::future<void> hashing;  // waits when it goes, however that comes
  if (in_order_ && bytes.size() >= large) {
    hashing = std::async(std::launch::async | std::launch::deferred, [this, bytes] { hasher_.update(bytes); });
  } else if (in_order_) {
    hasher_.update(bytes);
  }
  file_.write_at(offset, bytes);
  if (hashing.valid()) hashing.get();
}

void AtomicFile::commit() {
  INLAY_ASSERT(!temporary_.empty(), "{} was committed already", path().string());
  seal();
  if (const int error = injected_fault(DiskOperation::rename, path()); error != 0) cannot_write(path(), error);
  if (::rename(temporary_.c_str(), path().c_str()) != 0) cannot_write(path(), errno);
  temporary_.clear();
  sync_folder(folder_of(path()));  // the name itself is on disk only when its folder is
}

FileSum AtomicFile::sum() const {
  INLAY_ASSERT(in_order_, "{} was not written from its first byte to its last", path().string());
  return {hashed_, hasher_.digest()};
}

AppendFile::AppendFile(std::filesystem::path path)
    : path_(std::move(path)), descriptor_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) user_error("{}: cannot be opened for writing: {}", path_.string(), reason(errno));
}

AppendFile::~AppendFile() { ::close(descriptor_); }

void AppendFile::append(std::string_view text) {
  if (const int error = injected_fault(DiskOperation::write, path_); error != 0) cannot_write(path_, error);
  while (!text.empty()) {
    const ssize_t done = ::write(descriptor_, text.data(), text.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) cannot_write(path_, done < 0 ? errno : ENOSPC);
    text.remove_prefix(static_cast<std::size_t>(done));
  }
}

void AppendFile::sync() {
  int error = injected_fault(DiskOperation::sync, path_);
  if (error == 0 && ::fsync(descriptor_) != 0 && errno != EINVAL) error = errno;  // EINVAL: not a file on a disk
  if (error != 0) user_error("{}: cannot be synced to disk: {}", path_.string(), reason(error));
}

FileSum write_file_atomic(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  AtomicFile file(path);
  file.write_at(0, bytes);
  file.commit();
  return file.sum();
}

FileSum write_file_atomic(const std::filesystem::path& path, std::string_view text) {
  return write_file_atomic(path, std::as_bytes(std::span(text)));
}

}  // namespace inlay::io
