#include "io/paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "io/hash.h"
#include "io/manifest.h"
#include "support/files.h"

namespace inlay::io {
namespace {

using inlay::testing::read_text;
using inlay::testing::TempFolder;
using inlay::testing::user_error_of;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

TEST(IoPaths, WhatIsNotThereIsAnAnswerAndTheRestAnErrorWithItsName) {
  const TempFolder folder;
  folder.write("file", "12345");
  EXPECT_FALSE(io::exists(folder / "nothing") || is_file(folder / "file/below") || is_folder(folder / "file"));
  EXPECT_TRUE(io::exists(folder / "file") && is_file(folder / "file") && is_folder(folder.path()));
  EXPECT_EQ(file_bytes(folder / "file"), 5u);
  fs::create_symlink(folder / "loop", folder / "loop");
  for (const fs::path& path : {folder / "loop", folder / std::string(300, 'n')}) {
    const std::string name = path.string() + ": ";
    EXPECT_THAT(user_error_of([&] { io::exists(path); }), HasSubstr(name));
    EXPECT_THAT(user_error_of([&] { is_file(path); }), HasSubstr(name));
    EXPECT_THAT(user_error_of([&] { is_folder(path); }), HasSubstr(name));
    EXPECT_THAT(user_error_of([&] { file_bytes(path); }), HasSubstr(name));
    EXPECT_THAT(user_error_of([&] { entries_of(path); }), HasSubstr(name));
    EXPECT_THAT(user_error_of([&] { create_folders(path); }), HasSubstr(name));
  }
  EXPECT_THAT(user_error_of([&] { create_folders(folder / "file/below"); }), HasSubstr("file: cannot be created"));
}

TEST(IoPaths, FoldersAreMadeWithThoseAbove) {
  const TempFolder folder;
  create_folders(folder / "a/b/c/");
  create_folders(folder / "a/b/c");
  EXPECT_TRUE(fs::is_directory(folder / "a/b/c"));
  io::remove_all(folder / "a");
  io::remove_all(folder / "a");
  EXPECT_TRUE(entries_of(folder.path()).empty());
}

TEST(IoPaths, OnlyOldTemporaryFilesOfProcessesThatAreGoneAreRemoved) {
  const TempFolder folder;
  // Process numbers end well below this one.
  const std::string gone = ".file.tmp-2000000000-0", young = ".file.tmp-2000000000-1",
                    alive = fmt::format(".file.tmp-{}-0", ::getpid());
  for (const std::string& name : {gone, young, alive, std::string("file.tmp-2000000000-0"), std::string(".tmp-x-1")}) {
    folder.write(name, "half");
    if (name != young) fs::last_write_time(folder / name, fs::file_time_type::clock::now() - std::chrono::hours(25));
  }
  EXPECT_TRUE(is_temporary(gone));
  remove_stale_temporaries(folder.path());
  remove_stale_temporaries(folder / "nowhere");
  EXPECT_FALSE(fs::exists(folder / gone));
  EXPECT_EQ(folder.entry_count(), 4u);
}

TEST(IoManifest, KnowsEveryBitOfEveryFileAndOfItself) {
  const TempFolder folder;
  FileSums sums;
  sums["a"] = write_file_atomic(folder / "a", std::string_view("some bytes"));
  sums["b"] = write_file_atomic(folder / "b", std::string_view(""));
  EXPECT_EQ(sums["a"].xxh3, content_hash(std::as_bytes(std::span(std::string_view("some bytes")))));
  write_manifest(folder / "manifest.json", sums);
  EXPECT_EQ(read_manifest(folder / "manifest.json"), sums);
  std::uint64_t read = 0;
  const auto verify = [&] {
    verify_files(folder.path(), sums, [&](std::uint64_t done, std::uint64_t) { read = done; });
  };
  EXPECT_NO_THROW(verify());
  EXPECT_EQ(read, 10u);
  folder.write("a", "some bytez");
  EXPECT_THROW(verify(), DamagedFile);
  folder.write("a", "some byte");
  EXPECT_THROW(verify(), DamagedFile);
  fs::remove(folder / "a");
  EXPECT_THROW(verify(), DamagedFile);
  const std::string whole = read_text(folder / "manifest.json");
  for (std::size_t at = 0; at < whole.size(); ++at) {
    if (whole[at] == ' ' || whole[at] == '\n') continue;  // between tokens: it says the same
    std::string changed = whole;
    changed[at] ^= 2;
    folder.write("manifest.json", changed);
    EXPECT_THROW(read_manifest(folder / "manifest.json"), DamagedFile) << at;
  }
}

TEST(IoFile, ASumWithoutReadingAgainNeedsTheOrder) {
  const TempFolder folder;
  AtomicFile file(folder / "file");
  const std::string text = "0123456789";
  const auto bytes = std::as_bytes(std::span(text));
  file.write_at(0, bytes.first(4));
  file.write_at(4, bytes.subspan(4));
  file.commit();
  EXPECT_EQ(file.sum(), (FileSum{10, content_hash(bytes)}));
  AtomicFile other(folder / "other");
  other.write_at(4, bytes.subspan(4));
  other.write_at(0, bytes.first(4));
  EXPECT_THROW(other.sum(), InternalError);
}

}  // namespace
}  // namespace inlay::io
