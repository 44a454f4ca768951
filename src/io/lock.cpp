#include "io/lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "core/error.h"

namespace inlay::io {

FolderLock::FolderLock(const std::filesystem::path& folder) {
  if (!keep(folder)) user_error("{}: another process is using this folder", folder.string());
}

std::unique_ptr<FolderLock> FolderLock::if_free(const std::filesystem::path& folder) {
  std::unique_ptr<FolderLock> lock(new FolderLock());
  return lock->keep(folder) ? std::move(lock) : nullptr;
}

bool FolderLock::keep(const std::filesystem::path& folder) {
  descriptor_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor_ < 0) return true;
  held_ = ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0;
  if (held_ || errno != EWOULDBLOCK) return true;
  ::close(std::exchange(descriptor_, -1));
  return false;
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

namespace {

// Whether a name still means the file that is open: who had the turn before has removed it.
bool is_named(int descriptor, const std::filesystem::path& file) {
  struct stat open {
  }, named{};
  return ::fstat(descriptor, &open) == 0 && ::stat(file.c_str(), &named) == 0 && open.st_dev == named.st_dev &&
         open.st_ino == named.st_ino;
}

}  // namespace

TurnLock::TurnLock(std::filesystem::path file, const std::function<void()>& waiting) : file_(std::move(file)) {
  for (;;) {
    const int descriptor = ::open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0) return;
    const int error = ::flock(descriptor, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    if (error == 0 && is_named(descriptor, file_)) {
      descriptor_ = descriptor;
      return;
    }
    ::close(descriptor);
    if (error == 0 || error == EINTR) continue;
    if (error != EWOULDBLOCK) {
      ::unlink(file_.c_str());
      return;
    }
    waiting();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

TurnLock::~TurnLock() {
  if (descriptor_ < 0) return;
  ::unlink(file_.c_str());  // first, so that nobody gets a turn by a name that is about to go
  ::close(descriptor_);
}

}  // namespace inlay::io
