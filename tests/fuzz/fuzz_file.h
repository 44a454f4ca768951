#pragma once

#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

namespace inlay::fuzz {

// A file with these bytes, for code that reads files: in memory where there is such a folder, and one at a time.
class File {
 public:
  File(std::string_view bytes, const char* name) : path_(folder() / name) {
    std::FILE* file = std::fopen(path_.c_str(), "wb");
    std::fwrite(bytes.data(), 1, bytes.size(), file);
    std::fclose(file);
  }
  ~File() { std::remove(path_.c_str()); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  // Its own for every process, and removed with it.
  struct Folder {
    Folder() {
      std::string name = std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : "/tmp";
      name += "/inlay-fuzz-XXXXXX";
      path = ::mkdtemp(name.data());
    }
    ~Folder() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
    std::filesystem::path path;
  };
  static const std::filesystem::path& folder() {
    static const Folder folder;
    return folder.path;
  }

  std::filesystem::path path_;
};

}  // namespace inlay::fuzz
