#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "support/paths.h"

// The order of the folders: a folder includes from itself and from those to its left; io from core alone, jinja
// from core and io, data from these three. The libraries are linked PRIVATE in the same order, so the linker agrees;
// this test says which line is to blame.
namespace inlay {
namespace {

constexpr std::array<std::string_view, 20> order = {
    "core", "backend", "parallel", "ops",   "weights", "io",     "model", "objective", "jinja", "data",
    "osft", "adapter", "options",  "train", "gguf",    "report", "study", "api",       "bench", "cli"};

std::size_t place(std::string_view folder) {
  return static_cast<std::size_t>(std::find(order.begin(), order.end(), folder) - order.begin());
}

bool may_include(std::string_view from, std::string_view to) {
  if (from == to) return true;
  if (from == "io") return to == "core";
  if (from == "jinja") return to == "core" || to == "io";
  if (from == "data") return to == "core" || to == "io" || to == "jinja";
  return place(to) < place(from);
}

// One line for each include in the text that the order forbids. Quoted includes are paths below src/, never relative
// ones, so that none can slip by.
std::vector<std::string> violations(const std::string& file, std::string_view folder, const std::string& text) {
  static const std::regex include(R"re(^\s*#\s*include\s*["<]([^"<>]+)([">]))re");
  std::vector<std::string> found;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::smatch match;
    if (!std::regex_search(line, match, include)) continue;
    const std::string path = match[1];
    const std::string target = path.substr(0, path.find('/'));
    const bool quoted = match[2] == "\"", known = place(target) < order.size() && path.find('/') != std::string::npos;
    const std::string where = file + ":" + std::to_string(number) + ": ";
    if (quoted && !known) {
      found.push_back(where + "\"" + path + "\" does not begin with a folder of src/");
    } else if (known && !may_include(folder, target)) {
      found.push_back(where + std::string(folder) + " may not include " + path);
    }
  }
  return found;
}

TEST(CoreLayering, NoFolderIncludesFromItsRight) {
  const std::filesystem::path root = testing::source_folder() / "src";
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    const std::string extension = entry.path().extension();
    if (extension != ".h" && extension != ".cpp" && extension != ".cu" && extension != ".cuh") continue;
    const std::filesystem::path relative = entry.path().lexically_relative(root);
    const std::string folder = relative.begin()->string();
    EXPECT_LT(place(folder), order.size()) << relative << " is in no folder that the order knows";
    std::ostringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    for (const std::string& violation : violations("src/" + relative.string(), folder, text.str())) {
      ADD_FAILURE() << violation;
    }
    ++files;
  }
  EXPECT_GT(files, 10u) << "looked in " << root;
}

// What speaks MPI is loaded into the program: it must not bring a second copy of any of it.
TEST(CoreLayering, ThePlugInSharesOneHeader) {
  static const std::regex quoted(R"re(#\s*include\s*"([^"]+)")re");
  for (const auto& entry : std::filesystem::directory_iterator(testing::source_folder() / "src/parallel/mpi")) {
    std::ostringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    const std::string source = text.str();
    for (std::sregex_iterator at(source.begin(), source.end(), quoted), end; at != end; ++at) {
      EXPECT_EQ((*at)[1], "parallel/transport.h") << entry.path();
    }
  }
}

TEST(CoreLayering, TheTestItselfCanFail) {
  EXPECT_EQ(violations("f", "ops", "#include \"model/decoder.h\"\n"),
            (std::vector<std::string>{"f:1: ops may not include model/decoder.h"}));
  EXPECT_EQ(violations("f", "io", "\n#  include <ops/linear.h>").size(), 1u);
  EXPECT_EQ(violations("f", "data", "#include \"model/config.h\"").size(), 1u);
  EXPECT_EQ(violations("f", "jinja", "#include \"data/formats/row.h\"").size(), 1u);
  EXPECT_EQ(violations("f", "model", "#include \"decoder.h\"").size(), 1u);
  EXPECT_EQ(violations("f", "core", "#include \"../cli/main.h\"").size(), 1u);
  EXPECT_TRUE(violations("f", "model", "#include <vector>\n#include <fmt/format.h>\n#include \"io/json.h\"").empty());
  EXPECT_TRUE(violations("f", "data", "#include \"data/token_rows.h\"\n#include \"io/json.h\"").empty());
  EXPECT_TRUE(violations("f", "train", "#include \"data/token_rows.h\"\n#include \"parallel/communicator.h\"").empty());
}

}  // namespace
}  // namespace inlay
