#include "io/write_behind.h"

#include <fcntl.h>

#include <cerrno>

#include "core/error.h"
#include "io/paths.h"

namespace inlay::io {

const WriteBehind::Calls WriteBehind::kernel{.sync = ::sync_file_range, .forget = ::posix_fadvise};

// A file system that cannot do this is no mistake. Anything else is: what the disk could not take is said once, and
// fsync() would not hear of it again.
void WriteBehind::bring_to_disk(int descriptor, const std::filesystem::path& path, std::uint64_t begin,
                                std::uint64_t end, unsigned how) const {
  if (calls_->sync(descriptor, static_cast<off_t>(begin), static_cast<off_t>(end - begin), how) == 0) return;
  if (errno == ENOSYS || errno == EOPNOTSUPP || errno == EINVAL || errno == ESPIPE) return;
  user_error("cannot write {}: {}", path.string(), reason(errno));
}

void WriteBehind::wrote(int descriptor, const std::filesystem::path& path, std::uint64_t offset, std::uint64_t bytes) {
  if (offset != written_) started_ = arrived_ = offset;  // not in order: begin anew from here
  written_ = offset + bytes;
  if (written_ - started_ < sizes_.piece) return;
  bring_to_disk(descriptor, path, started_, written_, SYNC_FILE_RANGE_WRITE);
  started_ = written_;
  if (started_ - arrived_ < sizes_.window) return;
  const std::uint64_t end = started_ - sizes_.window / 2;
  bring_to_disk(descriptor, path, arrived_, end,
                SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
  if (arrived_ >= sizes_.kept) {
    calls_->forget(descriptor, static_cast<off_t>(arrived_), static_cast<off_t>(end - arrived_), POSIX_FADV_DONTNEED);
  }
  arrived_ = end;
}

}  // namespace inlay::io
