#include "io/input_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "io/hash.h"
#include "support/files.h"

namespace inlay::io {
namespace {

using inlay::testing::TempFolder;
using inlay::testing::user_error_of;
using ::testing::EndsWith;
using ::testing::StartsWith;

std::string read(const InputFile& file, std::uint64_t offset, std::size_t count) {
  std::string text(count, '?');
  file.read_at(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

TEST(IoInputFile, ReadsPieces) {
  const TempFolder folder;
  const InputFile file(folder.write("f", "0123456789"));
  EXPECT_EQ(file.size(), 10u);
  EXPECT_EQ(read(file, 3, 4), "3456");
  EXPECT_EQ(read(file, 10, 0), "");
  const std::string part = "34567";
  EXPECT_EQ(content_hash(file, 3, 8), content_hash(std::as_bytes(std::span(part))));
}

// A mapping of such a file would end the process with SIGBUS.
TEST(IoInputFile, AFileThatWasCutShortIsAnErrorWithItsName) {
  const TempFolder folder;
  const auto path = folder.write("f", std::string(100'000, 'x'));
  const InputFile file(path);
  std::filesystem::resize_file(path, 50);
  EXPECT_EQ(read(file, 0, 50).size(), 50u);
  EXPECT_EQ(user_error_of([&] { read(file, 40, 20); }),
            path.string() + ": was cut short while it was in use: it had 100000 bytes, and byte 50 is gone");
  std::filesystem::remove(path);
  EXPECT_EQ(read(file, 0, 50).size(), 50u);  // the name is gone, the file is not
}

TEST(IoInputFile, OtherFilesAreRefused) {
  const TempFolder folder;
  EXPECT_THAT(user_error_of([&] { InputFile(folder / "absent"); }), EndsWith("absent: no such file"));
  EXPECT_THAT(user_error_of([&] { InputFile(folder.path()); }), EndsWith(": is not a regular file"));
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(user_error_of([&] { InputFile(folder / "pipe"); }), EndsWith("pipe: is not a regular file"));
}

TEST(IoInputFile, MayBeInMemory) {
  InputFile file = InputFile::in_memory("notes");
  EXPECT_TRUE(file.is_in_memory());
  const std::string text = "abc";
  file.append(std::as_bytes(std::span(text)));
  file.append(std::as_bytes(std::span(text)));
  EXPECT_EQ(file.size(), 6u);
  EXPECT_EQ(read(file, 2, 3), "cab");
  EXPECT_THAT(user_error_of([&] { read(file, 5, 2); }), StartsWith("notes: was cut short"));
}

TEST(IoInputFile, IdentityChangesWithTheFile) {
  const TempFolder folder;
  const auto path = folder.write("f", "abc");
  const std::string before = InputFile(path).identity();
  EXPECT_EQ(InputFile(path).identity(), before);
  EXPECT_NE(InputFile(folder.write("g", "abc")).identity(), before);
  std::filesystem::last_write_time(path, std::filesystem::last_write_time(path) + std::chrono::seconds(1));
  EXPECT_NE(InputFile(path).identity(), before);
}

}  // namespace
}  // namespace inlay::io
