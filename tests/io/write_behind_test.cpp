#include "io/write_behind.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "support/files.h"

namespace inlay::io {
namespace {

using inlay::testing::read_text;
using inlay::testing::TempFolder;
using inlay::testing::user_error_of;
using ::testing::HasSubstr;

// As small as the pages that it works on, so that a short file passes through every case.
constexpr WriteBehind::Sizes small{.piece = 4096, .window = 16384, .kept = 32768};

class File {
 public:
  explicit File(std::filesystem::path path)
      : path_(std::move(path)), descriptor_(::open(path_.c_str(), O_WRONLY | O_CREAT, 0666)) {}
  ~File() { ::close(descriptor_); }

  void write(WriteBehind& behind, std::size_t offset, std::string_view bytes) const {
    ASSERT_EQ(::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset)),
              static_cast<ssize_t>(bytes.size()));
    behind.wrote(descriptor_, path_, offset, bytes.size());
  }

 private:
  std::filesystem::path path_;
  int descriptor_;
};

std::string text_of(std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>('a' + i % 23);
  return text;
}

TEST(IoWriteBehind, TheFileIsWhatWasWritten) {
  const TempFolder folder;
  const std::string text = text_of(200'000);
  for (const std::size_t step : {777, 4096, 5000, 70'000}) {
    const auto path = folder / std::to_string(step);
    const File file(path);
    WriteBehind behind(small);
    for (std::size_t begin = 0; begin < text.size(); begin += step) {
      file.write(behind, begin, std::string_view(text).substr(begin, step));
    }
    EXPECT_EQ(read_text(path), text) << step;
  }
}

TEST(IoWriteBehind, InAnyOrder) {
  const TempFolder folder;
  const std::string text = text_of(200'000);
  const auto path = folder / "backwards";
  const File file(path);
  WriteBehind behind(small);
  for (std::size_t begin = text.size(); begin > 0; begin -= 10'000) {
    file.write(behind, begin - 10'000, std::string_view(text).substr(begin - 10'000, 10'000));
  }
  file.write(behind, 0, std::string_view(text).substr(0, 100'000));  // again, over what is there
  EXPECT_EQ(read_text(path), text);
}

// A pipe has nothing that could be brought to disk, a closed file is an error.
TEST(IoWriteBehind, OnlyWhatAFileSystemCannotDoIsNoError) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  WriteBehind pipe(small);
  EXPECT_EQ(user_error_of([&] { pipe.wrote(ends[1], "a pipe", 0, 100'000); }), "<no error>");
  ::close(ends[0]);
  ::close(ends[1]);
  WriteBehind closed(small);
  EXPECT_THAT(user_error_of([&] { closed.wrote(ends[1], "model.safetensors", 0, 100'000); }),
              HasSubstr("cannot write model.safetensors: "));
}

}  // namespace
}  // namespace inlay::io
