#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/command.h"
#include "support/paths.h"
#include "support/pseudo_terminal.h"

// inlay chat with a person at a terminal, who types, errs and changes their mind.
namespace inlay::testing {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* intro = "/reset starts over";
const std::string answered = "(cut: --max-new-tokens";

class CliChatTerminal : public ::testing::Test {
 protected:
  CliChatTerminal() { EXPECT_EQ(inlay({"init", "--preset", "tiny", folder_ / "m"}).code, 0); }

  std::vector<std::string> chat(const std::string& tokens = "1") const {
    return {program().string(),
            "chat",
            folder_ / "m",
            "--chat-template",
            "chatml",
            "--device",
            "cpu",
            "--seed",
            "4",
            "--temperature",
            "3",
            "--max-new-tokens",
            tokens};
  }
  // What a shell has its terminal do.
  static bool is_as_before(const PseudoTerminal& terminal) {
    const auto flags = terminal.settings().c_lflag;
    return (flags & ICANON) != 0 && (flags & ECHO) != 0 &&
           times(terminal.bytes(), "\033[?2004h") == times(terminal.bytes(), "\033[?2004l");
  }

  TempFolder folder_;
};

TEST_F(CliChatTerminal, WhatIsTypedMayBeChanged) {
  PseudoTerminal terminal(chat());
  terminal.type("ab漢");  // while it begins
  ASSERT_TRUE(terminal.shows("\n> ab漢")) << terminal.screen().text();
  terminal.type(
      "\x7f\x7f"
      "cd");
  ASSERT_TRUE(terminal.shows("\n> acd")) << terminal.screen().text();
  terminal.type("\033[D\033[DX\033[H(\033[F)");
  ASSERT_TRUE(terminal.shows("\n> (aXcd)")) << terminal.screen().text();
  terminal.type("\n");
  ASSERT_TRUE(terminal.shows(answered));
  terminal.type("second\n");
  ASSERT_TRUE(terminal.shows(answered, 2));
  terminal.type("begun\033[A\033[A");
  ASSERT_TRUE(terminal.shows("> (aXcd)", 2)) << terminal.screen().text();
  terminal.type("\033[B\033[B");
  ASSERT_TRUE(terminal.shows("\n> begun")) << terminal.screen().text();
  terminal.type("\025/exit\n");
  EXPECT_EQ(terminal.wait(), 0);
  EXPECT_THAT(terminal.screen().text(), Not(HasSubstr("not sent")));
  EXPECT_THAT(terminal.screen().text(), EndsWith("> /exit"));
  EXPECT_TRUE(is_as_before(terminal));
}

TEST_F(CliChatTerminal, ALineMayBeLongerThanATerminalPassesOn) {
  PseudoTerminal terminal(chat());
  ASSERT_TRUE(terminal.shows(intro));
  terminal.type(std::string(5000, 'x') + "end");
  ASSERT_TRUE(terminal.shows("xend"));
  terminal.type(std::string(5003 - 2, '\x7f') + "y");
  ASSERT_TRUE(terminal.shows("> xxy")) << terminal.screen().text();
  terminal.type("\n");
  EXPECT_TRUE(terminal.shows(answered)) << terminal.screen().text();
}

TEST_F(CliChatTerminal, ALongLineTakesSeveralRowsHoweverWideTheTerminalIs) {
  PseudoTerminal terminal(chat(), 24, 40);
  ASSERT_TRUE(terminal.shows("\n>"));
  const auto lines_of = [](const std::string& text, std::size_t width) {
    std::string broken;
    for (std::size_t at = 0; at < text.size(); at += width) broken += "\n" + text.substr(at, width);
    return broken;
  };
  std::string text = "> ";
  for (int i = 0; i < 30; ++i) text += std::to_string(i) + ",";
  terminal.type(text.substr(2));
  ASSERT_TRUE(terminal.shows(lines_of(text, 39))) << terminal.screen().text();
  for (const unsigned short columns : {25, 60, 31}) {
    terminal.resize(24, columns);
    ASSERT_TRUE(terminal.shows(lines_of(text, columns - 1u))) << columns << terminal.screen().text();
    EXPECT_THAT(terminal.screen().text(), EndsWith(lines_of(text, columns - 1u)));
    EXPECT_EQ(times(terminal.screen().text(), "> 0,1,2"), 1u) << columns << terminal.screen().text();
  }
  // At the beginning, above rows that are below.
  terminal.type("\033[H!");
  text.insert(2, "!");
  ASSERT_TRUE(terminal.shows(lines_of(text, 30))) << terminal.screen().text();
  EXPECT_EQ(terminal.screen().cursor().second, 3u);
  terminal.type("\n");
  ASSERT_TRUE(terminal.shows(answered.substr(0, 20))) << terminal.screen().text();
  EXPECT_EQ(times(terminal.screen().text(), "> !0,"), 1u) << terminal.screen().text();
}

TEST_F(CliChatTerminal, LinesThatWerePastedMayBeMoreThanTheTerminalHas) {
  PseudoTerminal terminal(chat(), 6, 80);
  ASSERT_TRUE(terminal.shows("\n>"));
  std::string lines;
  for (int i = 0; i < 20; ++i) lines += "line " + std::to_string(i) + "\r";
  terminal.type("\033[200~" + lines + "\033[201~");
  ASSERT_TRUE(terminal.shows("line 19")) << terminal.screen().text();
  EXPECT_EQ(times(terminal.screen().text(), "line 13"), 0u) << "as many as there are rows";
  terminal.type("\n");
  ASSERT_TRUE(terminal.shows(answered));
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(times(terminal.screen().text(), "line " + std::to_string(i) + "\n"), 1u) << terminal.screen().text();
  }
  EXPECT_EQ(times(terminal.screen().text(), answered), 1u);
}

