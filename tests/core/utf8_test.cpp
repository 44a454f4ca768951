#include "core/utf8.h"

#include <gtest/gtest.h>

#include "core/philox.h"

namespace inlay {
namespace {

TEST(CoreUtf8, EveryCharacterThereAndBack) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(text, c);
    ASSERT_TRUE(is_utf8(text)) << std::hex << static_cast<unsigned>(c);
    const CodePoint back = code_point_at(text.data());
    ASSERT_EQ(back.value, c);
    ASSERT_EQ(back.bytes, text.size());
    ASSERT_EQ(previous_character("a" + text, 1 + text.size()), 1u);
    ASSERT_EQ(repaired_utf8(text), text);
  }
}

// The examples of Unicode's chapter 3.9, with the replacements it recommends.
TEST(CoreUtf8, WhatIsBrokenIsReplacedAsUnicodeRecommends) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(repaired_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(repaired_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(repaired_utf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(repaired_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
  EXPECT_EQ(repaired_utf8("abc\xF0\x9F\x98"), "abc" + r);
  EXPECT_EQ(repaired_utf8(""), "");
}

TEST(CoreUtf8, WhatTheEndCutsOffMayStillBecomeACharacter) {
  for (const std::string text : {"é", "字", "😀"}) {
    for (std::size_t bytes = 1; bytes < text.size(); ++bytes) {
      EXPECT_EQ(whole_utf8_prefix("ab" + text.substr(0, bytes)), 2u);
      EXPECT_EQ(whole_utf8_prefix(text.substr(0, bytes)), 0u);
    }
    EXPECT_EQ(whole_utf8_prefix(text), text.size());
  }
  EXPECT_EQ(whole_utf8_prefix("a\xFF"), 2u);         // never a character
  EXPECT_EQ(whole_utf8_prefix("a\xED\xA0"), 3u);     // a surrogate's
  EXPECT_EQ(whole_utf8_prefix("\x80\x80\x80"), 3u);  // nothing that these belong to
  EXPECT_EQ(whole_utf8_prefix(""), 0u);
}

TEST(CoreUtf8, ValidIsWhatRepairingLeavesAlone) {
  const Philox philox{5};
  const std::string alphabet = "ab\x80\xBF\xC2\xE0\xED\xEF\xF0\xF4\x9F\xA0\x90\x8F";
  for (std::uint64_t i = 0; i < 20000; ++i) {
    std::string text(i % 3 == 0 ? 20 : 0, 'x');  // some behind a block of ASCII
    for (const std::uint32_t word : philox.words(i)) {
      for (int shift = 0; shift < 32; shift += 16) text += alphabet[(word >> shift) % alphabet.size()];
    }
    const std::string repaired = repaired_utf8(text);
    ASSERT_TRUE(is_utf8(repaired));
    ASSERT_EQ(is_utf8(text), repaired == text);
    ASSERT_EQ(repaired.substr(0, valid_utf8_prefix(text)), text.substr(0, valid_utf8_prefix(text)));
  }
}

}  // namespace
}  // namespace inlay
