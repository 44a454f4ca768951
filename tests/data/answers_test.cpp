#include "data/answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace inlay::data {
namespace {

using ::testing::ElementsAre;

TEST(DataAnswers, TheLastThingThatIsLearnedIsTheAnswer) {
  constexpr std::int32_t no = ignore_label;
  const auto exchange = [](std::vector<std::int32_t> labels) {
    Document document;
    for (std::size_t i = 0; i < labels.size(); ++i) document.input_ids.push_back(static_cast<std::int32_t>(10 + i));
    document.labels = std::move(labels);
    return last_exchange(document);
  };
  const auto one = exchange({no, no, 12, 13, no});
  EXPECT_THAT(one->prompt, ElementsAre(10, 11));
  EXPECT_THAT(one->answer, ElementsAre(12, 13)) << "what follows it is no part of it";
  const auto two = exchange({no, 11, no, no, no, no, 16});  // of two turns the last, with the first in its prompt
  EXPECT_THAT(two->prompt, ElementsAre(10, 11, 12, 13, 14, 15));
  EXPECT_THAT(two->answer, ElementsAre(16));
  const auto gap = exchange({no, 11, no, 13});  // a newline, say, before the token that ends the turn
  EXPECT_THAT(gap->prompt, ElementsAre(10));
  EXPECT_THAT(gap->answer, ElementsAre(11, 12, 13));
  const auto close = exchange({no, 11, 12, no, 14, 15});  // a prompt that is learned, [/INST], the answer
  EXPECT_THAT(close->prompt, ElementsAre(10, 11, 12, 13));
  EXPECT_THAT(close->answer, ElementsAre(14, 15));
  const auto both = exchange({no, 11, no, 13, 14, no, 16});
  EXPECT_THAT(both->prompt, ElementsAre(10, 11, 12)) << "what ends it belongs to one turn alone";
  EXPECT_THAT(both->answer, ElementsAre(13, 14, 15, 16));
  EXPECT_FALSE(exchange({no, no}));
  EXPECT_FALSE(exchange({10, 11})) << "nothing to answer";
}

TEST(DataAnswers, Whole) {
  EXPECT_TRUE(agrees(" The  Answer.\n", "the answer", {}));
  EXPECT_TRUE(agrees("(B)", "b", {}));
  EXPECT_TRUE(agrees("1,200", "1200", {}));
  EXPECT_FALSE(agrees("the answers", "the answer", {}));
  EXPECT_FALSE(agrees("a b", "ab", {}));
  EXPECT_FALSE(agrees("1,2", "1, 2", {}));
}

TEST(DataAnswers, OnlyCommasOfThousandsVanish) {
  EXPECT_TRUE(agrees("It is $12,345,678.90", "it is $12345678.90", {}));
  EXPECT_TRUE(agrees("1,000 and 2,000", "1000 and 2000", {}));
  EXPECT_TRUE(agrees("well...1,000, or so", "well...1000, or so", {}));
  for (const char* text : {"(3,5)", "12,34", "1,2345", "1234,567", "1,000,5", "0.123,456", "1,,000", "0,5,100"}) {
    std::string without = text;
    std::erase(without, ',');
    EXPECT_FALSE(agrees(text, without, {})) << text;
    EXPECT_TRUE(agrees(text, text, {})) << text;
  }
  const AnswerRule number{.match = AnswerMatch::number};
  EXPECT_FALSE(agrees("(3,5)", "35", number));
  EXPECT_TRUE(agrees("(3,5)", "5", number)) << "the last one";
}

TEST(DataAnswers, APointBeforeADigitBelongsToTheNumber) {
  const AnswerRule number{.match = AnswerMatch::number};
  for (const char* text : {".5", "(.5)", "it is .5.", "$.50", "x=.5", "**.5**"}) {
    EXPECT_TRUE(agrees(text, "0.5", number)) << text;
    EXPECT_FALSE(agrees(text, "5", number)) << text;
  }
  EXPECT_TRUE(agrees("-.5", "-0.5", number));
  EXPECT_FALSE(agrees(".5", "5", {}));
  EXPECT_TRUE(agrees("(.5)", ".5", {}));
  for (const char* text : {"...5", "No.5", "1...5"}) {
    EXPECT_TRUE(agrees(text, "5", number)) << text << ": no decimal point";
  }
  EXPECT_TRUE(agrees("...5", "5", {}));
}

TEST(DataAnswers, Contains) {
  const AnswerRule rule{.match = AnswerMatch::contains};
  EXPECT_TRUE(agrees("I think it is Paris, of course.", "Paris.", rule));
  EXPECT_FALSE(agrees("I think it is London.", "Paris", rule));
  EXPECT_FALSE(agrees("I think it is London.", "...", rule)) << "nothing is not in everything";
  EXPECT_FALSE(is_judged_by("...", rule));
}

TEST(DataAnswers, Number) {
  const AnswerRule rule{.match = AnswerMatch::number};
  EXPECT_TRUE(agrees("2 + 2 = 4, so it is $1,004.00.", "1004", rule));
  EXPECT_TRUE(agrees("-3", "it is -3", rule));
  EXPECT_FALSE(agrees("5-3", "-3", rule)) << "a difference is no negative number";
  EXPECT_FALSE(agrees("4 apples and 5 pears", "4", rule)) << "the last one counts";
  EXPECT_FALSE(agrees("many", "4", rule));
  EXPECT_TRUE(agrees("0.50", ".5 or 0.5", rule));
  EXPECT_FALSE(is_judged_by("many", rule));
}

TEST(DataAnswers, Marker) {
  const AnswerRule rule{.match = AnswerMatch::whole, .marker = "####"};
  EXPECT_TRUE(agrees("Some 7 steps.\n#### 42", "Other steps\n#### 42", rule));
  EXPECT_FALSE(agrees("Some 7 steps.\n#### 43", "Other steps\n#### 42", rule));
  EXPECT_FALSE(agrees("The answer is 42", "#### 42", rule)) << "without the marker nothing is said";
  EXPECT_TRUE(agrees("#### 1\n#### 42", "#### 42", rule)) << "the last one counts";
  EXPECT_TRUE(is_judged_by("#### 42", rule));
  EXPECT_FALSE(is_judged_by("42", rule));
}

}  // namespace
}  // namespace inlay::data
