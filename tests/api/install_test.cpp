#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>

#include "support/command.h"

// What another project gets: an installation into an empty folder, and a program of its own against it.
namespace inlay {
namespace {

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

  result = run(fs::path(build) / "example", {});
  ASSERT_EQ(result.code, 0) << result.err;
  // Logits are [1, 2, 3] and [3, 4, 7]: losses 0.407606 and 3.065884.
  EXPECT_NE(result.out.find("loss 1.736745, gradient -0.122364 "), std::string::npos) << result.out;
  // An error of ours is one that the other program can catch.
  result = run(fs::path(build) / "example", {"/nowhere", "text"});
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_NE(result.err.find("/nowhere"), std::string::npos) << result.err;
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
