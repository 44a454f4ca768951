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
  EXPECT_FALSE(agrees("1,2", "1, 2", {})) << "only commas between digits vanish";
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
