#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <sstream>

#include "support/paths.h"
#include "support/pseudo_terminal.h"
#include "support/small_run.h"

// What people see on a terminal of 80 columns, and less.
namespace inlay::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream all(text);
  for (std::string line; std::getline(all, line);) lines.push_back(line);
  return lines;
}

// Of a program that writes more than the terminal has rows.
std::string shown(const std::vector<std::string>& command, unsigned short columns) {
  PseudoTerminal terminal(command, 50, columns);
  EXPECT_EQ(terminal.wait(), 0);
  return terminal.screen().text();
}

TEST(CliNarrowTerminal, HelpIsBrokenBetweenWordsAndBelowItsColumn) {
  const std::string piped = inlay({"generate", "--help"}).out;
  for (const unsigned short columns : {80, 60, 40}) {
    const std::string help = shown({program().string(), "generate", "--help"}, columns);
    for (const std::string& line : lines_of(help)) {
      EXPECT_THAT(line, AnyOf("", StartsWith("  "), StartsWith("Continue prompts"), "has learned", StartsWith("Usage:"),
                              StartsWith("Positionals:"), StartsWith("Options:")));
    }
    // The same words, wherever they stand.
    const auto words = [](const std::string& text) { return std::regex_replace(text, std::regex("\\s+"), " "); };
    EXPECT_EQ(words(help + "\n"), words(piped)) << help;
  }
  EXPECT_THAT(shown({program().string(), "generate", "--help"}, 80),
              HasSubstr("\n  --bos                       Start each prompt with the model's bos_token_id,\n" +
                        std::string(30, ' ') + "as its training documents did\n"));
  EXPECT_EQ(shown({program().string(), "generate", "--help"}, 400) + "\n\n", piped);
}

TEST(CliNarrowTerminal, TheTableOfAPlanIsDividedWhereItHasNoRoom) {
  const SmallRun run;
  ASSERT_EQ(run.train("max_steps: 1\n").code, 0);
  const auto plan = [&](unsigned short columns) {
    return shown({program().string(), "plan", run.folder() / "run.yaml", "--quiet"}, columns);
  };
  const auto table_of = [](const std::string& text) {
    const std::size_t begin = text.find("device memory at");
    return text.substr(begin, text.find("\nin /") - begin);
  };
  const std::string wide = table_of(plan(400)), narrow = table_of(plan(80)), slim = table_of(plan(45));
  EXPECT_EQ(times(wide, "\n  forward  "), 1u) << wide;
  EXPECT_EQ(times(narrow, "\n  forward  "), 2u) << narrow;
  EXPECT_GT(times(slim, "\n  forward  "), 4u) << slim;
  for (const std::string& table : {narrow, slim}) {
    // Nothing of it is broken by the terminal, and nothing is lost.
    for (const std::string& line : lines_of(table))
      EXPECT_THAT(line, AnyOf("", StartsWith("  "), StartsWith("device")));
    for (const char* part : {" activations", " logits", " workspace", " in all", "iB", "  the peak\n"}) {
      EXPECT_EQ(times(table, part), times(wide, part)) << part << table;
    }
  }
}

TEST(CliNarrowTerminal, LinesOfARunTakeOneRow) {
  const SmallRun run;
  ASSERT_EQ(run.train("max_steps: 1\n").code, 0);
  const std::string config = read_text(run.folder() / "run.yaml");
  run.folder().write("run.yaml",
                     std::regex_replace(config, std::regex("max_steps: 1\n"), "max_steps: 30\nlogging_steps: 1\n"));
  for (const unsigned short columns : {80, 200}) {
    std::filesystem::remove_all(run.path());
    PseudoTerminal terminal({program().string(), "train", run.folder() / "run.yaml"}, 50, columns);
    EXPECT_EQ(terminal.wait(), 0);
    std::size_t steps = 0;
    for (const std::string& line : lines_of(terminal.screen().text())) {
      if (!line.starts_with("step ")) continue;
      ++steps;
      EXPECT_THAT(line, HasSubstr("  ETA "));
      EXPECT_EQ(times(line, "iB"), columns == 80 ? 0u : 1u) << line;
    }
    EXPECT_GT(steps, 0u) << terminal.screen().text();
    // Whoever presses Ctrl-C sees it behind the line that passes by, and not below it.
    std::size_t passed = 0;
    const std::regex passing("\r\033\\[K([^\r\n]+)\r\033");
    const std::string& bytes = terminal.bytes();
    for (std::sregex_iterator at(bytes.begin(), bytes.end(), passing), end; at != end; ++at, ++passed) {
      Screen row(2, columns);
      row.add((*at)[1].str() + "^C");
      EXPECT_EQ(row.cursor().first, 0u) << (*at)[1];
      EXPECT_LT(row.cursor().second, columns) << (*at)[1];
    }
    EXPECT_GT(passed, 0u);
  }
}

}  // namespace
}  // namespace inlay::testing
