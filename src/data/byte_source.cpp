#include "data/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <cerrno>
#include <system_error>
#include <vector>

#include "core/arena.h"
#include "core/error.h"

namespace inlay::data {

namespace {

class PlainFile final : public ByteSource {
 public:
  explicit PlainFile(const std::filesystem::path& path) : path_(path.string()) {
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor_ < 0 && errno == ENOENT) user_error("{}: no such file", path_);
    if (descriptor_ < 0) user_error("{}: cannot be opened: {}", path_, std::generic_category().message(errno));
    struct stat status {};
    if (::fstat(descriptor_, &status) == 0 && S_ISDIR(status.st_mode)) {
      ::close(descriptor_);
      user_error("{}: is a folder, expected a file", path_);
    }
    // Of text in UTF-16, as some programs of Windows write it: read as UTF-8 it would be learned as nonsense.
    unsigned char mark[2] = {};
    const bool marked = ::pread(descriptor_, mark, sizeof mark, 0) == sizeof mark;
    if (marked && ((mark[0] == 0xFF && mark[1] == 0xFE) || (mark[0] == 0xFE && mark[1] == 0xFF))) {
      ::close(descriptor_);
      user_error("{}: is text in UTF-16, expected UTF-8; iconv -f UTF-16 -t UTF-8 converts it", path_);
    }
  }
  ~PlainFile() override { ::close(descriptor_); }
  PlainFile(const PlainFile&) = delete;
  PlainFile& operator=(const PlainFile&) = delete;

  std::size_t read(std::span<char> to) override {
    for (;;) {
      const ssize_t got = ::read(descriptor_, to.data(), to.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) user_error("{}: cannot be read: {}", path_, std::generic_category().message(errno));
      position_ += static_cast<std::uint64_t>(got);
      return static_cast<std::size_t>(got);
    }
  }
  std::uint64_t position() const override { return position_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t position_ = 0;
};

// Input of a decompressor, refilled when it is used up.
class Compressed : public ByteSource {
 public:
  explicit Compressed(const std::filesystem::path& path) : file_(path) {}
  std::uint64_t position() const override { return file_.position() - held_.size(); }

 protected:
  // False at the end of the file.
  bool refill() {
    if (held_.empty()) held_ = std::span(buffer_).first(file_.read(buffer_));
    return !held_.empty();
  }
  [[noreturn]] void damaged() const { user_error("{}: is damaged, or cut short", file_.path()); }

  PlainFile file_;
  std::vector<char> buffer_ = std::vector<char>(std::size_t{1} << 20);
  std::span<char> held_;
};

class GzipFile final : public Compressed {
 public:
  explicit GzipFile(const std::filesystem::path& path) : Compressed(path) {
    constexpr int gzip = 15 + 16;
    if (inflateInit2(&stream_, gzip) != Z_OK) user_error("{}: not enough memory to decompress it", file_.path());
  }
  ~GzipFile() override { inflateEnd(&stream_); }
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  std::size_t read(std::span<char> to) override {
    stream_.next_out = reinterpret_cast<Bytef*>(to.data());
    stream_.avail_out = static_cast<uInt>(to.size());
    while (stream_.avail_out == to.size()) {
      if (!refill()) {
        if (inside_) damaged();
        return 0;
      }
      if (!inside_) inflateReset(&stream_);  // a file may be several, one behind the other
      inside_ = true;
      stream_.next_in = reinterpret_cast<Bytef*>(held_.data());
      stream_.avail_in = static_cast<uInt>(held_.size());
      const int result = inflate(&stream_, Z_NO_FLUSH);
      if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) damaged();
      held_ = held_.last(stream_.avail_in);
      if (result == Z_STREAM_END) inside_ = false;
    }
    return to.size() - stream_.avail_out;
  }

 private:
  z_stream stream_{};
  bool inside_ = false;
};

class ZstdFile final : public Compressed {
 public:
  explicit ZstdFile(const std::filesystem::path& path) : Compressed(path), stream_(ZSTD_createDStream()) {
    if (stream_ == nullptr) user_error("{}: not enough memory to decompress it", file_.path());
  }
  ~ZstdFile() override { ZSTD_freeDStream(stream_); }
  ZstdFile(const ZstdFile&) = delete;
  ZstdFile& operator=(const ZstdFile&) = delete;

  std::size_t read(std::span<char> to) override {
    ZSTD_outBuffer out{to.data(), to.size(), 0};
    while (out.pos == 0) {
      if (!full_ && !refill()) {
        if (inside_) damaged();
        return 0;
      }
      ZSTD_inBuffer in{held_.data(), held_.size(), 0};
      const std::size_t left = ZSTD_decompressStream(stream_, &out, &in);
      if (ZSTD_isError(left) != 0) damaged();
      // Where nothing came and nothing went, what it asks for is the beginning of a text that may never follow.
      if (left == 0 || in.pos > 0 || out.pos > 0) inside_ = left != 0;
      full_ = out.pos == out.size;  // there may be more without further input
      held_ = held_.subspan(in.pos);
    }
    return out.pos;
  }

 private:
  ZSTD_DStream* stream_;
  bool inside_ = false, full_ = false;
};

}  // namespace

std::unique_ptr<ByteSource> open_source(const std::filesystem::path& path) {
  if (path.extension() == ".gz") return std::make_unique<GzipFile>(path);
  if (path.extension() == ".zst") return std::make_unique<ZstdFile>(path);
  return std::make_unique<PlainFile>(path);
}

bool is_compressed(const std::filesystem::path& path) {
  return path.extension() == ".gz" || path.extension() == ".zst";
}

std::string content_extension(const std::filesystem::path& path) {
  return is_compressed(path) ? path.stem().extension().string() : path.extension().string();
}

std::string read_all(const std::filesystem::path& path, std::size_t max_bytes) {
  const std::unique_ptr<ByteSource> source = open_source(path);
  std::string text;
  for (std::vector<char> piece(std::size_t{1} << 20);;) {
    const std::size_t got = source->read(piece);
    if (got == 0) return text;
    if (text.size() + got > max_bytes) user_error("{}: more than {}", path.string(), format_bytes(max_bytes));
    text.append(piece.data(), got);
  }
}

}  // namespace inlay::data
