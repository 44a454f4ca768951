#include <gtest/gtest.h>
#include <utf8proc.h>

#include "core/philox.h"
#include "core/utf8.h"
#include "data/tokenizer/characters.h"
#include "data/tokenizer/known_splits.h"
#include "data/tokenizer/pattern.h"

namespace inlay::data::tokenizer {
namespace {

Pattern pattern(const std::string& regex) { return Pattern::regex(io::Json::parse("{}", "test.json"), regex); }

std::vector<Piece> matches(const Pattern& pattern, std::string_view text) {
  std::vector<Piece> result;
  pattern.find(text, result);
  return result;
}

// Characters that both libraries have assigned: their versions of Unicode differ.
std::vector<char32_t> common_characters() {
  const Pattern unassigned = pattern(R"(\p{Cn})");
  std::vector<char32_t> result;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(text, c);
    const bool known_here = utf8proc_category(static_cast<utf8proc_int32_t>(c)) != UTF8PROC_CATEGORY_CN;
    if (known_here && matches(unassigned, text).empty()) result.push_back(c);
  }
  return result;
}

TEST(DataTokenizerSplits, ClassesAreThoseOfRegularExpressions) {
  const std::vector<std::pair<unsigned, std::string>> classes = {{letter, R"(\p{L})"},
                                                                 {number, R"(\p{N})"},
                                                                 {space, R"(\s)"},
                                                                 {newline, R"([\r\n])"},
                                                                 {head, R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"},
                                                                 {tail, R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"},
                                                                 {punctuation, R"([\p{P}$+<=>^`|~])"}};
  std::string all;
  const std::vector<char32_t> characters = common_characters();
  EXPECT_GT(characters.size(), 100000u);
  for (const char32_t c : characters) append_utf8(all, c);
  const auto expect_equal = [&](const std::string& regex, const auto& holds) {
    std::vector<bool> matched(all.size());
    for (const Piece piece : matches(pattern(regex), all)) matched[piece.begin] = true;
    std::size_t at = 0;
    for (const char32_t c : characters) {
      ASSERT_EQ(holds(c), matched[at]) << regex << " U+" << std::hex << static_cast<unsigned>(c);
      at += code_point_at(all.data() + at).bytes;
    }
  };
  for (const auto& [bit, regex] : classes) {
    expect_equal(regex, [bit = bit](char32_t c) { return (classes_of(c) & bit) != 0; });
  }
  expect_equal(R"(\w)", is_word_character);
}

// Random texts of characters that the expressions tell apart, in many proportions, against PCRE2.
TEST(DataTokenizerSplits, KnownOnesFindWhatPcre2Finds) {
  const std::vector<std::string> regexes = {
      std::string(gpt2_split),
      R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re",
      R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re",
      R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re",
      R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re"};
  const std::vector<std::string> parts = {
      "a",      "b",      "A",      "Z",      "é",   "É",   "ǅ",   "ʰ",   "字",     "ª",  "\u0301", "\u0903",
      "1",      "2",      "Ⅷ",      "²",      "٣",   " ",   " ",   "\t",  "\n",     "\r", "\u00a0", "\u3000",
      "\u2028", "\u0085", ".",      "!",      "/",   "-",   "€",   "😀",   "\u200b", "'",  "'",      "'s",
      "'S",     "'ſ",     "'t",     "'re",    "'RE", "'Ve", "'ll", "'lL", "'m",     "'D", "l",      "e",
      "\u180e", "\u0000", "\ufeff", "\u0e31", "ﬀ",   "K",   "Σ",   "𝒜",   "𝟘",      "𐐨",  "🏽",   "\r\n"};
  const std::vector<char32_t> common = common_characters();
  const Philox philox{11};
  std::size_t pieces = 0;
  for (const std::string& regex : regexes) {
    const SplitFunction known = known_split(regex);
    ASSERT_NE(known, nullptr) << regex;
    const Pattern slow = pattern(regex);
    for (std::uint64_t round = 0; round < 6000; ++round) {
      std::string text;
      const auto shape = philox.words(round, 1);
      const std::size_t length = shape[0] % 24, first = shape[1] % parts.size(), spread = 1 + shape[2] % parts.size();
      for (std::size_t i = 0; i < length; ++i) {
        const auto word = philox.words(round * 64 + i, 2);
        if (word[1] % 16 == 0) {
          append_utf8(text, common[word[0] % common.size()]);
        } else {
          text += parts[(first + word[0] % spread) % parts.size()];
        }
      }
      std::vector<Piece> found;
      known(text, found);
      ASSERT_EQ(found, matches(slow, text)) << regex << "\n" << io::in_quotes(text);
      pieces += found.size();
    }
  }
  EXPECT_GT(pieces, 100000u);
  EXPECT_EQ(known_split(R"(\s+)"), nullptr);
}

}  // namespace
}  // namespace inlay::data::tokenizer
