#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "io/hash.h"

namespace inlay::io {

// The whole of a regular file. Missing, unreadable, a folder, or more than max_bytes: UserError naming it.
std::string read_file(const std::filesystem::path& path, std::size_t max_bytes);

// A file's bytes, mapped read-only. Pages are read when touched and can be given back with drop(). The file must not
// shrink while it is mapped: touching a page that is gone ends the process (SIGBUS), as for every mapping.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

  // Asks the kernel to read a range ahead of its use.
  void prefetch(std::span<const std::byte> range) const;
  // Takes a range out of this process's resident memory; touching it again reads it again.
  void drop(std::span<const std::byte> range) const;

 private:
  void advise(std::span<const std::byte> range, int advice) const;

  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// What a file must be, to the last bit.
struct FileSum {
  std::uint64_t bytes = 0, xxh3 = 0;
  bool operator==(const FileSum&) const = default;
};

// A file that appears under its name only when it is complete. It is written under a hidden name in the same folder;
// commit() brings it to disk and renames it. Destroyed before commit(), it leaves nothing behind. Whatever goes wrong
// (full disk, no permission) is a UserError naming the file.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;

  // Takes the disk space at once where the file system can, so that a full disk is noticed before the work is done.
  void reserve(std::uint64_t bytes);
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  // Brings the bytes to disk and closes the file, still under its hidden name. Optional before commit().
  void seal();
  void commit();

  const std::filesystem::path& path() const { return path_; }
  // Of what was written, without reading it again: all of it, each byte once, from the first to the last.
  FileSum sum() const;

 private:
  [[noreturn]] void fail(int error) const;
  void discard() noexcept;

  std::filesystem::path path_, temporary_;
  int descriptor_ = -1;
  Hasher hasher_;
  std::uint64_t hashed_ = 0;  // bytes; those that are written in order
  bool in_order_ = true;
};

// A file that grows by whole lines. What is appended outlives the process; after sync() also the machine.
class AppendFile {
 public:
  explicit AppendFile(std::filesystem::path path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  void append(std::string_view text);
  void sync();

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

// Keeps a folder for one process as long as it lives, and however it ends. One that another process keeps is a
// UserError; where the file system knows no locks, nothing is kept.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  bool held() const { return held_; }

 private:
  int descriptor_ = -1;
  bool held_ = false;
};

FileSum write_file_atomic(const std::filesystem::path& path, std::span<const std::byte> bytes);
FileSum write_file_atomic(const std::filesystem::path& path, std::string_view text);

}  // namespace inlay::io