TEST_F(CliChatTerminal, WhateverEndsItTheTerminalIsAsBefore) {
  {
    PseudoTerminal terminal(chat());
    ASSERT_TRUE(terminal.shows("\n>"));
    EXPECT_FALSE(is_as_before(terminal));
    terminal.type("\004");
    EXPECT_EQ(terminal.wait(), 0);
    EXPECT_TRUE(is_as_before(terminal));
  }
  {
    PseudoTerminal terminal(chat());
    ASSERT_TRUE(terminal.shows("\n>"));
    ::kill(terminal.process(), SIGTERM);
    EXPECT_EQ(terminal.wait(), 143);
    EXPECT_TRUE(is_as_before(terminal));
  }
  {
    PseudoTerminal terminal(chat());
    ASSERT_TRUE(terminal.shows("\n>"));
    terminal.type("begun");
    ASSERT_TRUE(terminal.shows("> begun"));
    terminal.type("\003");
    ASSERT_TRUE(terminal.shows("\n(/exit or Ctrl-D ends, as does another Ctrl-C)\n>"));
    terminal.type("\003");
    EXPECT_EQ(terminal.wait(), 130);
    EXPECT_TRUE(is_as_before(terminal));
  }
  std::filesystem::remove(folder_ / "m/model.safetensors");  // an error while it is loaded
  PseudoTerminal terminal(chat());
  EXPECT_EQ(terminal.wait(), 2);
  EXPECT_TRUE(is_as_before(terminal));
}

// The second time ends the program at once, in the midst of anything.
TEST_F(CliChatTerminal, CtrlCTwiceWithinAnAnswerLeavesTheTerminalAsBefore) {
  PseudoTerminal terminal({"bash", "-c", "trap '' TERM; \"$@\"; echo \"code $?\"; cat", "bash", program().string(),
                           "chat", folder_ / "m", "--chat-template", "chatml", "--device", "cpu"});
  ASSERT_TRUE(terminal.shows("\n>"));
  // Neither is handled before the other is there: they come while it is stopped.
  terminal.type("hello\n");
  ASSERT_TRUE(terminal.shows("> hello\n"));
  const CommandResult child = run("pgrep", {"-P", std::to_string(terminal.process())});
  const auto process = static_cast<pid_t>(std::stoi(child.out));
  ::kill(process, SIGSTOP);
  ::kill(process, SIGINT);
  ::kill(process, SIGTERM);
  ::kill(process, SIGCONT);
  ASSERT_TRUE(terminal.shows("code 1")) << terminal.screen().text();
  EXPECT_TRUE(is_as_before(terminal));
}

TEST_F(CliChatTerminal, CtrlZGivesTheTerminalBackAndTheLineGoesOnAfterwards) {
  std::vector<std::string> command = {"bash", "-mc",
                                      "\"$@\"; stty -a | grep -o -e ' -*icanon' -e ' -*echo '; echo back; read; fg; "
                                      "stty -a | grep -c -e ' -icanon' -e ' -echo '; exit 7",
                                      "bash"};
  for (const std::string& word : chat()) command.push_back(word);
  PseudoTerminal terminal(command);
  ASSERT_TRUE(terminal.shows("\n>"));
  terminal.type("begun");
  ASSERT_TRUE(terminal.shows("> begun"));
  terminal.type("\x1a");
  ASSERT_TRUE(terminal.shows("icanon\n echo\nback")) << terminal.screen().text();
  EXPECT_TRUE(is_as_before(terminal));
  terminal.type("\n");
  ASSERT_TRUE(terminal.shows("\n> begun")) << terminal.screen().text();
  terminal.type(" anew\x7f\x7f");
  ASSERT_TRUE(terminal.shows("\n> begun an")) << terminal.screen().text();
  terminal.type("\n");
  ASSERT_TRUE(terminal.shows(answered)) << terminal.screen().text();
  terminal.type("/exit\n");
  EXPECT_EQ(terminal.wait(), 7) << terminal.screen().text();
  EXPECT_THAT(terminal.screen().text(), EndsWith("\n0"));
}

// On a terminal that can rewrite nothing, lines are the terminal's own.
TEST_F(CliChatTerminal, ADumbTerminalIsReadAsItIs) {
  std::vector<std::string> command = {"env", "TERM=dumb"};
  for (const std::string& word : chat()) command.push_back(word);
  PseudoTerminal terminal(command);
  terminal.type("hellp\x7fo\n");
  terminal.type(std::string(5000, 'x') + "\n");
  ASSERT_TRUE(terminal.shows("(not sent: a terminal passes on only 4,095 bytes of a line")) << terminal.screen().text();
  EXPECT_TRUE(is_as_before(terminal));
  terminal.type("\004");
  EXPECT_EQ(terminal.wait(), 0);
  EXPECT_THAT(terminal.bytes(), Not(HasSubstr("\033")));
}

}  // namespace
}  // namespace inlay::testing
