#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "io/hash.h"
#include "io/write_behind.h"

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

// A file that is being written, at any place and in any order, perhaps by several processes at once. Whatever goes
// wrong (full disk, no permission) is a UserError naming the file.
class OutputFile {
 public:
  static OutputFile create(const std::filesystem::path& path);  // anew
  static OutputFile open(const std::filesystem::path& path);    // one that is there
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  // Takes the disk space at once where the file system can, so that a full disk is noticed before the work is done.
  void reserve(std::uint64_t bytes);
  void resize(std::uint64_t bytes);
  std::uint64_t size() const;
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  // Brings what was written here to disk and closes the file.
  void seal();

  const std::filesystem::path& path() const { return path_; }

 private:
  friend class AtomicFile;
  // The path is for messages.
  OutputFile(std::filesystem::path path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  static OutputFile opened(const std::filesystem::path& path, int flags);

  std::filesystem::path path_;
  int descriptor_;
  WriteBehind behind_;
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

  void reserve(std::uint64_t bytes) { file_.reserve(bytes); }
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  // Brings the bytes to disk and closes the file, still under its hidden name. Optional before commit().
  void seal() { file_.seal(); }
  void commit();

  const std::filesystem::path& path() const { return file_.path(); }
  // Of what was written, without reading it again: all of it, each byte once, from the first to the last.
  FileSum sum() const;

 private:
  std::filesystem::path temporary_;
  OutputFile file_;
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

FileSum write_file_atomic(const std::filesystem::path& path, std::span<const std::byte> bytes);
FileSum write_file_atomic(const std::filesystem::path& path, std::string_view text);

}  // namespace inlay::io
