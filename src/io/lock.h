#pragma once

#include <filesystem>
#include <functional>
#include <memory>

// What only one process may do at a time, on this machine and, where the file system passes locks on, on others. The
// kernel ends a lock with its process, however that ends.
namespace inlay::io {

// Keeps a folder for one process as long as it lives. One that another process keeps is a UserError; where the file
// system knows no locks, nothing is kept.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  // The same where no other process keeps it; null where one does.
  static std::unique_ptr<FolderLock> if_free(const std::filesystem::path& folder);

  bool held() const { return held_; }

 private:
  FolderLock() = default;
  bool keep(const std::filesystem::path& folder);  // false: another process does

  int descriptor_ = -1;
  bool held_ = false;
};

// A turn at something, by a file that is there for as long as somebody has the turn. Where it cannot be made, or the
// file system knows no locks, everybody has a turn at once.
class TurnLock {
 public:
  // While another process has its turn, waiting() is called a few times per second; what it throws ends the waiting.
  TurnLock(std::filesystem::path file, const std::function<void()>& waiting);
  ~TurnLock();
  TurnLock(const TurnLock&) = delete;
  TurnLock& operator=(const TurnLock&) = delete;

  bool held() const { return descriptor_ >= 0; }

 private:
  std::filesystem::path file_;
  int descriptor_ = -1;
};

}  // namespace inlay::io
