#include "io/write_behind.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <numeric>
#include <ostream>
#include <string>
#include <vector>

#include "support/files.h"

namespace inlay::io {
namespace {

using inlay::testing::read_text;
using inlay::testing::TempFolder;
using inlay::testing::user_error_of;
using ::testing::HasSubstr;

// As small as the pages that it works on, so that a short file passes through every case.
constexpr WriteBehind::Sizes small{.piece = 4096, .window = 16384, .kept = 32768};

// What was asked of the kernel, and that it did it.
struct Request {
  char what;  // s: send; w: send and wait; f: forget
  off_t begin, end;
  bool operator==(const Request&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Request& r) { return out << r.what << r.begin << '-' << r.end; }
std::vector<Request> requests;

const WriteBehind::Calls listening{.sync =
                                       [](int descriptor, off_t begin, off_t bytes, unsigned how) {
                                         const bool waits = (how & SYNC_FILE_RANGE_WAIT_AFTER) != 0;
                                         requests.push_back({waits ? 'w' : 's', begin, begin + bytes});
                                         return ::sync_file_range(descriptor, begin, bytes, how);
                                       },
                                   .forget =
                                       [](int descriptor, off_t begin, off_t bytes, int advice) {
                                         requests.push_back({'f', begin, begin + bytes});
                                         return ::posix_fadvise(descriptor, begin, bytes, advice);
                                       }};

// Writes a text's parts of so many bytes where they belong, in the order of their numbers.
std::string written(const std::filesystem::path& path, const std::string& text, std::size_t part,
                    const std::vector<std::size_t>& order, const WriteBehind::Sizes& sizes = small) {
  requests.clear();
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT, 0666);
  WriteBehind behind(sizes, listening);
  for (const std::size_t number : order) {
    const std::string_view bytes = std::string_view(text).substr(number * part, part);
    EXPECT_EQ(::pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(number * part)), std::ssize(bytes));
    behind.wrote(descriptor, path, number * part, bytes.size());
  }
  ::close(descriptor);
  return read_text(path);
}

std::string text_of(std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>('a' + i % 23);
  return text;
}

std::vector<std::size_t> forwards(std::size_t parts) {
  std::vector<std::size_t> order(parts);
  std::iota(order.begin(), order.end(), std::size_t{0});
  return order;
}

// Pieces of 4 KiB go when they are whole; when 16 KiB are on their way, the first half must have arrived; and what lies
// behind the first 32 KiB is forgotten then.
TEST(IoWriteBehind, PiecesAreSentAwaitedAndForgotten) {
  const TempFolder folder;
  const std::string text = text_of(60'000);
  EXPECT_EQ(written(folder / "file", text, 2048, forwards(30)), text);
  std::vector<Request> expected;
  for (off_t end = 4096; end <= 60'000; end += 4096) {
    expected.push_back({'s', end - 4096, end});
    if (end < 16384 || end % 8192 != 0) continue;
    expected.push_back({'w', end - 16384, end - 8192});
    if (end - 16384 >= 32768) expected.push_back({'f', end - 16384, end - 8192});
  }
  EXPECT_EQ(requests, expected);
  EXPECT_THAT(requests, ::testing::Contains(Request{'f', 32768, 40960}));

  EXPECT_EQ(
      written(folder / "kept", text, 2048, forwards(30), {.piece = 4096, .window = 16384, .kept = WriteBehind::all}),
      text);
  std::erase_if(expected, [](const Request& r) { return r.what == 'f'; });
  EXPECT_EQ(requests, expected);
}

TEST(IoWriteBehind, InAnyOrder) {
  const TempFolder folder;
  const std::string text = text_of(20'000);
  EXPECT_EQ(written(folder / "backwards", text, 5000, {3, 2, 1, 0, 1}), text);
  // Each begins anew, but for the last, which goes on where the one before it ended.
  EXPECT_THAT(requests,
              ::testing::ElementsAre(Request{'s', 15000, 20000}, Request{'s', 10000, 15000}, Request{'s', 5000, 10000},
                                     Request{'s', 0, 5000}, Request{'s', 5000, 10000}));
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
