#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

struct stat;

namespace inlay::io {

// A file that is kept open and read piece by piece. Whatever is not there any more when it is read, because the file
// was cut short meanwhile, is a UserError that names it; a mapping would end the process. Reading changes nothing, so
// threads may share one.
class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path);
  // An empty one that is nowhere but in memory (or, where the system has no such files, in the folder for temporary
  // ones, without a name). It grows by append() and goes with the last that holds it.
  static InputFile in_memory(std::string name);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;

  const std::string& name() const { return name_; }
  bool is_in_memory() const { return is_in_memory_; }
  std::uint64_t size() const { return size_; }  // when it was opened, and what was appended
  void read_at(std::uint64_t offset, std::span<std::byte> to) const;
  void append(std::span<const std::byte> bytes);

  // What tells this file, in this state, from every other one of the machine.
  std::string identity() const;

 private:
  InputFile(std::string name, int descriptor) : name_(std::move(name)), descriptor_(descriptor), is_in_memory_(true) {}
  struct stat status() const;
  [[noreturn]] void fail(std::string_view what) const;

  std::string name_;
  int descriptor_ = -1;
  bool is_in_memory_ = false;
  std::uint64_t size_ = 0;
};

// XXH3 of a range of a file, read through a small buffer; between() is called now and then with the bytes behind it.
std::uint64_t content_hash(const InputFile& file, std::uint64_t begin, std::uint64_t end,
                           const std::function<void(std::uint64_t done)>& between = {});

}  // namespace inlay::io
