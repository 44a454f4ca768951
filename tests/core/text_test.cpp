#include "core/text.h"

#include <gtest/gtest.h>

namespace inlay {
namespace {

TEST(CoreText, WordsAreQuotedForAShellWhereItWouldTakeThemOtherwise) {
  EXPECT_EQ(shell_quoted("out/run-1_a.yaml"), "out/run-1_a.yaml");
  EXPECT_EQ(shell_quoted("my dir \xc3\xa9/o ut"), "'my dir \xc3\xa9/o ut'");
  EXPECT_EQ(shell_quoted("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_quoted("a;rm$x`*?"), "'a;rm$x`*?'");
  EXPECT_EQ(shell_quoted(""), "''");
}

}  // namespace
}  // namespace inlay
