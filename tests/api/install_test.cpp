#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>

#include "support/command.h"

// What another project gets: an installation into an empty folder, and a program of its own against it.
namespace inlay {
namespace {

using ::testing::HasSubstr;

namespace fs = std::filesystem;
using testing::CommandResult;
using testing::run;
using testing::TempFolder;

fs::path build_folder() { return testing::program().parent_path(); }

TEST(ApiInstall, HeadersIncludeOnlyTheStandardLibraryAndEachOther) {
  static const std::regex include(R"re(^\s*#\s*include\s*([<"])([^">]+)[">])re");
  std::set<std::string> installed;
  const fs::path root = testing::source_folder() / "include";
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.is_regular_file()) installed.insert(entry.path().lexically_relative(root).string());
  }
  EXPECT_GT(installed.size(), 5u);
  for (const std::string& file : installed) {
    std::ifstream lines(root / file);
    for (std::string line; std::getline(lines, line);) {
      std::smatch match;
      if (!std::regex_search(line, match, include)) continue;
      const std::string name = match[2];
      const bool standard = name.find_first_of("./") == std::string::npos;  // <vector>
      EXPECT_TRUE(match[1] == "<" && (standard || installed.contains(name))) << file << ": " << line;
    }
  }
}

void expect_the_example_works(const fs::path& program, const testing::CommandLimits& options = {}) {
  CommandResult result = run(program, {}, options);
  ASSERT_EQ(result.code, 0) << result.err;
  // Logits are [1, 2, 3] and [3, 4, 7]: losses 0.407606 and 3.065884.
  EXPECT_THAT(result.out, HasSubstr("loss 1.736745, gradient -0.122364 "));
  // An error of ours is one that the other program can catch.
  result = run(program, {"/nowhere", "text"}, options);
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_THAT(result.err, HasSubstr("/nowhere"));
}

TEST(ApiInstall, AnotherProjectFindsItAndRuns) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "a program without the sanitizer cannot load a library with it";
#endif
  const TempFolder folder;
  const std::string prefix = folder / "prefix", build = folder / "build";
  CommandResult result = run("cmake", {"--install", build_folder(), "--prefix", prefix});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(run(fs::path(prefix) / "bin/inlay", {"--version"}).code, 0);

  result = run("cmake", {"-S", testing::source_folder() / "examples/cpp", "-B", build, "-G", "Ninja",
                         "-DCMAKE_PREFIX_PATH=" + prefix});
  ASSERT_EQ(result.code, 0) << result.out << result.err;
  result = run("cmake", {"--build", build});
  ASSERT_EQ(result.code, 0) << result.out << result.err;
  expect_the_example_works(fs::path(build) / "example");
}

// The installation may be moved: the paths are those of where inlay.pc lies.
TEST(ApiInstall, PkgConfigFindsItAsWell) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "a program without the sanitizer cannot load a library with it";
#endif
  if (run("pkg-config", {"--version"}).code != 0) GTEST_SKIP() << "pkg-config is not installed";
  const TempFolder folder;
  CommandResult result =
      run("cmake", {"--install", build_folder(), "--prefix", folder / "first", "--component", "library"});
  ASSERT_EQ(result.code, 0) << result.err;
  fs::rename(folder / "first", folder / "prefix");
  const fs::path library = fs::path(folder / "prefix") / "lib", program = folder / "example";
  const std::string files = (library / "pkgconfig").string();
  result = run("pkg-config", {"--cflags", "--libs", "inlay"}, {.environment = {{"PKG_CONFIG_PATH", files}}});
  ASSERT_EQ(result.code, 0) << result.err;
  std::vector<std::string> words = {"-std=c++20", testing::source_folder() / "examples/cpp/main.cpp", "-o", program};
  std::istringstream found(result.out);
  for (std::string word; found >> word;) words.push_back(word);
  result = run("c++", words);
  ASSERT_EQ(result.code, 0) << result.out << result.err;
  expect_the_example_works(program, {.environment = {{"LD_LIBRARY_PATH", library.string()}}});
}

// Symbols of libraries that are linked in, and of everything that is not in include/, stay inside.
TEST(ApiInstall, TheLibraryShowsOnlyItsSurface) {
  const CommandResult result = run("nm", {"-DC", "--defined-only", build_folder() / "libinlay.so"});
  if (result.code == 127) GTEST_SKIP() << "nm is not installed";
  ASSERT_EQ(result.code, 0) << result.err;
  static const std::regex inner(R"re(inlay::(data|jinja|io|backend|ops|weights|train|options|model|api)::)re");
  std::istringstream lines(result.out);
  int shown = 0;
  for (std::string line; std::getline(lines, line); ++shown) {
    EXPECT_FALSE(std::regex_search(line, inner) && line.find("std::") == std::string::npos) << line;
  }
  EXPECT_GT(shown, 20);
  EXPECT_NE(result.out.find("inlay::Tokenizer::Tokenizer("), std::string::npos);
}

}  // namespace
}  // namespace inlay
