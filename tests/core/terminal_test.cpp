#include "core/terminal.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <cstdlib>

#include "core/text.h"

namespace inlay {
namespace {

class CoreTerminal : public ::testing::Test {
 protected:
  CoreTerminal() {
    if (::openpty(&ours, &theirs, nullptr, nullptr, nullptr) != 0) throw std::runtime_error("no pseudo-terminal");
    ::setenv("TERM", "xterm", 1);
    ::unsetenv("NO_COLOR");
  }
  ~CoreTerminal() override {
    ::close(ours);
    ::close(theirs);
    ::unsetenv("NO_COLOR");
  }

  int ours = -1, theirs = -1;
};

TEST_F(CoreTerminal, ColoursOnlyWhereTheyAreWelcome) {
  EXPECT_TRUE(is_terminal(theirs));
  EXPECT_TRUE(wants_colour(theirs));
  ::setenv("NO_COLOR", "1", 1);
  EXPECT_TRUE(is_terminal(theirs));
  EXPECT_FALSE(wants_colour(theirs));
  ::setenv("NO_COLOR", "", 1);  // set to nothing counts as not set
  EXPECT_TRUE(wants_colour(theirs));
  ::setenv("TERM", "dumb", 1);
  EXPECT_FALSE(is_terminal(theirs));
  EXPECT_FALSE(wants_colour(theirs));
  ::setenv("TERM", "xterm", 1);
  int pipe[2] = {};
  ASSERT_EQ(::pipe(pipe), 0);
  EXPECT_FALSE(wants_colour(pipe[1]));
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST(CoreText, IsCutBetweenCharacters) {
  EXPECT_EQ(first_characters("abc", 5), "abc");
  EXPECT_EQ(first_characters("abc", 2), "ab");
  EXPECT_EQ(first_characters("a━b", 2), "a━");
  EXPECT_EQ(first_characters("━━", 1), "━");
  EXPECT_EQ(first_characters("━", 0), "");
}

TEST(CoreText, IsBrokenBetweenWordsBelowItsLastColumn) {
  EXPECT_EQ(wrapped("one two three", 13), "one two three");
  EXPECT_EQ(wrapped("one two three", 12), "one two\nthree");
  EXPECT_EQ(wrapped("one two three\n\nfour\n", 7), "one two\nthree\n\nfour\n");
  EXPECT_EQ(wrapped("  --name    what this name is for\n", 32), "  --name    what this name is\n            for\n");
  EXPECT_EQ(wrapped("  --name    what this name is for", 20), "  --name    what\n      this name is\n      for");
  EXPECT_EQ(wrapped("a incomprehensibilities b", 10), "a\nincomprehensibilities\nb") << "no word is broken";
  EXPECT_EQ(wrapped("äöü äöü", 7), "äöü äöü");
  EXPECT_EQ(wrapped("", 10), "");
}

TEST(CoreText, WhatIsZeroInAllDecimalsHasNoSign) {
  EXPECT_EQ(format_decimals(-0.0, 4), "0.0000");
  EXPECT_EQ(format_decimals(-0.00004, 4), "0.0000");
  EXPECT_EQ(format_decimals(-0.00006, 4), "-0.0001");
  EXPECT_EQ(format_decimals(-0.4, 0), "0");
  EXPECT_EQ(format_decimals(-10, 1), "-10.0");
  EXPECT_EQ(format_decimals(1.25, 1), "1.2");
}

TEST(CoreText, ABarShowsItsShare) {
  EXPECT_EQ(progress_bar(0, 4), "╌╌╌╌");
  EXPECT_EQ(progress_bar(0.5, 4), "━━╌╌");
  EXPECT_EQ(progress_bar(0.99, 4), "━━━╌");
  EXPECT_EQ(progress_bar(1, 4), "━━━━");
  EXPECT_EQ(progress_bar(7, 2), "━━");
}

}  // namespace
}  // namespace inlay
