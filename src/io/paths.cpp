#include "io/paths.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <optional>
#include <system_error>

#include "core/error.h"
#include "io/fault.h"
#include "io/file.h"

namespace inlay::io {

namespace fs = std::filesystem;

namespace {

fs::file_status status_of(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::none) user_error("{}: cannot be read: {}", path.string(), error.message());
  return status;
}

std::error_code injected(DiskOperation operation, const fs::path& path) {
  return {injected_fault(operation, path), std::generic_category()};
}

// The process that writes, or wrote, under a temporary name.
std::optional<pid_t> writer_of(const fs::path& path) {
  const std::string name = path.filename().string();
  const std::size_t mark = name.rfind(".tmp-");
  if (name.empty() || name[0] != '.' || mark == name.npos) return std::nullopt;
  const char *at = name.data() + mark + 5, *end = name.data() + name.size();
  pid_t process = 0;
  unsigned number = 0;
  const auto [dash, error] = std::from_chars(at, end, process);
  if (error != std::errc() || process <= 0 || dash == end || *dash != '-') return std::nullopt;
  const auto [rest, wrong] = std::from_chars(dash + 1, end, number);
  if (wrong != std::errc() || rest != end) return std::nullopt;
  return process;
}

}  // namespace

std::string reason(int error) { return std::generic_category().message(error); }

bool exists(const fs::path& path) { return fs::exists(status_of(path)); }
bool is_folder(const fs::path& path) { return fs::is_directory(status_of(path)); }
bool is_file(const fs::path& path) { return fs::is_regular_file(status_of(path)); }

std::uint64_t file_bytes(const fs::path& path) {
  std::error_code error;
  const std::uint64_t bytes = fs::file_size(path, error);
  if (error) user_error("{}: cannot be read: {}", path.string(), error.message());
  return bytes;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator at(folder, error); !error && at != fs::directory_iterator(); at.increment(error)) {
    entries.push_back(at->path());
  }
  if (error) user_error("{}: cannot be read: {}", folder.string(), error.message());
  std::ranges::sort(entries);
  return entries;
}

fs::path real_path(const fs::path& path) {
  std::error_code error;
  fs::path real = fs::weakly_canonical(path, error);
  if (error) user_error("{}: cannot be read: {}", path.string(), error.message());
  return real;
}

void create_folders(const fs::path& folder) {
  if (folder.empty() || is_folder(folder)) return;
  const fs::path parent = folder.has_filename() ? folder.parent_path() : folder.parent_path().parent_path();
  create_folders(parent);
  std::error_code error = injected(DiskOperation::make_folder, folder);
  if (!error) fs::create_directory(folder, error);
  if (error) user_error("{}: cannot be created: {}", folder.string(), error.message());
  sync_folder(parent.empty() ? "." : parent);
}

void link_or_copy(const fs::path& from, const fs::path& to) {
  std::error_code error = injected(DiskOperation::link, to);
  if (!error) fs::create_hard_link(from, to, error);
  if (!error) return;
  if (error == std::errc::no_space_on_device) user_error("cannot write {}: {}", to.string(), error.message());
  write_file_atomic(to, MappedFile(from).bytes());
}

void rename(const fs::path& from, const fs::path& to) {
  std::error_code error = injected(DiskOperation::rename, to);
  if (!error) fs::rename(from, to, error);
  if (error) user_error("{}: cannot be renamed to {}: {}", from.string(), to.string(), error.message());
}

void remove_all(const fs::path& path) {
  injected_fault(DiskOperation::remove, path);
  std::error_code error;
  fs::remove_all(path, error);
  if (error) user_error("{}: cannot be removed: {}", path.string(), error.message());
}

void sync_folder(const fs::path& folder) {
  int error = injected_fault(DiskOperation::sync, folder);
  if (error == 0) {
    const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return;  // one that may be written to and not read: nothing to be done
    if (::fsync(descriptor) != 0 && errno != EINVAL) error = errno;  // EINVAL: this file system cannot
    ::close(descriptor);
  }
  if (error != 0) {
    user_error("{}: cannot be synced to disk: {}", folder.string(), std::generic_category().message(error));
  }
}

bool is_temporary(const fs::path& path) { return writer_of(path).has_value(); }

void remove_stale_temporaries(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error); !error && at != fs::directory_iterator(); at.increment(error)) {
    const auto writer = writer_of(at->path());
    if (!writer || ::kill(*writer, 0) == 0 || errno != ESRCH) continue;
    std::error_code ignored;
    const auto written = fs::last_write_time(at->path(), ignored);
    if (ignored || fs::file_time_type::clock::now() - written < std::chrono::hours(24)) continue;
    fs::remove(at->path(), ignored);
  }
}

}  // namespace inlay::io
