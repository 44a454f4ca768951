#include "io/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io/hash.h"
#include "io/safetensors_writer.h"
#include "support/files.h"

namespace inlay::io {
namespace {

using inlay::testing::read_text;
using inlay::testing::TempFolder;
using inlay::testing::user_error_of;
using ::testing::EndsWith;
using ::testing::HasSubstr;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// Runs an action in a child whose files may have at most max_bytes, and hands back the message of its UserError.
template <class Action>
std::string error_with_small_disk(rlim_t max_bytes, Action&& action) {
  int channel[2];
  if (::pipe(channel) != 0) return "<no pipe>";
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);  // the write fails with EFBIG instead
    const rlimit limit{max_bytes, max_bytes};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string message = user_error_of(action);
    (void)!::write(channel[1], message.data(), message.size());
    ::_exit(0);
  }
  ::close(channel[1]);
  std::string message(4096, '\0');
  const ssize_t got = ::read(channel[0], message.data(), message.size());
  ::close(channel[0]);
  ::waitpid(child, nullptr, 0);
  message.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return message;
}

TEST(IoFile, AtomicWriteReplacesTheWholeFile) {
  const TempFolder folder;
  const auto path = folder.write("a.txt", "the old and longer text");
  write_file_atomic(path, std::string_view("new"));
  EXPECT_EQ(read_text(path), "new");
  write_file_atomic(folder / "empty", std::string_view());
  EXPECT_EQ(read_text(folder / "empty"), "");
  EXPECT_EQ(folder.entry_count(), 2u);
}

TEST(IoFile, WithoutCommitNothingChanges) {
  const TempFolder folder;
  const auto path = folder.write("a.txt", "old");
  {
    AtomicFile file(path);
    file.write_at(0, bytes_of("new"));
    EXPECT_EQ(folder.entry_count(), 2u);
    file.seal();
    EXPECT_EQ(read_text(path), "old");
  }
  EXPECT_EQ(read_text(path), "old");
  EXPECT_EQ(folder.entry_count(), 1u);
}

TEST(IoFile, WriteErrorsNameTheFile) {
  const TempFolder folder;
  EXPECT_THAT(user_error_of([&] { write_file_atomic(folder / "no/such/file", std::string_view("x")); }),
              HasSubstr("no/such/file: the folder "));
  EXPECT_THAT(user_error_of([&] { write_file_atomic(folder.path(), std::string_view("x")); }),
              EndsWith("Is a directory"));
  const auto file = folder.write("file", "");
  EXPECT_THAT(user_error_of([&] { write_file_atomic(file / "below", std::string_view("x")); }),
              EndsWith("file/below: Not a directory"));
  if (::geteuid() != 0) {
    std::filesystem::permissions(folder.path(),
                                 std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
    EXPECT_THAT(user_error_of([&] { write_file_atomic(folder / "x", std::string_view("x")); }),
                EndsWith("x: Permission denied"));
  }
}

TEST(IoFile, DiskFullNamesTheFileAndLeavesNothing) {
  const TempFolder folder;
  const auto old = folder.write("out.bin", "old");
  const std::string large(100'000, 'x');
  EXPECT_EQ(error_with_small_disk(65536, [&] { write_file_atomic(old, std::string_view(large)); }),
            "cannot write " + old.string() + ": File too large");
  EXPECT_EQ(read_text(old), "old");
  EXPECT_EQ(folder.entry_count(), 1u);

  // A safetensors file asks for its space before any tensor is computed.
  const auto model = folder / "model.safetensors";
  const std::string message = error_with_small_disk(65536, [&] {
    SafetensorsWriter(model, {{.name = "w", .dtype = DType::f32, .shape = {100, 1000}}});
  });
  EXPECT_THAT(message, HasSubstr("cannot write " + model.string()));
  EXPECT_THAT(message, HasSubstr("File too large"));
  EXPECT_EQ(folder.entry_count(), 1u);
}

TEST(IoFile, ReadsAndMaps) {
  const TempFolder folder;
  const auto path = folder.write("a", std::string(10000, 'q'));
  EXPECT_EQ(read_file(path, 10000), std::string(10000, 'q'));
  EXPECT_THAT(user_error_of([&] { read_file(path, 9999); }), HasSubstr("at most"));
  const MappedFile mapped(path);
  ASSERT_EQ(mapped.bytes().size(), 10000u);
  mapped.prefetch(mapped.bytes());
  mapped.drop(mapped.bytes().subspan(5000, 4999));
  for (const std::byte byte : mapped.bytes()) ASSERT_EQ(byte, std::byte{'q'});
  EXPECT_TRUE(MappedFile(folder.write("empty", "")).bytes().empty());
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(user_error_of([&] { MappedFile(folder / "pipe"); }), EndsWith("pipe: is not a regular file"));
}

TEST(IoHash, DependsOnEveryByteAndNotOnTheCut) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 37 + i / 7);
  for (const std::size_t length : {0u, 1u, 63u, 64u, 65u, 128u, 300u}) {
    const auto bytes = bytes_of(text).first(length);
    const std::uint64_t expected = content_hash(bytes);
    for (std::size_t cut = 0; cut <= length; ++cut) {
      ASSERT_EQ(Hasher().update(bytes.first(cut)).update(bytes.subspan(cut)).digest(), expected);
    }
    EXPECT_NE(content_hash(bytes, 1), expected);
    std::string changed = text;
    for (std::size_t i = 0; i < length; ++i) {
      changed[i] = static_cast<char>(changed[i] ^ 1);
      ASSERT_NE(content_hash(bytes_of(changed).first(length)), expected) << i;
      changed[i] = static_cast<char>(changed[i] ^ 1);
    }
  }
  // Zeros differ by their number alone.
  const std::string zeros(200, '\0');
  std::set<std::uint64_t> seen;
  for (std::size_t length = 0; length <= 200; ++length) seen.insert(content_hash(bytes_of(zeros).first(length)));
  EXPECT_EQ(seen.size(), 201u);
}

// The values are stored in files: they are XXH3's, on every machine.
TEST(IoHash, IsXxh3) {
  EXPECT_EQ(content_hash({}), 0x2D06800538D394C2u);
  EXPECT_EQ(Hasher().digest(), 0x2D06800538D394C2u);
  const std::string letter = "a";
  EXPECT_EQ(content_hash(bytes_of(letter)), 0xE6C632B61E964E1Fu);
}

}  // namespace
}  // namespace inlay::io
