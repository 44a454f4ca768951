#include "core/line_editor.h"

#include <gtest/gtest.h>

namespace inlay {
namespace {

// What stands in the line after these bytes were typed, with | where the cursor is.
class CoreLineEditor : public ::testing::Test {
 protected:
  std::string typed(std::string_view bytes) {
    keys.add(bytes);
    while (const auto key = keys.next()) {
      switch (editor.press(*key)) {
        case LineEditor::Outcome::line: enter(); break;
        case LineEditor::Outcome::ended: return "ended";
        case LineEditor::Outcome::goes_on: break;
      }
    }
    std::string text = editor.text();
    return text.insert(editor.cursor(), "|");
  }
  void enter() {
    lines.push_back(editor.take());
    editor.remember(lines.back());
  }

  KeyReader keys;
  LineEditor editor;
  std::vector<std::string> lines;
};

TEST_F(CoreLineEditor, InsertsAndRemovesAtTheCursor) {
  EXPECT_EQ(typed("abc"), "abc|");
  EXPECT_EQ(typed("\033[D\033OD"), "a|bc");
  EXPECT_EQ(typed("X"), "aX|bc");
  EXPECT_EQ(typed("\x7f"), "a|bc");
  EXPECT_EQ(typed("\033[3~"), "a|c");
  EXPECT_EQ(typed("\033[C\033[C\033[C"), "ac|");
  EXPECT_EQ(typed("\b\b\b\b"), "|");
  EXPECT_EQ(typed("one two  \x17"), "one |");
  EXPECT_EQ(typed("two\033[Hzero \033[F!"), "zero one two!|");
  EXPECT_EQ(typed("\001\033[1;5C\013"), "z|");
  EXPECT_EQ(typed("ab\002\025"), "|b");
  EXPECT_EQ(typed("\004\004"), "ended");
}

TEST_F(CoreLineEditor, ACharacterIsRemovedWhole) {
  EXPECT_EQ(typed("aä漢😀\x7f"), "aä漢|");
  EXPECT_EQ(typed("\033[D\033[D"), "a|ä漢");
  EXPECT_EQ(typed("\033[3~"), "a|漢");
  EXPECT_EQ(typed("e\xcc\x81\xcc\xa3\x7f"), "a|漢") << "with the marks that join it";
  EXPECT_EQ(typed("e\xcc\x81\033[D"), "a|e\xcc\x81漢");
  EXPECT_EQ(typed("\033[C\033[C"), "ae\xcc\x81漢|");
}

TEST_F(CoreLineEditor, EarlierLinesComeBack) {
  EXPECT_EQ(typed("first\nsecond\nsecond\n  \nbegun"), "begun|");
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(typed("\033[A"), "second|") << "once, and not what has no text";
  EXPECT_EQ(typed("!\033[A"), "first|");
  EXPECT_EQ(typed("\033[A"), "first|");
  EXPECT_EQ(typed("\033[B"), "second|");
  EXPECT_EQ(typed("\033[B"), "begun|");
  EXPECT_EQ(typed("\033[B"), "begun|");
  EXPECT_EQ(typed("\033[A\n"), "|");
  EXPECT_EQ(lines.back(), "second");
}

TEST_F(CoreLineEditor, KeysMayComeInPieces) {
  EXPECT_EQ(typed("ab\033"), "ab|");
  EXPECT_EQ(typed("["), "ab|");
  EXPECT_EQ(typed("D\xe6\xbc"), "a|b");
  EXPECT_EQ(typed("\xa2"), "a漢|b");
  typed("\033");
  keys.settle();
  EXPECT_EQ(typed("[D"), "a漢[D|b") << "an escape that was a key of its own begins nothing";
  EXPECT_EQ(typed("\033x\033[99;1u\033[15~\001\025"), "|a漢[Db") << "what means nothing does nothing";
  EXPECT_EQ(typed("\033[\nq"), "q|");
  EXPECT_EQ(lines, std::vector<std::string>{"a漢[Db"}) << "a sequence that breaks off takes no other key along";
  EXPECT_EQ(typed("\xff\xe6\n"), "|");
  EXPECT_EQ(lines.back(), "q\uFFFD\uFFFD");
}

TEST_F(CoreLineEditor, WhatIsPastedIsText) {
  EXPECT_EQ(typed("a\033[D\033[200~one\rtwo\n\ttwo\0033\n \033[2"), "|a");
  EXPECT_EQ(typed("01~"), "one\ntwo\n\ttwo3|a");
  EXPECT_TRUE(lines.empty());
  EXPECT_EQ(typed("\033[H\025"), "one\ntwo\n|\ttwo3a") << "the keys stay within a line of it";
  EXPECT_EQ(typed("\013\x7f\033[H"), "one\n|two");
  EXPECT_EQ(typed("\033[F"), "one\ntwo|");
  EXPECT_EQ(typed("\n"), "|");
  EXPECT_EQ(typed("\033[A"), "one\ntwo|");
}

TEST(CoreTextRows, BreaksBeforeTheLastColumn) {
  const TextRows rows = lay_out("> ", "abcdef漢字e\xcc\x81xyz", 6, 9);
  EXPECT_EQ(rows.rows, (std::vector<std::string>{"> abcdef", "漢字e\xcc\x81xyz"}));
  EXPECT_EQ(rows.widths, (std::vector<std::size_t>{8, 8}));
  EXPECT_EQ(rows.cursor_row, 0u);
  EXPECT_EQ(rows.cursor_column, 8u);
  const TextRows wide = lay_out("> ", "abcde漢\nb", 10, 9);
  EXPECT_EQ(wide.rows, (std::vector<std::string>{"> abcde", "漢", "b"})) << "a wide character is not halved";
  EXPECT_EQ(wide.cursor_row, 2u);
  EXPECT_EQ(wide.cursor_column, 1u);
}

TEST(CoreTextRows, TabsEndAtTheNextStopAndStayWithinTheRow) {
  EXPECT_EQ(lay_out("", "a\tb", 0, 80).rows, (std::vector<std::string>{"a       b"}));
  EXPECT_EQ(lay_out("", "abcdefghij\tx", 0, 13).rows, (std::vector<std::string>{"abcdefghij  ", "x"}));
  EXPECT_EQ(lay_out("", "abc", 3, 1).widths, (std::vector<std::size_t>{2, 1})) << "no terminal is that narrow";
}

TEST(CoreTextRows, ColumnsOfCharacters) {
  EXPECT_EQ(columns_of('a'), 1u);
  EXPECT_EQ(columns_of(U'ä'), 1u);
  EXPECT_EQ(columns_of(U'…'), 1u);
  EXPECT_EQ(columns_of(U'漢'), 2u);
  EXPECT_EQ(columns_of(U'😀'), 2u);
  EXPECT_EQ(columns_of(U'\u0301'), 0u);
  EXPECT_EQ(columns_of(U'\u200D'), 0u);
}

}  // namespace
}  // namespace inlay
